"""The exact log marginal likelihood by Cholesky."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float

from cglb.bounds.terms import BoundTerms
from cglb.linalg import dense
from cglb.linalg.system import System
from cglb.methods.base import (
    FLOAT,
    Conditioned,
    Evaluation,
    Method,
    Prepared,
    finite_or_none,
)
from cglb.methods.stages import Stage, first_on_part
from cglb.posteriors.cholesky import exact_at

__all__ = ["Exact", "memory_needed"]

# arrays [n, n] that are alive at once
ALIVE = 3


@dataclass(frozen=True)
class Exact(Method, name="exact"):
    """log p(y) = −(n/2)log 2π − ½eᵀK̂⁻¹e − ½log|K̂|: O(n³) time, O(n²) memory."""

    needs_points = False
    exact_first = True
    is_exact = True

    def prepare(self, system: System) -> Prepared:
        return Prepared("exact")

    def evaluate(
        self,
        prepared: Prepared,
        system: System,
        y: Float[Array, " n"],
        v0: Float[Array, "n *k"] | None = None,
        seed: Sequence[int] = (0,),
    ) -> Evaluation | None:
        try:
            quadratic, logdet, gp_bar = dense.value_and_gradient(system.gp, system.X, y)
        except np.linalg.LinAlgError:
            return None
        terms = BoundTerms.of(system.count, quadratic, logdet)
        return finite_or_none(Evaluation(terms, gp_bar))

    def condition(
        self, system: System, y: Float[Array, " n"], v0: Float[Array, " n"] | None = None
    ) -> Conditioned:
        return Conditioned(exact_at(system.gp, system.X, y))

    def stages(self, n: int, part: int | None, joint: bool) -> tuple[Stage, ...]:
        """As for CGLB, the first steps on many rows are taken on a part of them."""
        stage = Stage(self, stall=0.0)
        return (*first_on_part(stage, n, part), stage)

    def points(self, n: int, wanted: int | str, memory_gb: float | None) -> int:
        """None: what must fit are arrays [n, n]."""
        needed = memory_needed(n)
        if memory_gb is not None and needed > memory_gb:
            raise ValueError(
                f"method='exact' needs about {needed:.1f} GB for {n} rows, more than memory_gb="
                f"{memory_gb}. Use method='cglb'."
            )
        return 0


def memory_needed(n: int) -> float:
    """GB for n rows."""
    return ALIVE * FLOAT * n * n / 2**30
