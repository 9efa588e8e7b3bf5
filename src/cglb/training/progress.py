"""A progress bar for training: step, bound, CG steps, time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from cglb.training.history import HistoryRow

__all__ = ["Reporter", "reporter"]


class Reporter(Protocol):
    """Shown each accepted step's history row, and how many steps so far come on top of the limit."""

    def __call__(self, row: HistoryRow, extra: int) -> None: ...


def _silent(row: HistoryRow, extra: int) -> None:
    pass


@contextmanager
def reporter(enabled: bool, total: int) -> Iterator[Reporter]:
    """A bar on standard error while the block runs; nothing if `enabled` is False."""
    if not enabled:
        yield _silent
        return
    # slow to import and needed only here
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task("compiling …", total=total)

        def report(row: HistoryRow, extra: int) -> None:
            text = f"bound {row['bound']:.2f}"
            if row["spread"] is not None:
                text = f"estimate {row['bound']:.2f} ± {row['spread']:.2g}"
            if row["cg_steps"] is not None:
                text += f", {row['cg_steps']} CG steps"
            if row["slack"] is not None:
                text += f", slack {row['slack']:.2g}"
            bar.update(task, completed=row["step"], total=total + extra, description=text)

        yield report
