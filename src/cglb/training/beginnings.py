"""Where a stage begins: at what earlier stages have reached, or at something better that they could not.

An optimiser takes many steps to lower a noise that a floor has held up, and none at all to bring back a
column whose lengthscale has left the data behind. Both are tried once, with an evaluation each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from cglb.methods.base import Prepared
from cglb.optimisers.base import Point
from cglb.training.problem import Problem

__all__ = ["Begin", "Trials", "with_less_noise", "with_lost_columns"]

# systems of evaluations with their values, by place
Trials = dict[bytes, tuple[float, Any]]


class Begin(NamedTuple):
    """Where a stage may begin, and the evaluation there."""

    free: np.ndarray
    prepared: Prepared
    Z: Array | None
    point: Point
    trials: Trials


# the same beginning with other hyperparameters; None if the bound is not finite there
Move = Callable[[Begin, np.ndarray], Begin | None]


def with_less_noise(problem: Problem, stage: int, begin: Begin, move: Move) -> Begin:
    """The same beginning or, where the floor of an earlier stage may have held the noise up, with less
    noise while that makes the better bound."""
    while (free := problem.with_less_noise(stage, begin.free)) is not None:
        found = move(begin, free)
        if found is None or not found.point.value > begin.point.value:
            break
        begin = found
    return begin


def with_lost_columns(problem: Problem, stage: int, begin: Begin, move: Move) -> Begin:
    """The same beginning or, where that makes the better bound, with columns that earlier stages lost.

    Where a lengthscale is far longer than the data, its gradient vanishes, and few rows or one long step
    can have led there. All such columns are made to matter a little; those that the gradient there wants
    to matter more stay.
    """
    back = problem.with_columns_back(stage, begin.free)
    if np.array_equal(back, begin.free) or (tried := move(begin, back)) is None:
        return begin
    slopes = tried.point.gradient[: len(back)]
    wanted = (back != begin.free) & (slopes < 0.0)
    found = move(begin, np.where(wanted, back, begin.free)) if wanted.any() else None
    return begin if found is None or not found.point.value > begin.point.value else found
