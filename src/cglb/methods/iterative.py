"""Iterative GP, the baseline of Wang et al. (2019): a noisy estimate of the evidence, no bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Array, Float

from cglb.linalg import inducing
from cglb.linalg.system import Solver, System
from cglb.methods import estimates
from cglb.methods.base import Conditioned, Evaluation, Method, Prepared
from cglb.methods.estimates import Estimator
from cglb.methods.stages import Stage
from cglb.model import GP
from cglb.optimisers.adam import Adam
from cglb.posteriors.iterative import RELATIVE_RESIDUAL, condition_at

__all__ = ["Iterative"]


@dataclass(frozen=True)
class Iterative(Estimator, Method, name="iterative"):
    """The evidence estimated by CG and random probes (`Estimator` has those settings).

    Training takes three stages, as in the paper:

    - L-BFGS on a part of the rows, with the same probes at every evaluation,
    - Adam on the same rows, with new probes at every evaluation,
    - Adam on all rows, up to the step limit.

    Attributes:
        rate: Adam's learning rate.
        pretrain: steps of L-BFGS and of Adam on a part of the rows; 0 leaves a stage out.
        root_rank: Lanczos steps for the variances of predictions.
    """

    needs_points = False
    noise_floor = 1e-4

    rate: float = 0.1
    pretrain: tuple[int, int] = (10, 10)
    root_rank: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        Adam(self.rate)  # which checks it
        if min(self.pretrain) < 0:
            raise ValueError(f"pretrain must not be negative, found {self.pretrain}.")

    @property
    def solver(self) -> Solver:
        return Solver(jitter=self.jitter)

    def system(
        self,
        gp: GP,
        X: Float[Array, "n d"],
        Z: Float[Array, "m d"] | None,
        prepared: Prepared | None = None,
    ) -> System:
        """At the pivots of the model, whose Nyström matrix preconditions, unless points are given."""
        return super().system(gp, X, self.points_at(gp, X) if Z is None else Z, prepared)

    def prepare(self, system: System) -> Prepared:
        return Prepared("lanczos")

    def evaluate(
        self,
        prepared: Prepared,
        system: System,
        y: Float[Array, " n"],
        v0: Float[Array, "n *k"] | None = None,
        seed: Sequence[int] = (0,),
    ) -> Evaluation | None:
        return estimates.evaluate(self, system, y, seed)

    def condition(
        self, system: System, y: Float[Array, " n"], v0: Float[Array, " n"] | None = None
    ) -> Conditioned:
        tolerance = min(RELATIVE_RESIDUAL, self.cg_tolerance)
        solution, posterior = condition_at(system, y, v0, tolerance, self.root_rank)
        return Conditioned(posterior, solution)

    def stages(self, n: int, part: int | None, joint: bool) -> tuple[Stage, ...]:
        lbfgs, adam = self.pretrain
        first = (
            Stage(self, rows=part, steps=lbfgs, stall=0.0) if lbfgs else None,
            Stage(self, Adam(self.rate), rows=part, steps=adam, stall=0.0) if adam else None,
        )
        last = Stage(self, Adam(self.rate), stall=0.0)
        return (*(stage for stage in first if stage is not None), last)

    @property
    def auto_points(self) -> int:
        return self.rank

    def with_points(self, m: int) -> Iterative:
        return replace(self, rank=m)

    def points_at(self, gp: GP, X: Float[Array, "n d"]) -> Float[Array, "m d"] | None:
        """The pivots of the preconditioner."""
        return inducing.pivot_rows(gp.kernel, X, self.rank)
