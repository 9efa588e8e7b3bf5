"""Training Iterative GP as the paper did, after Wang et al. (2019), in three stages:

    L-BFGS on a subset of the rows   10 steps, the probes held fixed
    Adam on the same subset          10 steps, new probes at every evaluation
    Adam on all rows                 up to the step limit

SciPy's line search starts from the value that the one before it ended with, so probes that are fixed
along each line search are fixed through the first stage. A row of the history has the estimate, with
its spread, for the rows of its stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.adam import MESSAGES, AdamRun
from cglb.checkpoint import Checkpoint
from cglb.checks import boundary
from cglb.clock import Clock
from cglb.constraints import Parameters
from cglb.fitting import Callback, Fit, Work, drive, fingerprint, history_row, random_rows
from cglb.iterative import Iterative, estimate, pivots
from cglb.lbfgs import START_NOT_FINITE, Round
from cglb.model import GP
from cglb.objective import Evaluation

__all__ = ["NOISE_FLOOR", "train_iterative"]

NOISE_FLOOR = 1e-4


@boundary
def train_iterative(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    settings: Iterative = Iterative(),  # noqa: B008 (frozen)
    *,
    learning_rate: float = 0.1,
    subset: int = 10_000,
    pretrain: tuple[int, int] = (10, 10),
    max_steps: int = 2020,
    floor: float | Mapping[str, float] = NOISE_FLOOR,
    fixed: tuple[str, ...] = (),
    seed: int = 0,
    callback: Callback | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    max_seconds: float | None = None,
) -> Fit:
    """Maximise the estimate of Iterative GP over the hyperparameters of `gp`, starting from its values.

    learning_rate: Adam's.
    subset:        rows for the first two stages, drawn at random; all if there are no more.
    pretrain:      steps of L-BFGS and of Adam on the subset; 0 leaves a stage out.
    max_steps:     steps in all, those on the subset included.
    seed:          decides the subset and every draw of probes: the same seed gives the same fit.

    The other arguments are those of `train`, and so is the result, except that `bound` is an estimate
    and `Z` has the points of the preconditioner. There is no test of convergence: the objective is
    noisy, and training ends at a limit, by the callback, or where the estimate is not finite.
    """
    if not learning_rate > 0.0:
        raise ValueError(f"learning_rate must be positive, found {learning_rate}.")
    if subset < 1 or max_steps < 1:
        raise ValueError(f"subset and max_steps must be at least 1, found {subset} and {max_steps}.")
    if min(pretrain) < 0:
        raise ValueError(f"pretrain must not be negative, found {pretrain}.")
    parameters = Parameters(gp, floor, fixed)
    problem = _Problem(X, y, settings, parameters, learning_rate, _stages(subset, pretrain), seed)
    state = _State(problem, Clock(max_seconds))
    store = Checkpoint(checkpoint, checkpoint_seconds, problem.fingerprint(gp))
    state.begin(gp, store.load())
    return drive(
        state,
        partial(state.run_stage, max_steps),
        store,
        max_steps=max_steps,
        progress=progress,
        callback=callback,
    )


class _Stage(NamedTuple):
    name: str
    subset: int | None  # rows at most; None is all
    steps: int | None  # None: as many as there may be


def _stages(subset: int, pretrain: tuple[int, int]) -> tuple[_Stage, ...]:
    first = (_Stage("lbfgs", subset, pretrain[0]), _Stage("adam", subset, pretrain[1]))
    return (*(stage for stage in first if stage.steps), _Stage("adam", None, None))


@dataclass(frozen=True)
class _Problem:
    """What does not change during a fit."""

    X: Float[Array, "n d"]
    y: Float[Array, " n"]
    settings: Iterative
    parameters: Parameters
    learning_rate: float
    stages: tuple[_Stage, ...]
    seed: int

    def fingerprint(self, gp: GP) -> str:
        """The step and time limits are left out: they cut the path off, they do not bend it."""
        values, structure = jax.tree.flatten(gp)
        floor, fixed = self.parameters.floor, self.parameters.fixed
        settings = (self.settings, self.learning_rate, self.stages, self.seed, floor, fixed)
        return fingerprint(("iterative", settings, str(structure)), (self.X, self.y, *values))

    def rows(self, stage: int) -> tuple[Array, Array]:
        n, size = self.X.shape[0], self.stages[stage].subset
        if size is None or size >= n:
            return self.X, self.y
        chosen = random_rows(n, size, self.seed)
        return self.X[chosen], self.y[chosen]

    def estimate(self, stage: int, X: Array, y: Array, free: Array, number: int) -> Evaluation | None:
        """With the probes that belong to this evaluation of this stage."""
        gp = self.parameters.unflatten(free)
        return estimate(self.settings, gp, X, y, (self.seed, stage, number))


@dataclass
class _State:
    """Where a fit is: at the start of a stage, and what the stage has done so far."""

    problem: _Problem
    clock: Clock
    free: Array = field(init=False)
    bound: float = -np.inf
    stage: int = 0
    before: int = 0  # steps before this stage
    current: Round | AdamRun | None = None
    resumed: dict[str, np.ndarray] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    stop: str | None = None
    message: str = ""

    def begin(self, gp: GP, saved: Any) -> None:
        self.free = self.problem.parameters.flatten(gp)
        if saved is None:
            return
        document, arrays = saved
        self.free = jnp.asarray(arrays["free"])
        self.bound, self.stage, self.before = (document[key] for key in ("bound", "stage", "before"))
        self.history = document["history"]
        self.work = Work(document["evaluations"], document["products"])
        self.stop, self.message = document["stop"], document["message"]
        self.clock.add(document["seconds"])
        self.resumed = {name: array for name, array in arrays.items() if name.startswith("log_")}

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The stage's start and the optimiser's state since: all that is needed to go on."""
        arrays = {"free": np.asarray(self.free)}
        if self.current is not None:
            arrays |= self.current.log_arrays()
        final = self.stop in ("callback", "not finite")  # limits may be raised, these stay
        document = {
            "bound": self.bound,
            "stage": self.stage,
            "before": self.before,
            "history": self.history,
            "evaluations": self.work.evaluations,
            "products": self.work.products,
            "seconds": self.clock.seconds,
            "stop": self.stop if final else None,
            "message": self.message if final else "",
        }
        return document, arrays

    def run_stage(self, max_steps: int, on_step: Callable[[dict[str, Any]], bool]) -> None:
        """One stage from its start, or from where it was cut off."""
        steps = self.problem.stages[self.stage].steps
        room = max_steps - self.before
        if not self.resumed and self.history:  # the stage before this one may have ended at a limit
            if room <= 0:
                return self._limit()
            if self.clock.expired:
                self.stop, self.message = "time limit", MESSAGES["time limit"]
                return None
        limit = room if steps is None else min(steps, room)
        self.current = self._optimiser()
        done = int(self.resumed.get("log_steps", 0))
        self.resumed = {}

        def accepted(evaluation: Evaluation, free: Array) -> str | None:
            self.history.append(self._row(evaluation, free))
            return "callback" if on_step(self.history[-1]) else None

        result = self.current.run(max(limit, done), accepted)
        if self.current.accepted is None and not self.history:
            raise ValueError(START_NOT_FINITE)
        if result.stop == "step limit" and (steps is None or self._done - self.before < steps):
            return self._limit()  # the stage stays open, so that its checkpoint can go on
        if result.stop not in ("step limit", "converged"):
            self.stop, self.message = result.stop, result.message
        if result.stop == "time limit":
            return None
        if self.current.accepted is not None:  # else not even the start of the stage had a value
            self.free, self.bound = result.free, result.bound
        self.current = None
        if self.stop is None:
            self.stage, self.before = self.stage + 1, self._done
        return None

    def _optimiser(self) -> Round | AdamRun:
        problem = self.problem
        evaluate = partial(problem.estimate, self.stage, *problem.rows(self.stage))
        unflatten = problem.parameters.unflatten
        if problem.stages[self.stage].name == "lbfgs":
            return Round(
                evaluate=lambda free, _Z, _v: evaluate(free, 0),
                unflatten=unflatten,
                free=self.free,
                Z=None,
                v=None,
                optimize_inducing=False,
                replay=self.resumed or None,
                clock=self.clock,
                work=self.work,
            )
        return AdamRun(
            evaluate, unflatten, self.free, problem.learning_rate, self.resumed, self.clock, self.work
        )

    @property
    def _done(self) -> int:
        return len(self.history)

    def _limit(self) -> None:
        self.stop = "step limit"
        self.message = f"Stopped after {self._done} steps, as asked; more may raise the estimate."

    def _row(self, evaluation: Evaluation, free: Array) -> dict[str, Any]:
        problem = self.problem
        size = problem.stages[self.stage].subset
        n = problem.X.shape[0]
        return history_row(
            problem.parameters,
            free,
            evaluation,
            self.work,
            step=self._done + 1,
            round=self.stage,
            rows=n if size is None else min(size, n),
            logdet="lanczos",
            seconds=self.clock.seconds,
        )

    def fit(self) -> Fit:
        """The model as it stands."""
        free, bound = self.free, self.bound
        if self.current is not None and self.current.accepted is not None:
            free, _, _, bound = self.current.accepted
        gp = self.problem.parameters.unflatten(free)
        return Fit(
            gp=gp,
            Z=pivots(gp, self.problem.X, self.problem.settings.rank),
            v=None,
            bound=bound,
            stop=self.stop or "running",
            message=self.message,
            history=self.history,
            evaluations=self.work.evaluations,
            products=self.work.products,
            seconds=self.clock.seconds,
        )
