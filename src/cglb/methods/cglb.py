"""CGLB (Artemev, Burt and van der Wilk 2021): a lower bound that conjugate gradients make tight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Array, Float

from cglb.bounds import evidence
from cglb.bounds.logdet import LogdetBound, Side, find
from cglb.core.errors import NystromError
from cglb.linalg.cg import PREDICTION_NATS, Limits
from cglb.linalg.nystrom import DEFAULT_JITTER
from cglb.linalg.preconditioners import Preconditioning
from cglb.linalg.system import Solver, System
from cglb.methods import sparse
from cglb.methods.base import (
    Conditioned,
    Evaluation,
    Method,
    Prepared,
    finite_or_none,
)
from cglb.methods.stages import Stage, first_on_part
from cglb.posteriors import SparsePosterior

__all__ = ["CGLB"]

# CG's step limit in a progressive schedule, and the nats it may cost there: line searches compare values
# that differ by little more than a nat, and with a stored matrix some more steps cost little
TRAINING_STEPS, TRAINING_NATS = 400, 0.1


@dataclass(frozen=True)
class CGLB(Method, name="cglb"):
    """log p(y) ≥ −(n/2)log 2π − ½(rᵀQ̂⁻¹r + 2eᵀv − vᵀK̂v) − ½·(upper bound on log|K̂|), v by CG.

    Attributes:
        logdet: the upper bound on log|K̂|; "auto" is the tightest that pays.
        cg_tolerance: nats that CG may cost at each evaluation.
        cg_max_steps: CG's step limit. Reaching it loosens the bound and is recorded.
        precondition: "nystrom", "chain", "auto" (the chain if the inducing points leave much to do), or
            another registered preconditioning.
        jitter: relative jitter on Kuu.
        products: the precision of products inside CG: "auto", "float64" or "float32"; the certificate
            is in float64 (see `Solver`).
    """

    exact_first = padded = True

    logdet: str | LogdetBound = "amgm"
    cg_tolerance: float = 1.0
    cg_max_steps: int = 1000
    precondition: str | Preconditioning = "auto"
    jitter: float = DEFAULT_JITTER
    products: str = "auto"

    def __post_init__(self) -> None:
        find(self.logdet, Side.ABOVE)
        if not self.cg_tolerance > 0.0:
            raise ValueError(f"cg_tolerance must be positive, found {self.cg_tolerance}.")
        self.solver  # noqa: B018 (which checks the rest)

    @property
    def solver(self) -> Solver:
        return Solver(
            self.cg_tolerance, self.cg_max_steps, self.precondition, self.products, self.jitter
        )

    @property
    def in_training(self) -> CGLB:
        """With fewer steps of CG: only trials of a line search that go much too far need more, and these
        are rejected all the sooner. And with a tolerance for line searches."""
        tolerance = min(self.cg_tolerance, TRAINING_NATS)
        return replace(self, cg_tolerance=tolerance, cg_max_steps=min(self.cg_max_steps, TRAINING_STEPS))

    def prepare(self, system: System) -> Prepared:
        return sparse.prepare(self.logdet, system)

    def evaluate(
        self,
        prepared: Prepared,
        system: System,
        y: Float[Array, " n"],
        v0: Float[Array, "n *k"] | None = None,
        seed: Sequence[int] = (0,),
    ) -> Evaluation | None:
        logdet = sparse.prepared_bound(prepared)
        try:
            solution = system.solve(system.residual(y), v0)
            system.release()
            terms, (gp_bar, Z_bar) = sparse.value_and_gradient(
                evidence.cglb_at, system, y, solution.v, solution.K_hat_v, logdet=logdet
            )
        except (NystromError, np.linalg.LinAlgError):
            return None
        return finite_or_none(
            Evaluation(
                terms,
                gp_bar,
                Z_bar,
                solution.v,
                slack=float(solution.slack),
                jitter=float(system.nystrom.jitter),
                cg_steps=solution.steps,
                products=solution.products,
                cg_stop=solution.stop,
                system=system,
            )
        )

    def condition(
        self, system: System, y: Float[Array, " n"], v0: Float[Array, " n"] | None = None
    ) -> Conditioned:
        limits = Limits(min(PREDICTION_NATS, self.cg_tolerance), self.cg_max_steps)
        solution = system.solve(system.residual(y), v0, limits)
        return Conditioned(SparsePosterior.of(system, y, solution), solution)

    def stages(self, n: int, part: int | None, joint: bool) -> tuple[Stage, ...]:
        """A tight log-det bound is reached through looser ones.

        On many rows the first steps, which are the most expensive (CG starts from nothing, far from the
        solution), are taken on a part of them, in addition to the others.
        """
        stages = sparse.tightening(self, joint)
        return (*first_on_part(stages[0], n, None if joint else part), *stages)
