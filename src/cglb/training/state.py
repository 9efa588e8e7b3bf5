"""Where a fit is, and how it goes on: rounds of an optimiser through the stages of training.

A round optimises with inducing points, neighbours and blocks held fixed. Between two rounds of a stage
inducing points are selected anew at the hyperparameters reached so far, if that makes the better bound.

CG's start moves on only when the optimiser accepts a step, so within a line search the function is one
fixed function. A snapshot after any accepted step is all that is needed to go on to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cglb.core.precision import to_numpy
from cglb.linalg.system import System
from cglb.methods.base import Evaluation, Prepared
from cglb.methods.stages import Stage
from cglb.optimisers import base as optimisers
from cglb.optimisers.base import Ending, Point
from cglb.training.beginnings import Begin, Trials, with_less_noise, with_lost_columns
from cglb.training.clock import Clock
from cglb.training.endings import converged, stalled
from cglb.training.history import Fit, HistoryRow, Work, evaluation_columns
from cglb.training.options import share_until
from cglb.training.problem import Problem

__all__ = ["START_NOT_FINITE", "State"]

# solutions of CG that the next evaluation starts from: along a smooth path three extrapolate it, and a
# product with three vectors costs little more than with one
RECYCLED = 3
# products with K̂ that take as long as all else in an evaluation
PRODUCTS = 35
START_NOT_FINITE = (
    "The bound is not finite at the starting point. Look at the units of X and y, or start from larger "
    "noise."
)


@dataclass
class State:
    """Where a fit is.

    Attributes:
        problem: what does not change.
        clock: counts the time.
        free: the hyperparameters, as a free vector.
        Z: inducing points, [m, d].
        v: CG's newest solution, [n].
        columns: where CG starts, [n, 3].
        bound: the value at the current point, with the log prior.
        anchor: (free, Z) for which neighbours and blocks were made.
        run: the optimiser's state; None at the start of a stage.
        handed: that of the stage before, whose curvature the next one begins with.
        bounds: of the current round, at its start and after each step.
        reached: the bound at the end of the last round of this stage.
        gained: by this stage in its finished rounds.
        stage: its number.
        number: of the round.
        before: steps before this stage.
        extra: steps that do not count towards the limit.
        ends: where the stages with a start ended, as free vectors of their stage, [k, p].
        history: one row per accepted step.
        work: what has been computed.
        ending: why the fit stopped; None while it runs.
        system: of the newest accepted evaluation.
    """

    problem: Problem
    clock: Clock
    free: np.ndarray
    Z: Array | None = None
    v: Array | None = None
    columns: Array | None = None
    bound: float = -np.inf
    anchor: tuple[np.ndarray, Array | None] | None = None
    run: optimisers.State | None = None
    handed: optimisers.State | None = None
    bounds: list[float] = field(default_factory=list)
    reached: float | None = None
    gained: float = 0.0
    stage: int = 0
    number: int = 0
    before: int = 0
    extra: int = 0
    ends: list[np.ndarray] = field(default_factory=list)
    history: list[HistoryRow] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    ending: Ending | None = None
    system: System | None = None
    _prepared: Prepared | None = None
    _trials: Trials = field(default_factory=dict)

    # ---- what it gives ----

    def fit(self) -> Fit:
        """The model as it stands."""
        problem, method = self.problem, self._stage.method
        whole = problem.rows(self.stage) == problem.n
        gp = problem.unflatten(self.stage, self.free)
        rows = problem.data(len(problem.stages) - 1)
        Z = self.Z if method.needs_points else rows.plain(method.points_at(rows.model(gp), rows.X))
        return Fit(
            gp=to_numpy(gp),
            Z=to_numpy(Z),
            v=problem.data(self.stage).solution(gp, self.v) if whole else None,
            bound=self.bound - problem.log_prior(gp)[0],
            stop=self.ending or Ending.RUNNING,
            history=self.history,
            evaluations=self.work.evaluations,
            products=self.work.products,
            seconds=self.clock.seconds,
            system=self.system if whole else None,
        )

    # ---- one thing at a time ----

    def advance(self, on_step: Callable[[HistoryRow], bool]) -> None:
        """Take the next step, or do what comes between two steps.

        All decisions are made from what a snapshot holds, so that a resumed fit makes the same ones.
        """
        counted, limit = self._done - self.extra, self.problem.options.max_steps
        if (not self._stage.extra and counted >= limit) or (self._last and self._steps_are_over()):
            self.ending = Ending.STEP_LIMIT
        elif self._out_of_time() and (self._last or self._share == 1.0):
            self.ending = Ending.TIME_LIMIT
        elif self.run is None:
            self._begin_stage()
        elif self._stage_is_over():
            self._next_stage()
        elif (reason := self._round_is_over()) is not None:
            self._end_round(reason)
        else:
            self._step(on_step)

    def _step(self, on_step: Callable[[HistoryRow], bool]) -> None:
        assert self.run is not None
        found = self._optimiser.step(self.run, self._evaluate, self._out_of_time)
        if found is Ending.NOT_FINITE:
            self.ending = found
        elif found is Ending.TIME_LIMIT:
            return  # `advance` finds out whether it is that of the stage or of the fit
        elif isinstance(found, Ending):
            self._end_round(found)
        else:
            self._accept(found)
            if on_step(self.history[-1]):
                self.ending = Ending.CALLBACK

    def _accept(self, run: optimisers.State) -> None:
        point = run.point
        self._move_to(point)
        if self.v is not None:
            self.columns = _recycle(self.v, self.columns)
        # what an evaluation holds besides its numbers is in this state now
        self.run = replace(run, point=replace(point, found=None))
        self.bounds.append(point.value)
        self.extra += self._stage.extra
        self.history.append(self._row(point.found))

    def _move_to(self, point: Point) -> None:
        self.free, self.Z = self.problem.separate(self.stage, point.x, self.Z)
        self.v, self.bound = point.found.v, point.value
        _, self.system = self._trials.get(point.x.tobytes(), (0.0, None))
        self._trials = {}

    # ---- stages ----

    def _begin_stage(self) -> None:
        """Begin at the stage's own start, at the best end of the searches, or where the last ended."""
        stage = self._stage
        moved = self.stage == 0 or self.problem.rows(self.stage) != self.problem.rows(self.stage - 1)
        elsewhere = stage.start is not None or self.ends
        if moved or elsewhere or not stage.method.needs_points:
            self.v = self.columns = None
        if elsewhere:
            self.Z = self.system = None
        places = self.ends or [self.free]
        if stage.start is not None:
            places = [self.problem.start(self.stage)]
        found = [begin for free in places if (begin := self._first(free, moved)) is not None]
        if found:
            best = max(found, key=lambda begin: begin.point.value)
            best = with_less_noise(self.problem, self.stage, best, self._moved)
            if stage.brings_back:
                best = with_lost_columns(self.problem, self.stage, best, self._moved)
            self.free, self._trials = best.free, best.trials
            if stage.start is None:
                self.ends = []
            self._begin_round(best.prepared, best.Z, best.point)
        elif stage.start is not None and not self._last:
            self._next_stage()  # another start may do
        elif not self.history:
            raise ValueError(START_NOT_FINITE)
        else:
            self.ending = Ending.NOT_FINITE

    def _first(self, free: np.ndarray, moved: bool) -> Begin | None:
        """Select inducing points and evaluate there; None if that is not finite."""
        problem, stage = self.problem, self._stage
        self.free = free
        candidates: list[Array | None] = [None]
        if stage.method.needs_points:
            fresh = moved or self.Z is None
            kept = problem.Z if fresh else self.Z
            # given points are kept at the start, those of a joint optimisation always
            if kept is not None and (fresh or stage.joint):
                candidates = [kept]
            else:
                selected = problem.select(free, self.stage, self.number)
                candidates = [selected] if kept is None else [selected, kept]
        for Z in candidates:
            prepared, point = self._try(Z)
            if point is not None:
                return Begin(free, prepared, Z, point, self._trials)
        return None

    def _moved(self, begin: Begin, free: np.ndarray) -> Begin | None:
        """The same beginning with other hyperparameters; None if the bound is not finite there."""
        self.free = free
        system = self.problem.system(self.stage, free, begin.Z, begin.prepared)
        x = self.problem.join(self.stage, free, begin.Z)
        point = self._evaluated(begin.prepared, system, x, 0)
        return None if point is None else begin._replace(free=free, point=point, trials=self._trials)

    def _next_stage(self) -> None:
        if self._stage.start is not None and self.run is not None:
            self.ends.append(self.free)
        self.handed = self._curvature()
        self.free = self.problem.carried(self.free, self.stage, self.stage + 1)
        self.ends = [self.problem.carried(end, self.stage, self.stage + 1) for end in self.ends]
        self.stage, self.number, self.before = self.stage + 1, self.number + 1, self._done
        # values of another function do not compare
        self.run, self.reached, self.gained = None, None, 0.0

    def _curvature(self) -> optimisers.State | None:
        """What the next stage can know of its curvature: on more rows it is that much larger."""
        stage, following = self._stage, self.problem.stages[self.stage + 1]
        if self.run is None or not following.inherits:
            return None
        problem = self.problem
        factor = problem.rows(self.stage + 1) / problem.rows(self.stage)
        return stage.optimiser.scaled(self.run, factor, problem.same_meaning(self.free, self.stage))

    def _stage_is_over(self) -> bool:
        """Whether a stage before the last has had its steps or its share of the budget."""
        if self._last or self._done == self.before:
            return False
        if self._steps_are_over() or self._out_of_time():
            return True
        if self._stage.extra or self._share == 1.0:
            return False
        return self._done - self.extra >= round(self._share * self.problem.options.max_steps)

    def _steps_are_over(self) -> bool:
        """Whether the stage has taken all of its own steps."""
        steps = self._stage.steps
        return steps is not None and self._done - self.before >= steps

    def _out_of_time(self) -> bool:
        """Whether the stage has taken a step and its share of the time is over."""
        return self._done > self.before and self.clock.expired(self._share)

    @property
    def _share(self) -> float:
        """The share of the budget by which the stage has ended at the latest."""
        return share_until(self.problem.stages, self.stage)

    # ---- rounds ----

    def _begin_round(self, prepared: Prepared, Z: Array | None, point: Point) -> None:
        self._prepared, self.anchor, self.Z = prepared, (self.free, Z), Z
        self._move_to(point)
        self.run = self._stage.optimiser.begin(replace(point, found=None), self.run or self.handed)
        self.handed = None
        if self.v is not None and self.columns is not None:  # at the very start CG starts from 0
            self.columns = _recycle(self.v, None)
        self.bounds = [point.value]

    def _round_is_over(self) -> Ending | None:
        evaluations, products = self._newest_work()
        effort = max(evaluations, products / PRODUCTS)
        if stalled(self._stage, self._last, self.bounds, effort):
            return Ending.STALLED
        limit = self.problem.options.steps_per_round
        full = not self._stage.in_one_go and len(self.bounds) > limit
        return Ending.STEP_LIMIT if full else None

    @property
    def _optimiser(self) -> optimisers.Optimiser[Any]:
        """That of the stage, which asks for more where evaluations take more steps of CG."""
        evaluations, products = self._newest_work()
        return self._stage.optimiser.at_cost(max(1.0, products / PRODUCTS / max(1, evaluations)))

    def _newest_work(self) -> tuple[int, int]:
        """Evaluations and products of the steps by which a round is judged."""
        rows = self.history[-1 - self._stage.window :]
        if not rows:
            return 0, 0
        first, last = rows[0], rows[-1]
        return last["evaluations"] - first["evaluations"], last["products"] - first["products"]

    def _end_round(self, reason: Ending) -> None:
        """Go to the next round, to the next stage, or end."""
        gain = self.bounds[-1] - (self.bounds[0] if self.reached is None else self.reached)
        self.gained += gain
        self.reached = self.bounds[-1]
        if reason is Ending.STEP_LIMIT or not converged(self._stage, self._last, gain, self.gained):
            changed = self._next_round()
            # Steps that gained too little to matter, and new points that gain no more or after which
            # steps are not worth it either: that is the end.
            little = reason in (Ending.STALLED, Ending.CONVERGED)
            same = self.bound - self.reached < self._stage.gain
            enough = little and (same or self._optimiser.promises_little(self.run))
            if not enough and (changed or reason in (Ending.STEP_LIMIT, Ending.STALLED)):
                return
        if not self._last:
            self._next_stage()
        else:
            self.ending = Ending.CONVERGED if reason is Ending.STALLED else reason

    def _next_round(self) -> bool:
        """New inducing points at the current hyperparameters, if they make the better bound.

        Their evaluation is the start of the next round. Returns whether the function has changed.
        """
        assert self.run is not None
        self.number += 1
        Z = self.problem.select(self.free, self.stage, self.number)
        prepared, found = self._try(Z)
        if found is not None and found.value > self.bound:
            self._begin_round(prepared, Z, found)
            return True
        self.run = self._stage.optimiser.begin(self.run.point, self.run)
        self.bounds = [self.bound]
        return False

    # ---- evaluations ----

    def _try(self, Z: Array | None) -> tuple[Prepared, Point | None]:
        """Prepare and evaluate the current hyperparameters with these inducing points."""
        system = self._system_at(Z)
        prepared = self._stage.method.prepare(system)
        x = self.problem.join(self.stage, self.free, Z)
        return prepared, self._evaluated(prepared, system, x, 0)

    def _system_at(self, Z: Array | None) -> System:
        """That of the current hyperparameters: the one at hand if it has the same inducing points."""
        known = self.system
        if known is None or known.X is not self.problem.data(self.stage).X or not self._fits(known, Z):
            return self.problem.system(self.stage, self.free, Z)
        return known.again(self._stage.method.solver)

    def _fits(self, known: System, Z: Array | None) -> bool:
        """Whether a system at the current hyperparameters has the points that the stage asks for."""
        if Z is not None:
            return np.array_equal(self.problem.data(self.stage).plain(known.Z), Z)
        return self.stage > 0 and self.problem.stages[self.stage - 1].method == self._stage.method

    def _evaluate(self, x: np.ndarray, draw: int) -> Point | None:
        """The function of the current round."""
        if self._prepared is None:  # resumed inside a round
            assert self.anchor is not None
            self._prepared = self._stage.method.prepare(self.problem.system(self.stage, *self.anchor))
        free, Z = self.problem.separate(self.stage, x, self.Z)
        system = self.problem.system(self.stage, free, Z, self._prepared)
        return self._evaluated(self._prepared, system, x, draw)

    def _evaluated(self, prepared: Prepared, system: System, x: np.ndarray, draw: int) -> Point | None:
        point = self.problem.evaluate(self.stage, prepared, system, x, self.columns, draw)
        found: Evaluation | None = None if point is None else point.found
        self.work.count(found)
        if point is None or found is None:
            return None
        # a system can be large: of a line search only the best so far and the newest are kept, one of
        # which it accepts
        best = sorted(self._trials.items(), key=lambda trial: trial[1][0])[-1:]
        self._trials = {**dict(best), x.tobytes(): (point.value, found.system)}
        return replace(point, found=replace(found, system=None)) if found.system is not None else point

    # ---- numbers ----

    @property
    def _stage(self) -> Stage:
        return self.problem.stages[self.stage]

    @property
    def _last(self) -> bool:
        return self.stage == len(self.problem.stages) - 1

    @property
    def _done(self) -> int:
        return len(self.history)

    def _row(self, found: Evaluation) -> HistoryRow:
        columns = evaluation_columns(found)
        taken = self.work.take_cg_steps()
        assert self._prepared is not None
        return HistoryRow(
            step=self._done + 1,
            stage=self.stage,
            round=self.number,
            rows=self.problem.rows(self.stage),
            extra=self._stage.extra,
            method=self._stage.method.name,
            logdet_bound=self._prepared.label,
            cg_steps_by_evaluation=None if found.cg_stop is None else taken,
            evaluations=self.work.evaluations,
            products=self.work.products,
            seconds=self.clock.seconds,
            parameters=self.problem.natural(self.stage, self.free),
            log_prior=self.problem.log_prior(self.problem.unflatten(self.stage, self.free))[0],
            **columns,
        )


@jax.jit
def _recycle(v: Array, older: Array | None) -> Array:
    """The newest solutions as columns [n, RECYCLED], the newest first; 0 where there are none yet."""
    if older is None:
        older = jnp.zeros((v.shape[0], RECYCLED), dtype=v.dtype)
    return jnp.concatenate([v[:, None], older[:, :-1]], axis=1)
