"""Log-determinant bounds by the chain rule: tighter than any that sees only the diagonal.

For R = K̂/σ² − A₁ᵀA₁ (A₁: the first m of the M inducing points, so R ⪰ I) cut the rows into blocks.
log|R| = Σ_b log|Cov_R(b | all earlier blocks)|, and conditioning on less can only enlarge a covariance:

    log|R| ≤ Σ_b log|Cov_R(b | N(b))|      for any sets N(b) of earlier rows.

With the price of the inducing points (A₁, A₂: the first m and the others; R ⪰ I + A₂ᵀA₂)

    log|K̂| = n log σ² + log|R| + log|I + A₁R⁻¹A₁ᵀ|
            ≤ n log σ² + Σ_b log|Cov_R(b | N(b))| + log|I + AAᵀ| − log|I + A₂A₂ᵀ|.

Corners: blocks of one row without neighbours are `hadamard`; blocks without neighbours are Fischer's
inequality; m = 0 is Vecchia's log-determinant. Any neighbour sets give a bound, so they are found by
distance in scaled inputs and held fixed while the bound is differentiated.

Cost with blocks of p rows and k neighbours: about 4·n·m·(p + k)²/p flops for value and gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cglb import tiles, triangular
from cglb.checks import boundary
from cglb.kernels import Kernel
from cglb.lanes import lane_count, map_lanes, sum_lanes
from cglb.logdet import Spectrum, logdet_plus_identity
from cglb.neighbours import Blocks, find_blocks

__all__ = ["Chain", "ChainBound", "chain_logdet", "inverse_factors"]

MOST_LANES = 8  # each holds a gradient of the size of A


@dataclass(frozen=True)
class Chain:
    """Settings of the chain bound; `prepare` finds the blocks for a kernel and data.

    block:      rows a block (p).
    neighbours: earlier rows each block is conditioned on (k).
    inner:      how many of the inducing points stay in the residual (m of M); None for all. The others
                only lower the price of the first.
    order:      "random" or "tree" (spatial): the order of the blocks.
    """

    block: int = 64
    neighbours: int = 64
    inner: int | None = None
    order: str = "random"
    seed: int = 0

    def __post_init__(self) -> None:
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
    def side(self) -> str:
        """It bounds log|K̂| from above."""
        return "above"

    @property
    def name(self) -> str:
        """For histories and reports."""
        inner = "" if self.inner is None else f", inner={self.inner}"
        return f"chain(block={self.block}, neighbours={self.neighbours}{inner})"

    @boundary
    def prepare(self, kernel: Kernel, X: Float[Array, "n d"]) -> ChainBound:
        """The bound with blocks and neighbours for these hyperparameters."""
        blocks = find_blocks(
            kernel, X, self.block, self.neighbours, random_order=self.order == "random", seed=self.seed
        )
        return ChainBound(blocks, self.inner, self.name)


class ChainBound(eqx.Module):
    """The chain bound with its blocks and neighbours fixed. Valid at any hyperparameters."""

    blocks: Blocks
    inner: int | None = eqx.field(static=True)
    name: str = eqx.field(static=True)
    rows: bool = eqx.field(static=True, default=True)
    side: str = eqx.field(static=True, default="above")

    def prepare(self, kernel: Kernel, X: Float[Array, "n d"]) -> ChainBound:
        """Itself: the blocks stay."""
        return self

    def __call__(self, spectrum: Spectrum) -> Float[Array, ""]:
        """Upper bound on log|K̂|."""
        assert spectrum.At is not None
        m = spectrum.At.shape[1] if self.inner is None else min(self.inner, spectrum.At.shape[1])
        At, price = spectrum.At, spectrum.logdet_Q
        if m < At.shape[1]:
            At, price = At[:, :m], price - _logdet_of_others(spectrum.G[m:, m:])
        return chain_logdet(spectrum.kernel, spectrum.noise, At, spectrum.X, self.blocks) + price


@jax.jit
def _logdet_of_others(G: Float[Array, "m m"]) -> Float[Array, ""]:
    """log|I + A₂A₂ᵀ|."""
    fixed = lax.stop_gradient(G)
    LB = jnp.linalg.cholesky(fixed + jnp.eye(G.shape[0], dtype=G.dtype))
    return logdet_plus_identity(G, LB)  # pyright: ignore[reportReturnType]


def chain_logdet(
    kernel: Kernel,
    noise: Float[Array, ""],
    At: Float[Array, "n m"],
    X: Float[Array, "n d"],
    blocks: Blocks,
) -> Float[Array, ""]:
    """Σ_b log|Cov_R(b | N(b))| ≥ log|R|, R = I + K/σ² − AᵀA; differentiable in kernel, noise and At."""
    return _chain(kernel, noise, At, X, blocks)  # pyright: ignore[reportReturnType]


@jax.custom_vjp
def _chain(kernel: Kernel, noise: Array, At: Array, X: Array, blocks: Blocks) -> Array:
    return _chain_value(kernel, noise, At, X, blocks)


def _chain_forward(kernel: Kernel, noise: Array, At: Array, X: Array, blocks: Blocks) -> Any:
    value, gradient = _chain_value_and_grad(kernel, noise, At, X, blocks)
    return value, (gradient, X, blocks)


def _chain_backward(residuals: Any, g: Array) -> Any:
    gradient, X, blocks = residuals
    scaled = jax.tree.map(lambda leaf: g * leaf, gradient)
    no_blocks = jax.tree.map(lambda leaf: np.zeros(leaf.shape, dtype=jax.dtypes.float0), blocks)
    return (*scaled, jnp.zeros_like(X), no_blocks)


_chain.defvjp(_chain_forward, _chain_backward)


def _members(blocks: Blocks) -> tuple[Int[Array, "b pk"], Bool[Array, "b pk"]]:
    """Neighbours first, then the block's own rows: the order of the small Cholesky factors."""
    index = jnp.concatenate([blocks.neighbours, blocks.rows], axis=1)
    valid = jnp.concatenate([blocks.neighbour_valid, blocks.row_valid], axis=1)
    return index, valid


