"""A progress bar for training: step, bound, CG steps, time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Reporter", "reporter"]


class Reporter(Protocol):
    """Shown each accepted step's history row."""

    def __call__(self, row: dict[str, Any]) -> None: ...


def _silent(row: dict[str, Any]) -> None:
    pass


@contextmanager
def reporter(enabled: bool, total: int) -> Iterator[Reporter]:
    """A bar on standard error while the block runs; nothing where `enabled` is False."""
    if not enabled:
        yield _silent
        return
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task("compiling …", total=total)

        def report(row: dict[str, Any]) -> None:
            text = f"bound {row['bound']:.2f}"
            if row["spread"] is not None:
                text = f"estimate {row['bound']:.2f} ± {row['spread']:.2g}"
            if row["cg_steps"] is not None:
                text += f", {row['cg_steps']} CG steps"
            if row["slack"] is not None:
                text += f", slack {row['slack']:.2g}"
            bar.update(task, completed=row["step"], description=text)

        yield report
