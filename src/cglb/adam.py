"""A run of Adam on a noisy objective that can be carried over: the counterpart of `lbfgs.Round`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from cglb.clock import Clock
from cglb.fitting import Work
from cglb.lbfgs import RoundResult, free_gradient
from cglb.model import GP
from cglb.objective import Evaluation

__all__ = ["MESSAGES", "AdamRun"]

MESSAGES = {
    "callback": "Stopped by the callback.",
    "time limit": "Stopped at the time limit.",
    "step limit": "The run's step limit was reached.",
    "not finite": "The estimate is no longer finite; the model before that step is kept. Raise the "
    "noise floor, or lower the learning rate.",
}


@dataclass
class AdamRun:
    """Adam from `free`, uphill. A step moves and then evaluates, so that a history row has the estimate
    at the parameters it shows; the gradient found there makes the next step.

    evaluate: (free, number of the evaluation) to an `Evaluation`, or None where it is not finite.
    resumed:  arrays of `log_arrays`, from which the run goes on.
    """

    evaluate: Callable[[Array, int], Evaluation | None]
    unflatten: Callable[[Array], GP]
    free: Array
    learning_rate: float
    resumed: Mapping[str, np.ndarray] | None
    clock: Clock
    work: Work
    accepted: tuple[Array, None, None, float] | None = None
    _steps: int = 0
    _gradient: Array | None = None
    _state: Any = field(default=None)

    def __post_init__(self) -> None:
        self._adam = optax.adam(self.learning_rate)
        self._state = self._adam.init(self.free)
        if not self.resumed:
            return
        held = {name: jnp.asarray(array) for name, array in self.resumed.items()}
        leaves, structure = jax.tree.flatten(self._state)
        self._state = structure.unflatten([held[f"log_adam_{i}"] for i in range(len(leaves))])
        self._gradient = held["log_gradient"]
        self._steps = int(held["log_steps"])
        self.accepted = (held["log_free"], None, None, float(held["log_value"]))

    def run(self, limit: int, on_accept: Callable[[Evaluation, Array], str | None]) -> RoundResult:
        """Up to `limit` steps, those before a restart included; `on_accept` after each, with a reason
        to stop or None."""
        with self.clock.running():
            stop = self._begin() or self._walk(limit, on_accept)
        reached = self.accepted or (self.free, None, None, -np.inf)
        return RoundResult(*reached, stop=stop, message=MESSAGES[stop])

    def log_arrays(self) -> dict[str, np.ndarray]:
        """Adam's state after the last step, for `resumed`."""
        if self.accepted is None or self._steps == 0:
            return {}
        leaves = jax.tree.leaves(self._state)
        return {
            "log_free": np.asarray(self.accepted[0]),
            "log_value": np.asarray(self.accepted[3]),
            "log_gradient": np.asarray(self._gradient),
            "log_steps": np.asarray(self._steps),
            **{f"log_adam_{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)},
        }

    def _begin(self) -> str | None:
        """The gradient at the start."""
        if self._gradient is not None:
            return None
        return None if self._try(self.free) else "not finite"

    def _walk(self, limit: int, on_accept: Callable[[Evaluation, Array], str | None]) -> str:
        while self._steps < limit:
            if self.clock.expired and self._steps:
                return "time limit"
            assert self.accepted is not None
            free, state = _move(self._adam, self.accepted[0], self._gradient, self._state)
            self._steps += 1
            found = self._try(free)
            if found is None:
                self._steps -= 1
                return "not finite"
            self._state = state
            if reason := on_accept(found, free):
                return reason
        return "step limit"

    def _try(self, free: Array) -> Evaluation | None:
        found = self.evaluate(free, self._steps)
        self.work.count(found)
        if found is None:
            return None
        self._gradient = free_gradient(self.unflatten, free, found)
        self.accepted = (free, None, None, found.value)
        return found


def _move(adam: Any, free: Array, gradient: Array | None, state: Any) -> tuple[Array, Any]:
    # optax counts steps in int32 and relies on standard promotion
    with jax.numpy_dtype_promotion("standard"):
        updates, state = adam.update(-jnp.asarray(gradient), state, free)
        return free + updates, state