def _residual(K: Array, noise: Array, At_b: Array, valid: Array) -> Float[Array, "pk pk"]:
    """R on one block and its neighbours; padding is an identity block, which adds log 1 = 0."""
    eye = jnp.eye(K.shape[0], dtype=K.dtype)
    return jnp.where(valid[:, None] & valid[None, :], eye + K / noise - At_b @ At_b.T, eye)


def _chain_value(kernel: Kernel, noise: Array, At: Array, X: Array, blocks: Blocks) -> Array:
    parts = _parts(blocks, lane_count(kernel, noise, At, X))
    return sum_lanes(
        lambda *part: _value_lane(kernel, noise, At, X, *part), parts, len(parts), small_blas=True
    )


def _chain_value_and_grad(
    kernel: Kernel, noise: Array, At: Array, X: Array, blocks: Blocks
) -> tuple[Array, tuple[Kernel, Array, Array]]:
    """One pass for both: with R_b = LLᵀ on (N(b), b), U the last p rows of L⁻¹, the gradient of
    log|Cov_R(b | N(b))| in R_b is UᵀU."""
    parts = _parts(blocks, lane_count(kernel, noise, At, X))
    value, *gradient = sum_lanes(
        lambda *part: _gradient_lane(kernel, noise, At, X, *part), parts, len(parts), small_blas=True
    )
    return value, tuple(gradient)


def _parts(blocks: Blocks, lanes: int) -> list[tuple[Array, Array, Array]]:
    """The blocks dealt out to lanes of equal length, the last filled up with blocks of padding."""
    index, valid = _members(blocks)
    count = index.shape[0]
    lanes = min(lanes, count, MOST_LANES)
    missing = -count % lanes
    index = jnp.pad(index, ((0, missing), (0, 0)))
    valid = jnp.pad(valid, ((0, missing), (0, 0)))
    own = jnp.zeros(blocks.rows.shape[1], dtype=bool)  # tells a lane the number of own rows
    return [(index[lane::lanes], valid[lane::lanes], own) for lane in range(lanes)]


