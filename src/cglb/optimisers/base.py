"""What all optimisers share: the point they are at, and why they stop.

An optimiser is a frozen configuration. `begin` makes its state from a point, `step` takes one accepted
step. The state holds plain arrays, so a run can be saved after any step and resumed to the same bits.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

__all__ = ["Ending", "Evaluate", "Optimiser", "Point", "State"]


class Ending(enum.StrEnum):
    """Why an optimiser, or a whole fit, stopped."""

    RUNNING = "running"
    CONVERGED = "converged"
    STALLED = "stalled"
    NO_IMPROVEMENT = "no further improvement"
    STEP_LIMIT = "step limit"
    TIME_LIMIT = "time limit"
    CALLBACK = "callback"
    NOT_FINITE = "not finite"

    @property
    def message(self) -> str:
        """The same in a sentence."""
        return _MESSAGES[self]

    @property
    def may_go_on(self) -> bool:
        """Whether a larger budget would lead to further steps."""
        return self in (Ending.STEP_LIMIT, Ending.TIME_LIMIT)


_MESSAGES = {
    Ending.RUNNING: "Training is still running.",
    Ending.CONVERGED: "The gradient is zero, or further steps gain too few nats to matter.",
    Ending.STALLED: "The bound has all but stopped rising.",
    Ending.NO_IMPROVEMENT: "The line search found no further improvement.",
    Ending.STEP_LIMIT: "Stopped at the step limit, as asked; more steps may raise the bound further.",
    Ending.TIME_LIMIT: "Stopped at the time limit; more time may raise the bound further.",
    Ending.CALLBACK: "Stopped by the callback.",
    Ending.NOT_FINITE: "The value is no longer finite; the model before that step is kept. Raise the "
    "noise floor, or lower the learning rate.",
}


@dataclass(frozen=True)
class Point:
    """A place, the value there, which is to be maximised, and its gradient.

    Attributes:
        x: the place, [p].
        value: what is maximised.
        gradient: its gradient, [p].
        found: what else the evaluation gave. It is not part of an optimiser's saved state.
    """

    x: np.ndarray
    value: float
    gradient: np.ndarray
    found: Any = None


# (x, number of the draw) to the point there, or None where its numbers are not finite. A noisy function
# draws anew for each number; a deterministic one ignores it.
Evaluate = Callable[[np.ndarray, int], Point | None]


@dataclass(frozen=True)
class State:
    """Where a run is. Subclasses add what their optimiser remembers."""

    point: Point

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it as arrays by name; `Optimiser.restore` is the inverse."""
        return {
            "x": self.point.x,
            "value": np.asarray(self.point.value),
            "gradient": self.point.gradient,
        }


def point_from(arrays: Mapping[str, np.ndarray]) -> Point:
    """The point that `State.arrays` wrote."""
    return Point(arrays["x"], float(arrays["value"]), arrays["gradient"])


S = TypeVar("S", bound=State)


class Optimiser(abc.ABC, Generic[S]):
    """A way to maximise a function from its values and gradients."""

    @abc.abstractmethod
    def begin(self, point: Point, before: S | None = None) -> S:
        """The state at the start of a run.

        Args:
            point: where it starts.
            before: the state at the end of a run on a similar function, whose curvature may serve.
        """

    def scaled(self, state: S, factor: float, same: np.ndarray) -> S:
        """What a run remembers of curvature, for a function that curves `factor` times as much.

        Args:
            state: at the end of the run.
            factor: how much more the other function curves.
            same: which of its entries [p] mean the same there; nothing is remembered of the others.
        """
        return state

    def at_cost(self, effort: float) -> Optimiser[S]:
        """This optimiser for evaluations that each take as much as `effort` ordinary ones."""
        return self

    def promises_little(self, state: S) -> bool:
        """Whether what is known of curvature says that the next step is not worth its evaluation."""
        return False

    @abc.abstractmethod
    def restore(self, arrays: Mapping[str, np.ndarray]) -> S:
        """The state that `State.arrays` wrote."""

    @abc.abstractmethod
    def step(
        self, state: S, evaluate: Evaluate, expired: Callable[[], bool] = lambda: False
    ) -> S | Ending:
        """One accepted step, or why there is none.

        Args:
            state: where the run is; it is left as it is.
            evaluate: the function.
            expired: asked before each evaluation; True ends the search with `Ending.TIME_LIMIT`.
        """
