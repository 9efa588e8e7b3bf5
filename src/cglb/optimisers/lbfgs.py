"""L-BFGS with a strong-Wolfe line search (Nocedal and Wright 2006, chapters 3 and 7), uphill.

The state is the newest point and up to `memory` pairs s = x₊ − x, y = g − g₊ of accepted steps. It is
saved as it is, and handed on to a run on a similar function: the curvature of the bound changes little
when inducing points are selected anew.

A point is accepted only if it was evaluated and raises the value enough. So the accepted point is
always one whose evaluation is kept, and no value is ever computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cglb.optimisers.base import Ending, Evaluate, Optimiser, Point, State, point_from

__all__ = ["LBFGS", "LBFGSState"]

# a pair counts if sᵀy is more than this share of ‖s‖‖y‖: else its curvature is rounding
LEAST_CURVATURE = 1e-10
# sufficient increase and curvature of the strong Wolfe conditions
INCREASE, CURVATURE = 1e-3, 0.9
# a bracket this narrow, relative to its ends, has nothing better in it than its best end
NARROW = 0.1
# how far one trial may go beyond the last, and how far it goes back from a wall
FARTHEST, BACK = 4.0, 0.25
# an interpolated trial keeps at least this share of the bracket between itself and either end
MARGIN = 0.1
# a trial from which less than this share of the value can be hoped for is never worth an evaluation
ROUNDING = float(np.finfo(float).eps)


@dataclass(frozen=True)
class LBFGSState(State):
    """The newest point, the pairs (one per row, the oldest first) and the value before the last step.

    `before` is −inf at the start of a run.
    """

    S: np.ndarray
    Y: np.ndarray
    before: float = -np.inf

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | {"S": self.S, "Y": self.Y, "before": np.asarray(self.before)}


@dataclass(frozen=True)
class LBFGS(Optimiser[LBFGSState]):
    """L-BFGS. It has converged when the gradient or the last gain is at the level of rounding.

    Attributes:
        memory: pairs that are remembered. More than there are hyperparameters, so that all of their
            curvature is known.
        trials: evaluations per line search, at most.
        gradient_tolerance: converged if no entry of the gradient is larger.
        value_tolerance: converged if a step gained less than this share of the value.
        worth: converged if the next step promises to gain less than `cost` times this, ½gᵀHg by what is
            known of curvature. A line search tries no length that can gain less than `worth`.
        cost: of an evaluation, in ordinary ones.
    """

    memory: int = 50
    trials: int = 30
    gradient_tolerance: float = 1e-5
    value_tolerance: float = 1e7 * float(np.finfo(float).eps)
    worth: float = 0.0
    cost: float = 1.0

    def begin(self, point: Point, before: LBFGSState | None = None) -> LBFGSState:
        none = np.zeros((0, len(point.x)))
        if before is None:
            return LBFGSState(point, none, none)
        return LBFGSState(point, before.S, before.Y)

    def scaled(self, state: LBFGSState, factor: float, same: np.ndarray) -> LBFGSState:
        S, Y = np.where(same, state.S, 0.0), np.where(same, factor * state.Y, 0.0)
        kept = _curved(S, Y)
        return replace(state, S=S[kept], Y=Y[kept])

    def restore(self, arrays: Mapping[str, np.ndarray]) -> LBFGSState:
        return LBFGSState(point_from(arrays), arrays["S"], arrays["Y"], float(arrays["before"]))

    def step(
        self, state: LBFGSState, evaluate: Evaluate, expired: Callable[[], bool] = lambda: False
    ) -> LBFGSState | Ending:
        point = state.point
        if self._converged(state):
            return Ending.CONVERGED
        least = max(self.worth, ROUNDING * abs(point.value))
        while True:
            direction = _direction(point.gradient, state.S, state.Y)
            length = 1.0
            if not len(state.S):
                length = min(1.0, 1.0 / float(np.linalg.norm(direction)))
            # a run that has not taken a step may know the curvature of another function only
            elif np.isfinite(state.before) and self._too_little(point, direction):
                return Ending.CONVERGED
            found = _line_search(point, direction, length, self.trials, least, evaluate, expired)
            if isinstance(found, Point):
                return self._accept(state, found)
            if found is Ending.TIME_LIMIT or not len(state.S):
                return found
            # the pairs may be of no use here: try once more without them, straight uphill; where
            # evaluations are expensive, only before a step has shown that they are of use
            if self.worth > 0.0 and np.isfinite(state.before):
                return found
            state = self.begin(point)

    def _converged(self, state: LBFGSState) -> bool:
        value, before = state.point.value, state.before
        if np.max(np.abs(state.point.gradient), initial=0.0) <= self.gradient_tolerance:
            return True
        if not np.isfinite(before):  # the run has not taken a step
            return False
        return bool(value - before <= self.value_tolerance * max(abs(value), abs(before), 1.0))

    def at_cost(self, effort: float) -> LBFGS:
        return replace(self, cost=effort)

    def promises_little(self, state: LBFGSState) -> bool:
        known = len(state.S) > 0
        return known and self._too_little(
            state.point, _direction(state.point.gradient, state.S, state.Y)
        )

    def _too_little(self, point: Point, direction: np.ndarray) -> bool:
        return 0.5 * float(point.gradient @ direction) < self.cost * self.worth

    def _accept(self, state: LBFGSState, found: Point) -> LBFGSState:
        s = found.x - state.point.x
        y = state.point.gradient - found.gradient
        S, Y = state.S, state.Y
        if _curved(s, y):
            S = np.concatenate([S, s[None, :]])[-self.memory :]
            Y = np.concatenate([Y, y[None, :]])[-self.memory :]
        return LBFGSState(found, S, Y, before=state.point.value)


def _curved(s: np.ndarray, y: np.ndarray) -> Any:
    """Whether pairs, one per row, have a curvature that is more than rounding."""
    norms = np.linalg.norm(s, axis=-1) * np.linalg.norm(y, axis=-1)
    return np.sum(s * y, axis=-1) > LEAST_CURVATURE * norms


def _direction(gradient: np.ndarray, S: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """H g by the two-loop recursion, H ≈ (−Hessian)⁻¹ from the pairs, starting from (sᵀy/yᵀy) I."""
    q = gradient.copy()
    if not len(S):
        return q
    rho = 1.0 / np.sum(S * Y, axis=1)
    alpha = np.zeros(len(S))
    for i in reversed(range(len(S))):
        alpha[i] = rho[i] * (S[i] @ q)
        q -= alpha[i] * Y[i]
    q *= 1.0 / (rho[-1] * (Y[-1] @ Y[-1]))
    for i in range(len(S)):
        q += (alpha[i] - rho[i] * (Y[i] @ q)) * S[i]
    return q


@dataclass(frozen=True)
class _Trial:
    """A step length, the value gained by it, and the slope there; −inf and None at a wall."""

    length: float
    gain: float
    slope: float | None
    point: Point | None


def _line_search(
    start: Point,
    direction: np.ndarray,
    length: float,
    trials: int,
    least: float,
    evaluate: Evaluate,
    expired: Callable[[], bool],
) -> Point | Ending:
    """A point along `direction` that satisfies the strong Wolfe conditions, or the best that raises the
    value enough. A value that is not finite is a wall: the next trial is nearer, until the slope
    promises no more than `least` there.
    """
    slope = float(start.gradient @ direction)
    if not slope > 0.0:
        return Ending.NO_IMPROVEMENT
    best, end = _Trial(0.0, 0.0, slope, None), None  # the best so far; the other end of a bracket
    for _ in range(trials):
        if expired():
            return Ending.TIME_LIMIT
        trial = _try(start, direction, length, evaluate)
        needed = INCREASE * length * slope
        if trial.slope is None or trial.gain < needed or trial.gain <= best.gain:
            end = trial
        else:
            if abs(trial.slope) <= CURVATURE * slope:
                break
            # uphill is on the side of the old best
            if trial.slope * (trial.length - best.length) < 0.0:
                end = best
            best, trial = trial, best
            if end is None:
                length = _beyond(best, trial)
                continue
        if best.point is not None and _narrow(best, end):
            trial = best
            break
        length = _between(best, end)
        if slope * length <= least:
            trial = best
            break
    else:
        trial = best
    return Ending.NO_IMPROVEMENT if trial.point is None else trial.point


def _try(start: Point, direction: np.ndarray, length: float, evaluate: Evaluate) -> _Trial:
    x = start.x + length * direction
    found = evaluate(x, 0)
    if found is None:
        return _Trial(length, -np.inf, None, None)
    slope = float(found.gradient @ direction)
    return _Trial(length, found.value - start.value, slope, replace(found, x=x))


def _narrow(a: _Trial, b: _Trial) -> bool:
    return abs(a.length - b.length) <= NARROW * max(a.length, b.length)


def _beyond(best: _Trial, before: _Trial) -> float:
    """Where to look next if the value still rises at the longest step so far."""
    width = best.length - before.length
    top = _cubic(before, best)
    farthest = best.length + FARTHEST * width
    return farthest if top is None else float(np.clip(top, best.length + width, farthest))


def _between(best: _Trial, end: _Trial) -> float:
    """Where to look next inside a bracket: at the top of the cubic through both ends."""
    width = end.length - best.length
    if end.slope is None:
        return best.length + BACK * width
    top = _cubic(best, end)
    share = 0.5 if top is None else (top - best.length) / width
    return best.length + float(np.clip(share, MARGIN, 1.0 - MARGIN)) * width


def _cubic(a: _Trial, b: _Trial) -> float | None:
    """The maximum of the cubic with the values and slopes of both ends; None if it has none."""
    assert a.slope is not None
    assert b.slope is not None
    width = b.length - a.length
    mean = (b.gain - a.gain) / width
    inner = 3.0 * mean - a.slope - b.slope
    square = inner * inner - a.slope * b.slope
    if not square >= 0.0:
        return None
    root = float(np.copysign(np.sqrt(square), width))
    below = a.slope - b.slope + 2.0 * root
    return None if below == 0.0 else b.length - width * (root - inner - b.slope) / below
