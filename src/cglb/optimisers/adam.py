"""Adam (Kingma and Ba 2015), uphill, for noisy functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cglb.optimisers.base import Ending, Evaluate, Optimiser, Point, State, point_from

__all__ = ["Adam", "AdamState"]


@dataclass(frozen=True)
class AdamState(State):
    """The newest point, the running moments of the gradient, and the number of steps so far."""

    first: np.ndarray
    second: np.ndarray
    steps: int

    def arrays(self) -> dict[str, np.ndarray]:
        moments = {"first": self.first, "second": self.second, "steps": np.asarray(self.steps)}
        return super().arrays() | moments


@dataclass(frozen=True)
class Adam(Optimiser[AdamState]):
    """Adam with its usual decay of the moments.

    A step moves first and evaluates then, so that its value belongs to the point it shows. The gradient
    found there makes the next step. There is no test of convergence.

    Attributes:
        rate: the learning rate.
        decay: of the mean and of the mean square of the gradient.
        epsilon: added to the root of the mean square.
    """

    rate: float = 0.1
    decay: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        if not self.rate > 0.0:
            raise ValueError(f"The learning rate must be positive, found {self.rate}.")

    def begin(self, point: Point, before: AdamState | None = None) -> AdamState:
        zero = np.zeros_like(point.x)
        return AdamState(point, zero, zero, 0)

    def restore(self, arrays: Mapping[str, np.ndarray]) -> AdamState:
        return AdamState(point_from(arrays), arrays["first"], arrays["second"], int(arrays["steps"]))

    def step(
        self, state: AdamState, evaluate: Evaluate, expired: Callable[[], bool] = lambda: False
    ) -> AdamState | Ending:
        if expired():
            return Ending.TIME_LIMIT
        gradient, steps = state.point.gradient, state.steps + 1
        one, two = self.decay
        first = one * state.first + (1.0 - one) * gradient
        second = two * state.second + (1.0 - two) * gradient**2
        root = np.sqrt(second / (1.0 - two**steps)) + self.epsilon
        x = state.point.x + self.rate * first / (1.0 - one**steps) / root
        found = evaluate(x, steps)
        return Ending.NOT_FINITE if found is None else AdamState(found, first, second, steps)
