"""What figures draw: the runs of one method on one data set, and its colour, line and marker."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from cglb.experiments import table
from cglb.experiments.runs import Run, cg_steps

__all__ = ["Series", "series_of"]

# the first ones are those of the kinds of methods, in the order of the table
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7")
COLOURS += ("#8C6D00", "#56B4E9", "#666666", "#9C2A8C", "#B0A000")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
LINES += ((0, (8, 2)), (0, (3, 1)), (0, (1, 3)), (0, (6, 1, 2, 1)), (0, (2, 2, 6, 2)))
MARKERS = ("o", "s", "^", "D", "v", "X", "P", "*", "<", "h")


@dataclass(frozen=True)
class Series:
    """The runs of one method, one per split, and how every figure draws them.

    Attributes:
        label: the name in legends.
        kind: the kind of the method, as in `Method`.
        runs: one per split.
        style: colour, line style and marker, as matplotlib's arguments.
    """

    label: str
    kind: str
    runs: list[Run]
    style: dict[str, Any]

    def scores(self, name: str) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(step, seconds, value) for each split that has values with this name."""
        found = []
        for run in self.runs:
            # if a step has two scores, the later one belongs to the final metrics
            rows = {row["step"]: row for row in run.scores() if row.get(name) is not None}
            if rows:
                kept = [rows[step] for step in sorted(rows)]
                columns = ([row[key] for row in kept] for key in ("step", "seconds", name))
                found.append(tuple(np.array(column, dtype=float) for column in columns))
        return found

    def history(self, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """(step, value) for each split that has values with this name.

        Only steps on all training rows: values on a part of the rows are not comparable.
        """
        found = []
        for run in self.runs:
            history = run.history()
            n = max((row["rows"] for row in history), default=0)
            rows = [row for row in history if row["rows"] == n and row.get(name) is not None]
            if rows:
                steps, values = ([row[key] for row in rows] for key in ("step", name))
                found.append((np.array(steps, dtype=float), np.array(values, dtype=float)))
        return found

    def cg_steps(self) -> list[list[list[int]]]:
        """CG steps of every evaluation, by step, for each split with CG; [] in stages without CG."""
        splits = ([cg_steps(row) for row in run.history()] for run in self.runs)
        return [found for found in splits if any(found)]


def series_of(runs: list[Run]) -> list[Series]:
    """The series of the runs on one data set, in the order of the table.

    The first of each kind of method looks alike on all data sets; others take what is left.
    """
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault(run.spec.group, []).append(run)
    keys = sorted(groups, key=lambda key: table.row_key(*key))
    series, seen = [], set()
    left = itertools.cycle(range(len(table.KINDS), len(COLOURS)))
    for key in keys:
        _, method, variant = key
        kind = groups[key][0].spec.method.kind
        number = next(left) if kind in seen else table.KINDS.index(kind)
        seen.add(kind)
        style = {"color": COLOURS[number], "linestyle": LINES[number], "marker": MARKERS[number]}
        series.append(Series(table.label(method, variant), kind, groups[key], style))
    return series
