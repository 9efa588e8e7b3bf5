"""Rounds of L-BFGS through the stages of a schedule: where a fit is, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cglb import schedule as stages
from cglb.clock import Clock
from cglb.fitting import Fit, Work, history_row
from cglb.lbfgs import Round, RoundResult
from cglb.model import GP
from cglb.objective import Evaluation
from cglb.problem import Problem
from cglb.schedule import WITHOUT_CG

__all__ = ["State"]

# a round of L-BFGS that converged and gained less than this many nats ends the training
SMALLEST_GAIN = 0.1
# why a round ended: its stage has had its share of the time
STAGE_OVER = "stage over"
# a stage has converged when its newest round gained less than this share of all the stage has gained
STAGE_SHARE = 0.05


@dataclass
class State:
    """Where a fit is: at the start of a round, and what the round has seen so far."""

    problem: Problem
    clock: Clock
    free: Array = field(init=False)
    Z: Array | None = field(init=False, default=None)
    v: Array | None = field(init=False, default=None)
    bound: float = field(init=False, default=-np.inf)
    reached: float | None = None  # the bound at the end of the last round of this stage
    gained: float = 0.0  # by this stage
    metric: np.ndarray | None = None  # curvature that a round hands on to the next
    number: int = 0
    stage: int = 0
    logdet_name: str = ""
    current: Round | None = None
    resumed: tuple[dict[str, Any], dict[str, np.ndarray]] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    stop: str | None = None
    message: str = ""

    def follow(self, first: Fit) -> None:
        """Go on after the steps on a part of the rows."""
        self.history = first.history
        self.number = first.history[-1]["round"] + 1 if first.history else 0
        self.work = Work(first.evaluations, first.products)
        self.clock.add(first.seconds)

    def begin(self, gp: GP, Z: Array | None, saved: Any) -> None:
        self.free = self.problem.parameters.flatten(gp)
        if saved is None:
            if self.problem.sparse(0):
                with self.clock.running():
                    self.Z = Z if Z is not None else self.problem.select(gp, self.number)
            return
        document, arrays = saved
        self.free = jnp.asarray(arrays["free"])
        self.Z = jnp.asarray(arrays["Z"]) if "Z" in arrays else None
        self.v = jnp.asarray(arrays["v_start"]) if "v_start" in arrays else None
        self.metric = arrays.get("metric")
        self.number, self.stage = document["round"], document["stage"]
        self.history = document["history"]
        self.bound = document["bound"]
        self.reached, self.gained = document["reached"], document["gained"]
        self.work = Work(document["evaluations"], document["products"])
        self.stop, self.message = document["stop"], document["message"]
        self.clock.add(document["seconds"])
        self.resumed = saved

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """All that is needed to go on: the round's start and the values and gradients since."""
        arrays = {"free": np.asarray(self.free)}
        if self.Z is not None:
            arrays["Z"] = np.asarray(self.Z)
        if self.v is not None:
            arrays["v_start"] = np.asarray(self.v)
        if self.metric is not None:
            arrays["metric"] = self.metric
        document: dict[str, Any] = {
            "round": self.number,
            "stage": self.stage,
            "history": self.history,
            "bound": self.bound,
            "reached": self.reached,
            "gained": self.gained,
            "evaluations": self.work.evaluations,
            "products": self.work.products,
            "seconds": self.clock.seconds,
            "stop": None,
            "message": "",
        }
        if self.current is not None:  # an open round, which a restarted fit replays
            arrays |= self.current.log_arrays()
        else:
            document |= {"stop": self.stop, "message": self.message}
        return document, arrays

    def run_round(self, max_steps: int, steps_per_round: int, on_step: Callable[[Any], bool]) -> None:
        """One L-BFGS run from the current point, then the choice of the next round's Z."""
        problem = self.problem
        first = self._done
        replay = None
        if self.resumed is not None:
            replay = {key: value for key, value in self.resumed[1].items() if key.startswith("log_")}
            first -= int(replay["log_steps"]) if "log_steps" in replay else 0
            self.resumed = None
        stage_end = self._stage_end(max_steps)
        limit = max(stage_end - first, 1)
        if not problem.joint(self.stage):
            limit = min(steps_per_round, limit)
        if replay:
            limit = max(limit, int(replay["log_steps"]))
        with self.clock.running():
            prepared = problem.prepare(self.free, self.Z, self.stage)
        self.logdet_name = WITHOUT_CG if self._without_cg else prepared.logdet.name
        self.current = Round(
            evaluate=partial(problem.evaluate, prepared),
            unflatten=problem.parameters.unflatten,
            free=self.free,
            Z=self.Z,
            v=self.v,
            optimize_inducing=problem.optimize_inducing and problem.sparse(self.stage),
            replay=replay,
            clock=self.clock,
            work=self.work,
            metric=self.metric,
            stall=self._stall,
        )

        def accepted(evaluation: Evaluation, free: Array) -> str | None:
            self.history.append(self._row(evaluation, free))
            if on_step(self.history[-1]):
                return "callback"
            return STAGE_OVER if self._stage_time_over else None

        result = self.current.run(limit, accepted)
        gain = result.bound - (self.current.first if self.reached is None else self.reached)
        finished = self._finished(result, gain)
        self._decide(result, finished, max_steps)
        if self.stop in ("step limit", "time limit"):
            return  # the round stays open, so that its checkpoint can go on with more steps or time
        self.free, self.Z, self.v = result.free, result.Z, result.v
        self.bound = self.reached = result.bound
        self.gained += gain
        if not problem.optimize_inducing:  # else rounds are few and x is as large as Z
            self.metric = self.current.next_metric()
        self.current = None
        if self.stop is None:
            self.number += 1
            if finished or self._done >= stage_end or result.stop == STAGE_OVER:
                self.stage = min(self.stage + 1, self._last_stage)
                # values and curvature of another bound do not compare
                self.bound, self.reached, self.gained = -np.inf, None, 0.0
                self.metric = None
            if not problem.sparse(self.stage):
                self.Z = self.v = None
            elif not problem.joint(self.stage):
                self._reselect()

    def _finished(self, result: RoundResult, gain: float) -> bool:
        """Whether the stage has converged; gain: of the round, with that of its selection of Z."""
        if result.stop not in ("converged", "stalled"):
            return False
        if self.problem.joint(self.stage) or self._without_cg:
            return True
        least = SMALLEST_GAIN
        if self.stage < self._last_stage:
            least = max(least, STAGE_SHARE * (self.gained + gain))
        return gain < least

    @property
    def _without_cg(self) -> bool:
        return self.problem.schedule[self.stage][0] == WITHOUT_CG

    @property
    def _stall(self) -> float:
        """When a round of this stage ends; never in one that is optimised in one go to the end."""
        if self.problem.joint(self.stage) and self.stage == self._last_stage:
            return 0.0
        return stages.stall_share(self.problem.schedule, self.stage)

    @property
    def _done(self) -> int:
        return self.history[-1]["step"] if self.history else 0

    @property
    def _last_stage(self) -> int:
        return len(self.problem.schedule) - 1

    def _stage_end(self, max_steps: int) -> int:
        """The step at which the current stage ends at the latest."""
        if self.stage == self._last_stage:
            return max_steps
        return round(max_steps * stages.share_until(self.problem.schedule, self.stage))

    @property
    def _stage_time_over(self) -> bool:
        """Whether a stage, not the last, has had its share of the time there is."""
        if self.clock.limit is None or self.stage == self._last_stage:
            return False
        return (
            self.clock.seconds
            >= stages.share_until(self.problem.schedule, self.stage) * self.clock.limit
        )

    def _decide(self, result: RoundResult, finished: bool, max_steps: int) -> None:
        done = self._done
        if result.stop in ("callback", "time limit"):
            self.stop, self.message = result.stop, result.message
        elif done >= max_steps:
            self.stop = "step limit"
            self.message = (
                f"Stopped after {done} steps, as asked; more steps may raise the bound further."
            )
        elif finished and self.stage == self._last_stage:
            self.stop, self.message = "converged", result.message

    def _reselect(self) -> None:
        """New inducing points at the current hyperparameters, if they make the better bound."""
        problem = self.problem
        gp = problem.parameters.unflatten(self.free)
        with self.clock.running():
            Z = problem.select(gp, self.number)
            prepared = problem.prepare(self.free, Z, self.stage)
            found = problem.evaluate(prepared, self.free, Z, self.v)
        self.work.count(found)
        if found is not None and found.value > self.bound:
            self.Z, self.v, self.bound = Z, found.v, found.value

    def _row(self, evaluation: Evaluation, free: Array) -> dict[str, Any]:
        return history_row(
            self.problem.parameters,
            free,
            evaluation,
            self.work,
            step=self._done + 1,
            round=self.number,
            rows=self.problem.X.shape[0],
            logdet=self.logdet_name,
            seconds=self.clock.seconds,
        )

    def fit(self) -> Fit:
        """The model as it stands."""
        free, Z, v = self.free, self.Z, self.v
        bound = self.bound
        if self.current is not None and self.current.accepted is not None:
            free, Z, v, bound = self.current.accepted
        return Fit(
            gp=self.problem.parameters.unflatten(free),
            Z=Z,
            v=v,
            bound=bound,
            stop=self.stop or "running",
            message=self.message,
            history=self.history,
            evaluations=self.work.evaluations,
            products=self.work.products,
            seconds=self.clock.seconds,
        )
