"""The budget of steps and seconds, and when a stage or a fit has used it up."""

from __future__ import annotations

from dataclasses import dataclass

from cglb.methods.stages import Stage
from cglb.optimisers.base import Ending
from cglb.training.clock import Clock
from cglb.training.options import share_until
from cglb.training.problem import Problem

__all__ = ["Budget"]


@dataclass(frozen=True)
class Budget:
    """What a stage and its fit may use, and what they have used.

    Attributes:
        problem: has all stages and the limits.
        stage: its number.
        taken: steps of the stage.
        counted: steps of the fit that count towards its limit.
        clock: counts the seconds.
    """

    problem: Problem
    stage: int
    taken: int
    counted: int
    clock: Clock

    def end_of_fit(self) -> Ending | None:
        """The limit that ends the fit, if it is reached."""
        over = not self._stage.extra and self.counted >= self.problem.options.max_steps
        if over or (self._last and self._steps_are_over()):
            return Ending.STEP_LIMIT
        if self.out_of_time() and (self._last or self._share == 1.0):
            return Ending.TIME_LIMIT
        return None

    def stage_is_over(self) -> bool:
        """Whether a stage before the last has had its steps or its share of the budget."""
        if self._last or self.taken == 0:
            return False
        if self._steps_are_over() or self.out_of_time():
            return True
        if self._stage.extra or self._share == 1.0:
            return False
        return self.counted >= round(self._share * self.problem.options.max_steps)

    def out_of_time(self) -> bool:
        """Whether the stage has taken a step and its share of the time is over."""
        return self.taken > 0 and self.clock.expired(self._share)

    def _steps_are_over(self) -> bool:
        """Whether the stage has taken all of its own steps."""
        steps = self._stage.steps
        return steps is not None and self.taken >= steps

    @property
    def _stage(self) -> Stage:
        return self.problem.stages[self.stage]

    @property
    def _last(self) -> bool:
        return self.stage == len(self.problem.stages) - 1

    @property
    def _share(self) -> float:
        """The share of the budget by which the stage has ended at the latest."""
        return share_until(self.problem.stages, self.stage)
