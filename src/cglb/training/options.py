"""The options of a fit, in one object that travels inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cglb.methods.base import Method, Stage

__all__ = ["STEPS_PER_ROUND", "Options", "check_stages", "default_stages", "share_until"]

STEPS_PER_ROUND = 50


@dataclass(frozen=True)
class Options:
    """How a fit is made, in addition to its stages. All are keywords of `train`.

    Attributes:
        num_inducing: how many inducing points are selected greedily, if none are given.
        optimize_inducing: optimise inducing points by gradient with the hyperparameters (the paper's
            way), instead of selecting them anew in rounds.
        max_steps: accepted steps in all, without those of stages that are `extra`.
        max_seconds: seconds of training at most, without callbacks; None for no limit. It is looked at
            before each evaluation, but each stage takes at least one step.
        steps_per_round: accepted steps between two selections of inducing points at most; fewer if they
            have all but stopped raising the bound.
        subset: rows that training begins on in the default stages of a method, if that pays. None to
            begin on all rows.
        floor: as in `Parameters`; None is the method's own.
        fixed: as in `Parameters`.
        seed: decides everything that is random.
        checkpoint_seconds: the checkpoint is written at most this often, and at the end.
    """

    num_inducing: int = 512
    optimize_inducing: bool = False
    max_steps: int = 100
    max_seconds: float | None = None
    steps_per_round: int = STEPS_PER_ROUND
    subset: int | None = 10_000
    floor: float | Mapping[str, float] | None = None
    fixed: tuple[str, ...] = ()
    seed: int = 0
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_steps", "steps_per_round", "subset"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, found {value}.")

        if self.max_seconds is not None and not self.max_seconds > 0.0:
            raise ValueError(
                f"max_seconds must be positive, or None for no limit, found {self.max_seconds}."
            )

    def path(self, stages: tuple[Stage, ...]) -> tuple[Any, ...]:
        """What decides the way a fit takes. Limits only say where on this way it ends, unless a stage
        ends at its share of the steps."""
        shared = any(share_until(stages, i) < 1.0 for i in range(len(stages)) if not stages[i].extra)
        return (
            stages,
            self.num_inducing,
            self.optimize_inducing,
            self.steps_per_round,
            self.fixed,
            self.seed,
            self.max_steps if shared else None,
        )


def default_stages(method: Method, n: int, given: int, options: Options) -> tuple[Stage, ...]:
    """The method's own stages for n rows.

    Args:
        method: what to train with.
        n: training rows.
        given: how many inducing points are given; a part of the rows must have as many.
        options: those of the fit.
    """
    part = options.subset
    if part is not None and part < given:
        part = None
    return method.stages(n, part, options.optimize_inducing and method.needs_points)


def check_stages(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages, if their shares reach all of the budget.

    Raises:
        ValueError: if they do not, or if there is no stage.
    """
    shares = [stage.share for stage in stages if not stage.extra]
    if sum(shares) < 1.0 - 1e-6:
        raise ValueError(f"stages need shares of the budget that sum to 1 or more, found {shares}.")
    return tuple(stages)


def share_until(stages: tuple[Stage, ...], index: int) -> float:
    """The share of the budget by which a stage has ended at the latest; 1 if only the budget ends it."""
    if stages[index].extra:
        return stages[index].share
    total = sum(stage.share for stage in stages[: index + 1] if not stage.extra)
    return total if total < 1.0 - 1e-6 else 1.0
