"""Where a stage or a round begins: at what was reached before, or at something better nearby.

An optimiser takes many steps to lower a noise that a floor has held up, and none at all to bring back a
column whose lengthscale has left the data behind. A stage tries both once, with an evaluation each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from cglb.linalg.system import System
from cglb.methods.base import Prepared
from cglb.optimisers import base as optimisers
from cglb.optimisers.base import Point
from cglb.training.evaluations import Evaluations
from cglb.training.problem import Problem

__all__ = ["Begin", "begin_at", "best_begin", "inherited"]


class Begin(NamedTuple):
    """Where a round may begin: hyperparameters, inducing points, and the evaluation there."""

    free: np.ndarray
    Z: Array | None
    prepared: Prepared
    point: Point


def best_begin(
    evaluations: Evaluations, places: Sequence[np.ndarray], Z: Array | None, known: System | None
) -> Begin | None:
    """The best beginning of a stage; None if the bound is not finite at any place.

    Args:
        evaluations: those of the stage.
        places: hyperparameters to begin at, as free vectors.
        Z: inducing points so far; None to begin with those given or selected.
        known: the newest system, if there is one place and the system is at it.
    """
    tried = (_begin_stage_at(evaluations, free, Z, known) for free in places)
    found = [begin for begin in tried if begin is not None]
    if not found:
        return None
    best = _with_less_noise(evaluations, max(found, key=lambda begin: begin.point.value))
    if evaluations.problem.stages[evaluations.stage].brings_back:
        best = _with_lost_columns(evaluations, best)
    return best


def begin_at(
    evaluations: Evaluations, free: np.ndarray, Z: Array | None, known: System | None
) -> Begin | None:
    """The beginning with these hyperparameters and inducing points; None if the bound is not finite.

    Args:
        evaluations: those of the round.
        free: hyperparameters.
        Z: inducing points.
        known: the newest system, if it is at these hyperparameters.
    """
    problem, stage = evaluations.problem, evaluations.stage
    method = problem.stages[stage].method
    if known is not None and _fits(evaluations, known, Z):
        system = known.again(method.solver)
    else:
        system = problem.system(stage, free, Z)
    prepared = method.prepare(system)
    point = evaluations.of(system, problem.join(stage, free, Z), prepared)
    return None if point is None else Begin(free, Z, prepared, point)


def _fits(evaluations: Evaluations, known: System, Z: Array | None) -> bool:
    """Whether a system at the same hyperparameters has the rows and the points that a stage asks for."""
    problem, stage = evaluations.problem, evaluations.stage
    rows = problem.data(stage)
    if known.X is not rows.X:
        return False
    if Z is not None:
        return np.array_equal(rows.plain(known.Z), Z)
    return stage > 0 and problem.stages[stage - 1].method == problem.stages[stage].method


def _begin_stage_at(
    evaluations: Evaluations, free: np.ndarray, Z: Array | None, known: System | None
) -> Begin | None:
    """The beginning of a stage with the first inducing points at which the bound is finite."""
    for candidate in _candidates(evaluations, free, Z):
        begin = begin_at(evaluations, free, candidate, known)
        if begin is not None:
            return begin
    return None


def _candidates(evaluations: Evaluations, free: np.ndarray, Z: Array | None) -> list[Array | None]:
    """Inducing points to begin a stage with: new ones first, then those so far."""
    problem, stage = evaluations.problem, evaluations.stage
    if not problem.stages[stage].method.needs_points:
        return [None]
    kept = problem.Z if Z is None else Z
    # given points are kept at the start, those of a joint optimisation always
    if kept is not None and (Z is None or problem.stages[stage].joint):
        return [kept]
    selected = problem.select(free, stage, evaluations.round)
    return [selected] if kept is None else [selected, kept]


def _with_less_noise(evaluations: Evaluations, begin: Begin) -> Begin:
    """The same beginning or, where the floor of an earlier stage may have held the noise up, with less
    noise while that makes the better bound."""
    while (free := evaluations.problem.with_less_noise(evaluations.stage, begin.free)) is not None:
        found = _moved(evaluations, begin, free)
        if found is None or not found.point.value > begin.point.value:
            break
        begin = found
    return begin


def _with_lost_columns(evaluations: Evaluations, begin: Begin) -> Begin:
    """The same beginning or, where that makes the better bound, with columns that earlier stages lost.

    Where a lengthscale is far longer than the data, its gradient vanishes, and few rows or one long step
    can have led there. All such columns are made to matter a little; those that the gradient there wants
    to matter more stay.
    """
    back = evaluations.problem.with_columns_back(evaluations.stage, begin.free)
    if np.array_equal(back, begin.free) or (tried := _moved(evaluations, begin, back)) is None:
        return begin
    slopes = tried.point.gradient[: len(back)]
    wanted = (back != begin.free) & (slopes < 0.0)
    found = _moved(evaluations, begin, np.where(wanted, back, begin.free)) if wanted.any() else None
    return begin if found is None or not found.point.value > begin.point.value else found


def _moved(evaluations: Evaluations, begin: Begin, free: np.ndarray) -> Begin | None:
    """The same beginning with other hyperparameters; None if the bound is not finite there."""
    x = evaluations.problem.join(evaluations.stage, free, begin.Z)
    point = evaluations.at(x, begin.Z, begin.prepared)
    return None if point is None else begin._replace(free=free, point=point)


def inherited(
    problem: Problem, stage: int, free: np.ndarray, run: optimisers.State | None
) -> optimisers.State | None:
    """What a stage can know of its curvature from the one before: on more rows it is that much larger.

    Args:
        problem: what is maximised.
        stage: the number of the stage that begins.
        free: where the stage before ended, as its free vector.
        run: of the stage before.
    """
    if run is None or not problem.stages[stage].inherits:
        return None
    factor = problem.rows(stage) / problem.rows(stage - 1)
    same = problem.same_meaning(free, stage - 1)
    return problem.stages[stage - 1].optimiser.scaled(run, factor, same)
