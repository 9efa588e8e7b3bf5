"""Progress for people: a table of all runs, and progress bars of the active ones.

Both only read the store, so they also show runs of other processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from cglb.experiments.runs import Run, State, look
from cglb.experiments.spec import Spec

__all__ = ["status_table", "summary_line", "watching"]

EVERY_SECONDS = 1.0


def status_table(states: Iterable[State]) -> Table:
    """One row per run: progress, bound, time used and left."""
    table = Table(box=None, header_style="bold")
    for name in ("data", "split", "method", "state", "steps", "bound", "time", "left", ""):
        right = name in ("split", "steps", "bound", "time", "left")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "")
    for state in states:
        spec = state.run.spec
        note = "; ".join(filter(None, (spec.variant, state.note)))
        table.add_row(
            spec.data,
            str(spec.split),
            spec.method.name,
            state.phase,
            f"{state.step}/{state.max_steps}",
            "–" if state.bound is None else f"{state.bound:.1f}",
            _clock(state.seconds) if state.step else "–",
            _clock(state.seconds_left),
            note,
        )
    return table


def summary_line(state: State) -> str:
    """How a run ended, in one line."""
    metrics = state.run.metrics()
    if state.phase == "failed":
        return f"{_title(state.run.spec)}: failed. {state.note}"
    if metrics is None:
        return f"{_title(state.run.spec)}: {state.phase} at step {state.step}"
    return (
        f"{_title(state.run.spec)}: {metrics['steps']} steps in {_clock(metrics['seconds'])} "
        f"({metrics['stop']}), bound {metrics['bound']:.1f}, RMSE {metrics['rmse']:.4f}, "
        f"NLPD {metrics['nlpd']:.3f}"
    )


@contextmanager
def watching(runs: list[Run], console: Console) -> Iterator[None]:
    """During the block, show a progress bar for every active run and print a line when a run ends."""
    over = threading.Event()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        total = progress.add_task("all", total=len(runs), text="")
        view = _View(runs, progress, total)
        thread = threading.Thread(target=view.follow, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            view.refresh()


class _View:
    """The progress bars, updated from the store."""

    def __init__(self, runs: list[Run], progress: Progress, total: TaskID):
        self._progress, self._total = progress, total
        self._open = list(runs)
        self._all = len(runs)
        self._lines: dict[Run, TaskID] = {}

    def follow(self, over: threading.Event) -> None:
        while not over.wait(EVERY_SECONDS):
            self.refresh()

    def refresh(self) -> None:
        for run in list(self._open):
            state = look(run)
            if state.active:
                self._show(run, state)
            elif run in self._lines:
                self._progress.remove_task(self._lines.pop(run))
            if state.phase in ("done", "failed"):
                self._progress.console.print(summary_line(state), highlight=False, soft_wrap=True)
                self._open.remove(run)
        ended = self._all - len(self._open)
        self._progress.update(
            self._total, completed=ended, text=f"{ended} of {self._all} runs have ended"
        )

    def _show(self, run: Run, state: State) -> None:
        if run not in self._lines:
            self._lines[run] = self._progress.add_task(_title(run.spec), text="")
        bound = "" if state.bound is None else f", bound {state.bound:.1f}"
        left = "" if not state.seconds_left else f", {_clock(state.seconds_left)} left"
        self._progress.update(
            self._lines[run],
            completed=state.step,
            total=state.max_steps,
            text=f"{state.phase} {state.step}/{state.max_steps}{bound}{left}",
        )


def _title(spec: Spec) -> str:
    return f"{spec.data} split {spec.split} {spec.method.name}"


def _clock(seconds: float | None) -> str:
    """12 s, 3:05 min or 2:10 h."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
