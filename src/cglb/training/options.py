"""The options of a fit, in one object that travels inside."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cglb.methods import Exact
from cglb.methods.base import Method
from cglb.methods.stages import EXACT_ROWS, GIVEN, STARTS, Stage, Start, progressive
from cglb.training.free import LOG, TRANSFORMS

__all__ = [
    "ENOUGH",
    "PARTS",
    "STEPS_PER_ROUND",
    "Options",
    "Schedule",
    "check_stages",
    "default_stages",
    "share_until",
]

STEPS_PER_ROUND = 50
# rows to train on before all of them
PARTS = (500, 2500, 10_000)
# nats that inducing points beyond those selected may gain
ENOUGH = 0.1


class Schedule(enum.StrEnum):
    """How a fit is cut into stages if none are given."""

    PROGRESSIVE = "progressive"
    DIRECT = "direct"


@dataclass(frozen=True)
class Options:
    """How a fit is made, in addition to its stages. All are keywords of `train`.

    Attributes:
        num_inducing: how many inducing points are selected greedily at most, if none are given.
        enough: fewer are selected where more could raise the bound by at most this many nats; 0 for
            `num_inducing` in any case.
        optimize_inducing: optimise inducing points by gradient with the hyperparameters (the paper's
            way), instead of selecting them anew in rounds.
        max_steps: accepted steps in all, without those of stages that are `extra`.
        max_seconds: seconds of training at most, without callbacks; None for no limit. It is looked at
            before each evaluation, but each stage takes at least one step.
        steps_per_round: accepted steps between two selections of inducing points at most; fewer if they
            have all but stopped raising the bound.
        schedule: "progressive" searches on few rows from several starts, goes on with the best of them
            on more rows and ends on all; "direct" trains on all rows from the given model, as the paper
            does. A method that has stages of its own is always trained by those.
        parts: rows to train on before all of them in a progressive schedule, growing. Those that are
            not much fewer than all are left out.
        starts: where a progressive schedule begins to search: at the given model and, by default, at
            four others.
        subset: rows that a direct schedule begins on, if that pays. None to begin on all rows.
        floor: as in `Parameters`; None is the method's own.
        fixed: as in `Parameters`.
        priors: log-normal priors by name, as (median, spread of the logarithm), or "dimension" (see
            `cglb.training.priors`). Training then maximises bound + log prior.
        transform: what is free in a positive parameter: its "log", or the paper's "softplus". In steps
            of equal size a softplus reaches tiny values fast, and the noise collapses far more often.
        seed: decides everything that is random.
        checkpoint_seconds: the checkpoint is written at most this often, and at the end.
    """

    num_inducing: int = 512
    enough: float = ENOUGH
    optimize_inducing: bool = False
    max_steps: int = 1000
    max_seconds: float | None = None
    steps_per_round: int = STEPS_PER_ROUND
    schedule: str = Schedule.PROGRESSIVE
    parts: tuple[int, ...] = PARTS
    starts: tuple[Start, ...] = (GIVEN, *STARTS)
    subset: int | None = 10_000
    floor: float | Mapping[str, float] | None = None
    fixed: tuple[str, ...] = ()
    priors: Mapping[str, Any] | str | None = None
    transform: str = LOG.name
    seed: int = 0
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_steps", "steps_per_round", "subset"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, found {value}.")
        if list(self.parts) != sorted(set(self.parts)) or any(part < 2 for part in self.parts):
            raise ValueError(f"parts must be growing numbers of at least 2 rows, found {self.parts}.")
        if not self.starts:
            raise ValueError("starts must name at least one start, such as GIVEN.")
        if self.schedule not in list(Schedule):
            known = ", ".join(Schedule)
            raise ValueError(f"schedule must be one of {known}, found {self.schedule!r}.")
        if self.transform not in TRANSFORMS:
            known = ", ".join(TRANSFORMS)
            raise ValueError(f"transform must be one of {known}, found {self.transform!r}.")

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
            self.enough,
            self.optimize_inducing,
            self.steps_per_round,
            self.fixed,
            self.priors,
            self.transform,
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
    joint = options.optimize_inducing and method.needs_points
    if method.exact_first and options.schedule == Schedule.PROGRESSIVE:
        # inducing points that are given must be no more than the rows of a stage that uses them
        parts = [part for part in options.parts if part <= EXACT_ROWS or part >= given]
        return progressive(method, n, parts, Exact, options.starts, joint)
    part = options.subset
    if part is not None and part < given:
        part = None
    return method.stages(n, part, joint)


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
