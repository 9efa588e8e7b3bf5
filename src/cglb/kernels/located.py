"""A kernel on the columns of a table becomes one on the columns of an array.

A column of text becomes several columns of the array, a constant one becomes none. Columns that the
kernel names or counts are those of the table, and so are parameters with one value per column.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cglb.kernels.base import Kernel, replace_fields
from cglb.kernels.combinations import Columns

__all__ = ["located"]


def located(kernel: Kernel, names: Sequence[str], groups: Sequence[Sequence[int]]) -> Kernel:
    """The kernel on the columns of the array.

    Args:
        kernel: on the columns of the table.
        names: of the columns of the table.
        groups: for each of them the columns of the array that it becomes.

    Raises:
        ValueError: if it names a column that is not there, or one that was left out.
    """
    sizes = [len(group) for group in groups]
    if isinstance(kernel, Columns):
        chosen = [_number(column, names) for column in kernel.columns]
        columns = tuple(place for number in chosen for place in groups[number])
        if not columns:
            raise ValueError(
                f"The kernel is on {', '.join(repr(names[i]) for i in chosen)}, which is constant and "
                "was left out."
            )
        ends = np.cumsum([0, *(sizes[number] for number in chosen)])
        inner = [range(a, b) for a, b in itertools.pairwise(ends.tolist())]
        part = located(kernel.kernel, [names[number] for number in chosen], inner)
        return Columns(part, columns)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kernel):
        value = getattr(kernel, field.name)
        if isinstance(value, Kernel):
            values[field.name] = located(value, names, groups)
        elif getattr(value, "ndim", 0) == 1 and len(value) == len(groups) and sizes != [1] * len(groups):
            values[field.name] = np.repeat(np.asarray(value), sizes)
    return replace_fields(kernel, values) if values else kernel


def _number(column: int | str, names: Sequence[str]) -> int:
    if isinstance(column, str):
        if column not in names:
            raise ValueError(
                f"The kernel is on the column {column!r}, which is not there. There are: "
                f"{', '.join(map(repr, names))}."
            )
        return list(names).index(column)
    if column >= len(names):
        raise ValueError(f"The kernel uses column {column}, but the data has {len(names)} columns.")
    return column
