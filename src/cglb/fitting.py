"""What every way of training shares: the result, its history, the count of work, and the loop around."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

from cglb.checkpoint import Checkpoint
from cglb.clock import Clock
from cglb.constraints import Parameters
from cglb.model import GP
from cglb.objective import Evaluation
from cglb.progress import reporter

__all__ = ["Callback", "Fit", "Work", "drive", "fingerprint", "history_row", "random_rows"]


@dataclass
class Fit:
    """A trained model and how it got there.

    Z:       inducing points; for Iterative GP the points of its preconditioner.
    stop:    "converged", "step limit", "time limit", "callback" or, for Iterative GP, "not finite";
             `message` is the same in a sentence.
    history: a row a step: step, round, rows, bound (or estimate and its spread) and its terms, CG steps
             at the step and at every evaluation since the last one, slack, jitter, seconds (without
             callbacks), evaluations, products, and the hyperparameters by name.
    """

    gp: GP
    Z: Float[Array, "m d"] | Float[np.ndarray, "m d"] | None
    v: Float[Array, " n"] | Float[np.ndarray, " n"] | None
    bound: float
    stop: str
    message: str
    history: list[dict[str, Any]] = field(default_factory=list)
    evaluations: int = 0
    products: int = 0
    seconds: float = 0.0


Callback = Callable[[dict[str, Any], Callable[[], Fit]], bool | None]


@dataclass
class Work:
    """How much has been computed. `cg_steps` has one entry an evaluation since the last history row."""

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


def history_row(
    parameters: Parameters,
    free: Array,
    evaluation: Evaluation,
    work: Work,
    *,
    step: int,
    round: int,
    rows: int,
    logdet: str,
    seconds: float,
) -> dict[str, Any]:
    """A step in plain numbers, ready for JSON."""
    terms = evaluation.terms
    natural = np.asarray(parameters.natural(parameters.unflatten(free)))
    by_cg = evaluation.cg_stop is not None
    return {
        "step": step,
        "round": round,
        "rows": rows,
        "bound": evaluation.value,
        "spread": evaluation.spread,
        "constant": float(terms.constant),
        "quadratic": float(terms.quadratic),
        "logdet": float(terms.logdet),
        "logdet_bound": logdet,
        "cg_steps": evaluation.cg_steps if by_cg else None,
        "cg_steps_by_evaluation": work.take_cg_steps() if by_cg else None,
        "cg_stop": evaluation.cg_stop.value if evaluation.cg_stop else None,
        "slack": evaluation.slack if by_cg else None,
        "jitter": evaluation.jitter,
        "evaluations": work.evaluations,
        "products": work.products,
        "seconds": seconds,
        "parameters": dict(zip(parameters.names, natural.tolist(), strict=True)),
    }


def fingerprint(settings: Any, arrays: Iterable[Array | None]) -> str:
    """Changes if anything that decides the path of the optimisation changes."""
    digest = hashlib.sha256(repr(settings).encode())
    for array in arrays:
        digest.update(b"none" if array is None else np.asarray(array).tobytes())
    return digest.hexdigest()


def random_rows(n: int, size: int, seed: int) -> np.ndarray:
    """The numbers of `size` of n rows, drawn at random, in their order."""
    return np.sort(np.random.default_rng(seed).permutation(n)[:size])


@runtime_checkable
class State(Protocol):
    """Where a fit is."""

    clock: Clock
    stop: str | None

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]: ...

    def fit(self) -> Fit: ...


def drive(
    state: State,
    advance: Callable[[Callable[[dict[str, Any]], bool]], None],
    store: Checkpoint,
    *,
    max_steps: int,
    progress: bool,
    callback: Callback | None,
) -> Fit:
    """`advance` until the state says stop; after each step show it, save it and ask the callback."""
    with reporter(progress, max_steps) as report:

        def on_step(row: dict[str, Any]) -> bool:
            report(row)
            store.save_if_due(state.snapshot)
            if callback is None:
                return False
            with state.clock.paused():
                return bool(callback(row, state.fit))

        while state.stop is None:
            advance(on_step)
    store.save(state.snapshot)
    return state.fit()