def _factor_block(
    kernel: Kernel, noise: Array, At: Array, X: Array, index: Array, valid: Array
) -> tuple[Array, Array, Array, Callable[[Array], Kernel]]:
    """For one block and its neighbours: rows of A, the Cholesky factor of R, K, and the gradient of
    Σ W K in the kernel as a function of W."""
    # without the barrier XLA fuses the gather into a product far slower than its own
    At_b, X_b = lax.optimization_barrier((At[index], X[index]))
    K, pull = tiles.covariance_and_pull(kernel, X_b)
    L = lax.linalg.cholesky(_residual(K, noise, At_b, valid), symmetrize_input=False)
    return At_b, L, K, pull


def _own_rows(L: Array, valid: Array, k: int) -> Array:
    """U, the last p rows of L⁻¹. Those of padding are 0; so are its columns of padding, which R couples
    with nothing."""
    return jnp.where(valid[k:, None], triangular.inverse(L)[k:], 0.0)


@jax.jit
def _value_lane(
    kernel: Kernel, noise: Array, At: Array, X: Array, index: Array, valid: Array, own: Array
) -> Array:
    k = index.shape[1] - own.shape[0]

    def one(total: Array, member: Any) -> tuple[Array, None]:
        _, L, _, _ = _factor_block(kernel, noise, At, X, *member)
        return total + 2.0 * jnp.sum(jnp.log(jnp.diagonal(L)[k:])), None

    return lax.scan(one, jnp.zeros((), dtype=At.dtype), (index, valid))[0]


@jax.jit
def _gradient_lane(
    kernel: Kernel, noise: Array, At: Array, X: Array, index: Array, valid: Array, own: Array
) -> tuple[Array, Kernel, Array, Array]:
    k = index.shape[1] - own.shape[0]

    def one(carry: Any, member: Any) -> tuple[Any, None]:
        value, kernel_bar, noise_bar, At_bar = carry
        index_b, valid_b = member
        At_b, L, K, pull = _factor_block(kernel, noise, At, X, index_b, valid_b)
        U = _own_rows(L, valid_b, k)
        W = lax.optimization_barrier(U.T @ U)
        carry = (
            value + 2.0 * jnp.sum(jnp.log(jnp.diagonal(L)[k:])),
            jax.tree.map(lambda total, part: total + part / noise, kernel_bar, pull(W)),
            noise_bar - jnp.sum(W * K) / noise**2,
            At_bar.at[index_b].add(-2.0 * (W @ At_b)),
        )
        return carry, None

    zeros = jax.tree.map(jnp.zeros_like, (kernel, noise, At))
    start = (jnp.zeros((), dtype=At.dtype), *zeros)
    return lax.scan(one, start, (index, valid))[0]


def inverse_factors(
    kernel: Kernel,
    noise: Float[Array, ""],
    At: Float[Array, "n m"],
    X: Float[Array, "n d"],
    blocks: Blocks,
) -> tuple[Float[Array, "b p pk"], Float[Array, "bp m"], Int[Array, "b pk"], Bool[Array, "b pk"]]:
    """(U, B, index, valid): Σ_b U_bᵀU_b is a sparse approximate inverse of R, B = UAᵀ stacked by blocks.

    Memory n·(p + k + m). `index` and `valid` say which rows the columns of each U_b belong to; the order
    of the blocks is immaterial.
    """
    parts = _parts(blocks, lane_count(kernel, noise, At, X))
    found = map_lanes(
        lambda *part: _inverse_lane(kernel, noise, At, X, *part), parts, len(parts), small_blas=True
    )
    U, B, index, valid = (jnp.concatenate(arrays) for arrays in zip(*found, strict=True))
    return U, B.reshape(-1, At.shape[1]), index, valid


@jax.jit
def _inverse_lane(
    kernel: Kernel, noise: Array, At: Array, X: Array, index: Array, valid: Array, own: Array
) -> tuple[Array, Array, Array, Array]:
    k = index.shape[1] - own.shape[0]

    def one(member: Any) -> tuple[Array, Array]:
        At_b, L, _, _ = _factor_block(kernel, noise, At, X, *member)
        U = _own_rows(L, member[1], k)
        return U, U @ At_b

    U, B = lax.map(one, (index, valid))
    return U, B, index, valid
