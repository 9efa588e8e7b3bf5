"""A progress bar for predictions of many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cglb.compute import processes

__all__ = ["counting"]


@contextmanager
def counting(enabled: bool, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while the block runs, which is told how many rows are done."""
    if not (enabled and processes.is_first()):
        yield lambda done: None
        return
    # slow to import and needed only here
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("rows"), MofNCompleteColumn(), BarColumn(bar_width=20), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
