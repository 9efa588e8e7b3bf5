"""Where a fit is, and how it goes on: rounds of an optimiser through the stages of training.

A round optimises with inducing points, neighbours and blocks held fixed. Between two rounds of a stage
inducing points are selected anew at the hyperparameters reached so far, if that makes the better bound.

CG's start moves on only when the optimiser accepts a step, so within a line search the function is one
fixed function. A snapshot after any accepted step is all that is needed to go on to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from jaxtyping import Array

from cglb.core.precision import to_numpy
from cglb.linalg.system import System
from cglb.methods.base import Evaluation, Prepared
from cglb.methods.stages import Stage
from cglb.optimisers import base as optimisers
from cglb.optimisers.base import Ending, Point
from cglb.training.beginnings import Begin, begin_at, best_begin, inherited
from cglb.training.budget import Budget
from cglb.training.clock import Clock
from cglb.training.endings import converged, effort, effort_per_evaluation, stalled
from cglb.training.evaluations import Evaluations, Trials, recycled
from cglb.training.history import Fit, HistoryRow, Work, evaluation_columns
from cglb.training.problem import Problem

__all__ = ["State"]

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
        budget = self._budget
        if (limit := budget.end_of_fit()) is not None:
            self.ending = limit
        elif self.run is None:
            self._begin_stage()
        elif budget.stage_is_over():
            self._next_stage()
        elif (reason := self._round_is_over()) is not None:
            self._end_round(reason)
        else:
            self._step(on_step)

    def _step(self, on_step: Callable[[HistoryRow], bool]) -> None:
        assert self.run is not None
        trials, expired = Trials(), self._budget.out_of_time
        found = self._optimiser.step(self.run, partial(self._evaluate, trials), expired)
        if found is Ending.NOT_FINITE:
            self.ending = found
        elif found is Ending.TIME_LIMIT:
            return  # `advance` finds out whether it is that of the stage or of the fit
        elif isinstance(found, Ending):
            self._end_round(found)
        else:
            self._accept(found, trials.take(found.point.x))
            if on_step(self.history[-1]):
                self.ending = Ending.CALLBACK

    def _evaluate(self, trials: Trials, x: np.ndarray, draw: int) -> Point | None:
        """The function of the current round."""
        if self._prepared is None:  # resumed inside a round
            assert self.anchor is not None
            self._prepared = self._stage.method.prepare(self.problem.system(self.stage, *self.anchor))
        point = self._evaluations.at(x, self.Z, self._prepared, draw)
        return None if point is None else trials.keep(point)

    def _accept(self, run: optimisers.State, system: System | None) -> None:
        point = run.point
        self._move_to(point, system)
        if self.v is not None:
            self.columns = recycled(self.v, self.columns)
        # what an evaluation holds in addition to its numbers is in this state now
        self.run = replace(run, point=replace(point, found=None))
        self.bounds.append(point.value)
        self.extra += self._stage.extra
        self.history.append(self._row(point.found))

    def _move_to(self, point: Point, system: System | None) -> None:
        self.free, self.Z = self.problem.separate(self.stage, point.x, self.Z)
        self.v, self.bound, self.system = point.found.v, point.value, system

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
        begin = best_begin(self._evaluations, places, None if moved else self.Z, self.system)
        if begin is not None:
            if stage.start is None:
                self.ends = []
            self._begin_round(begin)
            return
        self.free = places[-1]
        if stage.start is not None and not self._last:
            self._next_stage()  # another start may do
        elif not self.history:
            raise ValueError(START_NOT_FINITE)
        else:
            self.ending = Ending.NOT_FINITE

    def _next_stage(self) -> None:
        if self._stage.start is not None and self.run is not None:
            self.ends.append(self.free)
        self.handed = inherited(self.problem, self.stage + 1, self.free, self.run)
        self.free = self.problem.carried(self.free, self.stage, self.stage + 1)
        self.ends = [self.problem.carried(end, self.stage, self.stage + 1) for end in self.ends]
        self.stage, self.number, self.before = self.stage + 1, self.number + 1, self._done
        # values of another function do not compare
        self.run, self.reached, self.gained = None, None, 0.0

    # ---- rounds ----

    def _begin_round(self, begin: Begin) -> None:
        point = begin.point
        self._prepared, self.anchor, self.Z = begin.prepared, (begin.free, begin.Z), begin.Z
        self._move_to(point, point.found.system)
        self.run = self._stage.optimiser.begin(replace(point, found=None), self.run or self.handed)
        self.handed = None
        if self.v is not None and self.columns is not None:  # at the very start CG starts from 0
            self.columns = recycled(self.v, None)
        self.bounds = [point.value]

    def _round_is_over(self) -> Ending | None:
        if stalled(self._stage, self._last, self.bounds, effort(self._stage, self.history)):
            return Ending.STALLED
        limit = self.problem.options.steps_per_round
        full = not self._stage.in_one_go and len(self.bounds) > limit
        return Ending.STEP_LIMIT if full else None

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
        begin = begin_at(self._evaluations, self.free, Z, self.system)
        if begin is not None and begin.point.value > self.bound:
            self._begin_round(begin)
            return True
        self.run = self._stage.optimiser.begin(self.run.point, self.run)
        self.bounds = [self.bound]
        return False

    # ---- what it is at ----

    @property
    def _stage(self) -> Stage:
        return self.problem.stages[self.stage]

    @property
    def _optimiser(self) -> optimisers.Optimiser:
        """That of the stage, which asks for more where evaluations take more steps of CG."""
        return self._stage.optimiser.at_cost(effort_per_evaluation(self._stage, self.history))

    @property
    def _budget(self) -> Budget:
        taken, counted = self._done - self.before, self._done - self.extra
        return Budget(self.problem, self.stage, taken, counted, self.clock)

    @property
    def _evaluations(self) -> Evaluations:
        return Evaluations(self.problem, self.stage, self.number, self.columns, self.work)

    @property
    def _last(self) -> bool:
        return self.stage == len(self.problem.stages) - 1

    @property
    def _done(self) -> int:
        return len(self.history)

    def _row(self, found: Evaluation) -> HistoryRow:
        columns = evaluation_columns(found)
        taken = self.work.take_cg_steps()
        gp = self.problem.unflatten(self.stage, self.free)
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
            parameters=self.problem.by_name(gp),
            log_prior=self.problem.log_prior(gp)[0],
            **columns,
        )
