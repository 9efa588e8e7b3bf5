"""A small copy of a store, to be kept with the code: `cglb paper export`.

It has the finished runs, and of their histories what tables and figures show. `cglb paper table`,
`figures` and `report` read it like any other store.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cglb.experiments.records import write_json, write_rows
from cglb.experiments.runs import Run

__all__ = ["export"]

# what figures, tables and `status` read of a step
COLUMNS = (
    *("step", "stage", "rows", "seconds", "bound", "logdet_bound", "extra"),
    *("cg_steps", "cg_steps_by_evaluation"),
)
DIGITS = 8


def export(runs: Iterable[Run], root: Path) -> list[Run]:
    """Write the finished runs to another store, without checkpoints.

    Args:
        runs: of a store.
        root: the folder of the other store. Runs that it has are written anew.

    Returns:
        The runs in the other store.
    """
    written = []
    for run in runs:
        metrics, budget = run.metrics(), run.budget()
        if metrics is None or budget is None:
            continue
        copy = Run(root, run.spec)
        copy.register(budget)
        history = [{name: row[name] for name in COLUMNS if name in row} for row in run.history()]
        write_rows(copy.folder / "history.jsonl", short(history))
        write_rows(copy.folder / "scores.jsonl", short(run.scores()))
        write_json(copy.folder / "metrics.json", metrics)
        written.append(copy)
    return written


def short(value: Any) -> Any:
    """The same with numbers of eight digits."""
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    if isinstance(value, list):
        return [short(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
