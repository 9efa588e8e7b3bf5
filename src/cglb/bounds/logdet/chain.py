"""Log-determinant bounds by the chain rule: tighter than any bound that uses only the diagonal.

Let R = K̂/σ² − A₁ᵀA₁ (A₁: the first m of the M inducing points, so R ⪰ I), with rows cut into blocks.
log|R| = Σ_b log|Cov_R(b | all earlier blocks)|, and conditioning on less can only enlarge a covariance:

    log|R| ≤ Σ_b log|Cov_R(b | N(b))|      for any sets N(b) of earlier rows.

With the price of the inducing points (A₁, A₂: the first m and the others; R ⪰ I + A₂ᵀA₂)

    log|K̂| = n log σ² + log|R| + log|I + A₁R⁻¹A₁ᵀ|
            ≤ n log σ² + Σ_b log|Cov_R(b | N(b))| + log|I + AAᵀ| − log|I + A₂A₂ᵀ|.

Special cases: blocks of one row without neighbours are `hadamard`; blocks without neighbours are
Fischer's inequality; m = 0 is Vecchia's log-determinant. Any sets of neighbours give a bound, so they
are chosen by distance in scaled inputs and held fixed in gradients.

Cost with blocks of p rows and k neighbours: about 4·n·m·(p + k)²/p flops for value and gradient.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from cglb.bounds.logdet.base import LogdetBound
from cglb.compute import shards
from cglb.compute.shards import Tall
from cglb.linalg.blocks import BLOCK, NEIGHBOURS, Blocks, find_blocks
from cglb.linalg.rounding import Rounding, gamma
from cglb.linalg.vecchia import chain_logdet
from cglb.linalg.view import View, logdet_plus_identity

if TYPE_CHECKING:
    from cglb.linalg.system import System

__all__ = ["Chain"]


class Chain(LogdetBound):
    """The chain bound. `prepare` finds its blocks and neighbours, which are then held fixed.

    Attributes:
        block: rows per block (p).
        neighbours: the number of earlier rows that each block is conditioned on (k).
        inner: how many of the inducing points are used in the residual (m of M); None for all. The
            others only lower the price of the first.
        order: the order of the blocks, "random" or "tree" (spatial).
        seed: of the random order.
        blocks: the blocks and their neighbours, after `prepare`.
    """

    key, rows, cost = "chain", True, 3.0
    after = ("amgm", "hadamard")

    block: int = eqx.field(static=True, default=BLOCK)
    neighbours: int = eqx.field(static=True, default=NEIGHBOURS)
    inner: int | None = eqx.field(static=True, default=None)
    order: str = eqx.field(static=True, default="random")
    seed: int = eqx.field(static=True, default=0)
    blocks: Blocks | None = None

    def __check_init__(self) -> None:
        if self.block < 1 or self.neighbours < 0:
            raise ValueError(
                f"block must be at least 1 and neighbours at least 0, found {self.block} and "
                f"{self.neighbours}."
            )
        if self.order not in ("random", "tree"):
            raise ValueError(f"order must be 'random' or 'tree', found {self.order!r}.")
        if self.inner is not None and self.inner < 0:
            raise ValueError(f"inner must be at least 0, found {self.inner}.")

    @property
    def name(self) -> str:
        inner = "" if self.inner is None else f", inner={self.inner}"
        return f"chain(block={self.block}, neighbours={self.neighbours}{inner})"

    def prepare(self, system: System) -> Chain:
        return self if self.blocks is not None else replace(self, blocks=self._blocks(system))

    @property
    def shared_blocks(self) -> Blocks | None:
        return self.blocks

    def _blocks(self, system: System) -> Blocks:
        if (self.block, self.neighbours, self.order, self.seed) == (BLOCK, NEIGHBOURS, "random", 0):
            return system.blocks  # the preconditioner uses the same: one search is enough
        return find_blocks(
            system.gp.kernel,
            system.X,
            self.block,
            self.neighbours,
            random_order=self.order == "random",
            seed=self.seed,
        )

    def variants(self, m: int) -> tuple[LogdetBound, ...]:
        """Forms with none (Vecchia's), half or all of the inducing points in the residual.

        Which one is tightest depends on how fast the kernel's spectrum decays.
        """
        return tuple(replace(self, inner=inner) for inner in dict.fromkeys((0, m // 2, None)))

    def __call__(self, view: View) -> Float[Array, ""]:
        if self.blocks is None:
            raise ValueError("The chain has no blocks yet: call prepare(system) first.")
        At, price = view.rows, view.logdet_Q
        m = view.m if self.inner is None else min(self.inner, view.m)
        if m < view.m:
            At, price = _with_first(m, At, view.G, price)
        return chain_logdet(view.kernel, view.noise, At, view.X, self.blocks) + price

    def margin(self, value: float, view: View, rounding: Rounding) -> float:
        """Every block of R ⪰ I has an error of at most D, which moves its part by √p·D/(1 − D)."""
        if self.blocks is None:
            raise ValueError("The chain has no blocks yet: call prepare(system) first.")
        count, own = self.blocks.rows.shape
        members = own + self.blocks.neighbours.shape[1]
        size = members * (1.0 + rounding.largest / rounding.noise)
        error = (rounding.entry + gamma(rounding.m + 2 * members)) * size + rounding.lost
        parts = count * own**0.5 * (error / (1.0 - error) if error < 1.0 else math.inf)
        return parts + 3.0 * rounding.logdet_B + 4.0 * gamma(count) * (abs(value) + view.n)


@partial(jax.jit, static_argnums=0)
def _with_first(m: int, At: Tall, G: Array, price: Array) -> tuple[Tall, Array]:
    """The first m columns of Aᵀ, and the price less log|I + A₂A₂ᵀ| of the others."""
    others = G[m:, m:]
    LB = jnp.linalg.cholesky(lax.stop_gradient(others) + jnp.eye(others.shape[0], dtype=G.dtype))
    return shards.columns(At, 0, m), price - jnp.asarray(logdet_plus_identity(others, LB))
