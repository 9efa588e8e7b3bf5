"""SGPR (Titsias 2009): the quadratic term eᵀQ̂⁻¹e of the inducing points alone, without CG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float

from cglb.bounds import evidence
from cglb.bounds.logdet import LogdetBound, Side, find
from cglb.core.errors import NystromError
from cglb.linalg.nystrom import DEFAULT_JITTER
from cglb.linalg.system import Solver, System
from cglb.methods import sparse
from cglb.methods.base import Conditioned, Evaluation, Method, Prepared, finite_or_none
from cglb.methods.stages import Stage
from cglb.posteriors import SparsePosterior

__all__ = ["SGPR"]


@dataclass(frozen=True)
class SGPR(Method, name="sgpr"):
    """log p(y) ≥ −(n/2)log 2π − ½eᵀQ̂⁻¹e − ½·(upper bound on log|K̂|), O(nm²).

    As a stage before CGLB it leads near the solution without CG, which takes many steps far from it.
    It is not a default, because it can lead to a worse optimum.

    Attributes:
        logdet: the upper bound on log|K̂|; "trace" is Titsias' own.
        jitter: relative jitter on Kuu.
    """

    exact_first = padded = True

    logdet: str | LogdetBound = "trace"
    jitter: float = DEFAULT_JITTER

    def __post_init__(self) -> None:
        find(self.logdet, Side.ABOVE)

    @property
    def solver(self) -> Solver:
        return Solver(jitter=self.jitter)

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
            terms, (gp_bar, Z_bar) = sparse.value_and_gradient(
                evidence.sgpr_at, system, y, logdet=logdet
            )
        except (NystromError, np.linalg.LinAlgError):
            return None
        jitter = float(system.nystrom.jitter)
        return finite_or_none(Evaluation(terms, gp_bar, Z_bar, jitter=jitter, system=system))

    def condition(
        self, system: System, y: Float[Array, " n"], v0: Float[Array, " n"] | None = None
    ) -> Conditioned:
        return Conditioned(SparsePosterior.of(system, y))

    def stages(self, n: int, part: int | None, joint: bool) -> tuple[Stage, ...]:
        """A tight log-det bound is reached through looser ones. A step costs O(n): it needs no part."""
        return sparse.tightening(self, joint)
