"""The result of a fit, its history, and the count of its work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Float

from cglb.methods.base import Evaluation
from cglb.model import GP
from cglb.optimisers.base import Ending

__all__ = ["Callback", "Fit", "HistoryRow", "Work", "evaluation_columns"]


class HistoryRow(TypedDict):
    """An accepted step in plain numbers, ready for JSON.

    Attributes:
        step: its number, from 1.
        stage: the number of its stage, from 0.
        round: the number of its round, from 0: between two rounds inducing points are selected.
        rows: training rows in this stage.
        extra: whether the step is in addition to `max_steps`.
        method: the name of the stage's method.
        bound: the value that is maximised, in nats: a bound, or an estimate.
        spread: the standard error of an estimate; None for a bound.
        constant: the summand −(n/2) log 2π.
        quadratic: the summand for −½eᵀK̂⁻¹e.
        logdet: the summand for −½log|K̂|.
        logdet_bound: what bounds (or estimates) log|K̂|.
        cg_steps: CG's steps at this point; None without CG, as are the next three.
        cg_steps_by_evaluation: CG's steps at every evaluation since the row before.
        cg_stop: why CG stopped.
        slack: certified nats that stopping CG costs; None for an estimate.
        jitter: relative jitter that Kuu needed.
        evaluations: of the value and its gradient so far.
        products: with K̂ so far.
        seconds: of training so far, without callbacks.
        parameters: the hyperparameters by name, in natural units.
        log_prior: of the hyperparameters; bound + log_prior is what rises from step to step.
    """

    step: int
    stage: int
    round: int
    rows: int
    extra: bool
    method: str
    bound: float
    spread: float | None
    constant: float
    quadratic: float
    logdet: float
    logdet_bound: str
    cg_steps: int | None
    cg_steps_by_evaluation: list[int] | None
    cg_stop: str | None
    slack: float | None
    jitter: float
    evaluations: int
    products: int
    seconds: float
    parameters: dict[str, float]
    log_prior: float


def evaluation_columns(found: Evaluation) -> dict[str, Any]:
    """The entries of a row that an evaluation decides."""
    terms, by_cg = found.terms, found.cg_stop is not None
    return {
        "bound": found.value,
        "spread": found.spread,
        "constant": float(terms.constant),
        "quadratic": float(terms.quadratic),
        "logdet": float(terms.logdet),
        "cg_steps": found.cg_steps if by_cg else None,
        "cg_stop": found.cg_stop.value if found.cg_stop else None,
        "slack": found.slack if by_cg else None,
        "jitter": found.jitter,
    }


@dataclass
class Fit:
    """A trained model and how it was found. All arrays are NumPy's.

    Attributes:
        gp: the trained model.
        Z: inducing points, [m, d]; for Iterative GP the points of its preconditioner.
        v: CG's newest solution, [n]; None without CG or before training saw all rows.
        bound: the value at the end, in nats.
        stop: why training stopped.
        history: one row per accepted step.
        evaluations: of the value and its gradient.
        products: with K̂.
        seconds: of training, without callbacks.
        system: what conditioning the model on the training data can use again.
    """

    gp: GP
    Z: Float[np.ndarray, "m d"] | None
    v: Float[np.ndarray, " n"] | None
    bound: float
    stop: Ending
    history: list[HistoryRow] = field(default_factory=list)
    evaluations: int = 0
    products: int = 0
    seconds: float = 0.0
    system: Any = field(default=None, repr=False, compare=False)

    @property
    def message(self) -> str:
        """Why training stopped, in a sentence."""
        return self.stop.message


Callback = Callable[[HistoryRow, Callable[[], Fit]], bool | None]


@dataclass
class Work:
    """How much has been computed.

    Attributes:
        evaluations: of the value and its gradient.
        products: with K̂.
        cg_steps: one entry per evaluation since the last history row.
    """

    evaluations: int = 0
    products: int = 0
    cg_steps: list[int] = field(default_factory=list)

    def count(self, found: Evaluation | None) -> None:
        """One more evaluation; None is one whose numbers were not finite."""
        self.evaluations += 1
        if found is None:
            return
        self.products += found.products
        if found.cg_stop is not None:
            self.cg_steps.append(found.cg_steps)

    def take_cg_steps(self) -> list[int]:
        """The CG steps of each evaluation since the last call."""
        taken, self.cg_steps = self.cg_steps, []
        return taken
