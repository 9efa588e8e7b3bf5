"""CGLB (Artemev, Burt and van der Wilk 2021): a lower bound that conjugate gradients make tight."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Array, Float

from cglb.bounds import evidence
from cglb.bounds.logdet import LogdetBound, Side, find
from cglb.bounds.terms import BoundTerms
from cglb.core.errors import NystromError
from cglb.linalg.cg import PREDICTION_NATS, Limits, Solution, Stop
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

__all__ = ["CGLB", "Slopes"]

# CG's step limit in a progressive schedule, and the nats it may cost there: line searches compare values
# that differ by little more than a nat
TRAINING_STEPS, TRAINING_NATS = 400, 0.1


class Slopes(enum.StrEnum):
    """Whose slopes an evaluation gives.

    BOUND: those of the bound with v held fixed, which is the paper's choice.
    SOLUTION: where Q̂ is a poor approximation of K̂ and CG has reached its tolerance, those that the bound
        has at v = K̂⁻¹e (see `evidence.cglb_at_solution`). At low noise, line searches need them.
    """

    BOUND = "bound"
    SOLUTION = "solution"


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
        slopes: "bound" or "solution" (see `Slopes`). A progressive schedule trains with "solution".
    """

    exact_first = padded = True

    logdet: str | LogdetBound = "amgm"
    cg_tolerance: float = 1.0
    cg_max_steps: int = 1000
    precondition: str | Preconditioning = "auto"
    jitter: float = DEFAULT_JITTER
    products: str = "auto"
    slopes: str = Slopes.BOUND

    def __post_init__(self) -> None:
        find(self.logdet, Side.ABOVE)
        if not self.cg_tolerance > 0.0:
            raise ValueError(f"cg_tolerance must be positive, found {self.cg_tolerance}.")
        if self.slopes not in list(Slopes):
            raise ValueError(f"slopes must be one of {', '.join(Slopes)}, found {self.slopes!r}.")
        self.solver  # noqa: B018 (which checks the rest)

    @property
    def solver(self) -> Solver:
        return Solver(
            self.cg_tolerance, self.cg_max_steps, self.precondition, self.products, self.jitter
        )

    @property
    def in_training(self) -> CGLB:
        """With fewer steps of CG: only trials of a line search that go much too far need more, and these
        are rejected all the sooner. And with a tolerance and slopes for line searches."""
        return replace(
            self,
            cg_tolerance=min(self.cg_tolerance, TRAINING_NATS),
            cg_max_steps=min(self.cg_max_steps, TRAINING_STEPS),
            slopes=Slopes.SOLUTION,
        )

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
            bound = self._bound(system, solution)
            system.release()
            terms, (gp_bar, Z_bar) = sparse.value_and_gradient(
                bound, system, y, solution.v, solution.K_hat_v, logdet=logdet
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

    def _bound(self, system: System, solution: Solution) -> Callable[..., BoundTerms]:
        """The function to differentiate: all have the same value."""
        solved = solution.stop is Stop.TOLERANCE and system.preconditioner is not None
        at_solution = self.slopes == Slopes.SOLUTION and solved
        return evidence.cglb_at_solution if at_solution else evidence.cglb_at

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
