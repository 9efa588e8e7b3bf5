"""The chain rule over blocks of rows: Vecchia's approximation, as a bound and as a sparse inverse.

With R = I + K/σ² − AᵀA and N(b) some rows of blocks before b,

    log|R| ≤ Σ_b log|Cov_R(b | N(b))|,

since conditioning on fewer rows can only enlarge a covariance. The factors of the same small matrices
give a sparse approximate inverse of R.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cglb.compute import assemble, triangular
from cglb.compute.backend import backend_of
from cglb.compute.products import materialised, rows_at
from cglb.compute.shards import RowShards, Tall
from cglb.kernels.base import Kernel
from cglb.linalg import vecchia_mesh
from cglb.linalg.blocks import Blocks

__all__ = ["InverseFactors", "chain_logdet", "inverse_factors", "split_preconditioner"]

MOST_PARTS = 8  # each holds a gradient of the size of A


def chain_logdet(
    kernel: Kernel,
    noise: Float[Array, ""],
    At: Tall,
    X: Float[Array, "n d"],
    blocks: Blocks,
) -> Float[Array, ""]:
    """Σ_b log|Cov_R(b | N(b))| ≥ log|R|, R = I + K/σ² − AᵀA; differentiable in kernel, noise and At."""
    return _chain(kernel, noise, At, X, blocks)  # pyright: ignore[reportReturnType]


@jax.custom_vjp
def _chain(kernel: Kernel, noise: Array, At: Tall, X: Array, blocks: Blocks) -> Array:
    return _chain_value(_Matrix(kernel, noise, At, X), blocks)


def _chain_forward(kernel: Kernel, noise: Array, At: Tall, X: Array, blocks: Blocks) -> Any:
    return _chain_value_and_grad(_Matrix(kernel, noise, At, X), blocks)


def _chain_backward(gradient: Any, g: Array) -> Any:
    return (*_scaled(g, gradient), None, None)  # X and the blocks are held fixed


@jax.jit
def _scaled(g: Array, gradient: Any) -> Any:
    return jax.tree.map(lambda leaf: g * leaf, gradient)


_chain.defvjp(_chain_forward, _chain_backward)


class _Matrix(NamedTuple):
    """R = I + K/σ² − AᵀA on the rows X."""

    kernel: Kernel
    noise: Array
    At: Any  # Tall
    X: Array


class _Members(NamedTuple):
    """Neighbours first, then the block's own rows: the order of the small Cholesky factors."""

    index: Int[Array, "*b pk"]
    valid: Bool[Array, "*b pk"]


def _chain_value(matrix: _Matrix, blocks: Blocks) -> Array:
    if isinstance(matrix.At, RowShards):
        return vecchia_mesh.chain_value(_value_part, _own(blocks), matrix, blocks)
    parallel = backend_of(matrix, blocks).parallel.small_matrices()
    return parallel.sum(partial(_value_part, _own(blocks)), matrix, _parts(blocks, parallel.width))


def _chain_value_and_grad(matrix: _Matrix, blocks: Blocks) -> tuple[Array, tuple[Kernel, Array, Any]]:
    """One pass for both: with R_b = LLᵀ on (N(b), b), U the last p rows of L⁻¹, the gradient of
    log|Cov_R(b | N(b))| in R_b is UᵀU."""
    if isinstance(matrix.At, RowShards):
        return vecchia_mesh.chain_value_and_grad(_gradient_part, _own(blocks), matrix, blocks)
    parallel = backend_of(matrix, blocks).parallel.small_matrices()
    value, *gradient = parallel.sum(
        partial(_gradient_part, _own(blocks)), matrix, _parts(blocks, parallel.width)
    )
    return value, tuple(gradient)


def _own(blocks: Blocks) -> int:
    """Rows of a block itself: the last ones of its members."""
    return blocks.rows.shape[1]


def _parts(blocks: Blocks, width: int) -> _Members:
    """The members of all blocks, split into equal parts [parts, blocks, p + k]."""
    return _split(min(width, blocks.rows.shape[0], MOST_PARTS), blocks)


@partial(jax.jit, static_argnums=0)
def _split(count: int, blocks: Blocks) -> _Members:
    """Each part gets blocks that stand together; the last one is filled up with blocks of padding."""
    index = jnp.concatenate([blocks.neighbours, blocks.rows], axis=1)
    valid = jnp.concatenate([blocks.neighbour_valid, blocks.row_valid], axis=1)
    missing = -index.shape[0] % count

    def split(array: Array) -> Array:
        return jnp.pad(array, ((0, missing), (0, 0))).reshape(count, -1, array.shape[1])

    return _Members(split(index), split(valid))


def _residual(K: Array, noise: Array, At_b: Array, valid: Array) -> Float[Array, "pk pk"]:
    """R on one block and its neighbours; padding is an identity block, which adds log 1 = 0."""
    eye = jnp.eye(K.shape[0], dtype=K.dtype)
    return jnp.where(valid[:, None] & valid[None, :], eye + K / noise - At_b @ At_b.T, eye)


class _Factored(NamedTuple):
    """One block and its neighbours: rows of A, the Cholesky factor of R, K, and the gradient of Σ W K in
    the kernel as a function of W."""

    At: Array
    L: Array
    K: Array
    pull: Any


def _factor_block(matrix: _Matrix, members: _Members) -> _Factored:
    At_b, X_b = rows_at(members.index, matrix.At, matrix.X)
    K, pull = assemble.covariance_and_pull(matrix.kernel, X_b)
    R = _residual(K, matrix.noise, At_b, members.valid)
    return _Factored(At_b, lax.linalg.cholesky(R, symmetrize_input=False), K, pull)


def _own_logdet(own: int, L: Array) -> Array:
    """log|Cov_R(b | N(b))| from the last p pivots."""
    return 2.0 * jnp.sum(jnp.log(jnp.diagonal(L)[-own:]))


def _own_rows(own: int, L: Array, valid: Array) -> Array:
    """U, the last p rows of L⁻¹. Those of padding are 0; so are its columns of padding, which R couples
    with nothing."""
    return jnp.where(valid[-own:, None], triangular.inverse(L)[-own:], 0.0)


@partial(jax.jit, static_argnums=0)
def _value_part(
    own: int, kernel: Kernel, noise: Array, At: Array, X: Array, index: Array, valid: Array
) -> Array:
    matrix = _Matrix(kernel, noise, At, X)

    def one(total: Array, members: _Members) -> tuple[Array, None]:
        return total + _own_logdet(own, _factor_block(matrix, members).L), None

    return lax.scan(one, jnp.zeros((), dtype=At.dtype), _Members(index, valid))[0]


@partial(jax.jit, static_argnums=0)
def _gradient_part(
    own: int, kernel: Kernel, noise: Array, At: Array, X: Array, index: Array, valid: Array
) -> tuple[Array, Kernel, Array, Array]:
    matrix = _Matrix(kernel, noise, At, X)

    def one(carry: Any, members: _Members) -> tuple[Any, None]:
        value, kernel_bar, noise_bar, At_bar = carry
        block = _factor_block(matrix, members)
        U = _own_rows(own, block.L, members.valid)
        W = materialised(U.T @ U)
        carry = (
            value + _own_logdet(own, block.L),
            jax.tree.map(lambda total, part: total + part / noise, kernel_bar, block.pull(W)),
            noise_bar - jnp.sum(W * block.K) / noise**2,
            At_bar.at[members.index].add(-2.0 * (W @ block.At)),
        )
        return carry, None

    zeros = jax.tree.map(jnp.zeros_like, (kernel, noise, At))
    start = (jnp.zeros((), dtype=At.dtype), *zeros)
    return lax.scan(one, start, _Members(index, valid))[0]


def split_preconditioner(
    kernel: Kernel, noise: Float[Array, ""], At: RowShards, X: Float[Array, "n d"], blocks: Blocks
) -> Any:
    """The chain's preconditioner where the rows of Aᵀ are split among devices."""
    return vecchia_mesh.chain_preconditioner(_inverse_part, _own(blocks), kernel, noise, At, X, blocks)


class InverseFactors(NamedTuple):
    """Σ_b U_bᵀU_b, a sparse approximate inverse of R. The order of the blocks is immaterial."""

    U: Float[Array, "b p pk"]
    B: Float[Array, "bp m"]  # UAᵀ, stacked by blocks
    index: Int[Array, "b pk"]  # the rows that the columns of each U_b belong to
    valid: Bool[Array, "b pk"]  # False on padding


def inverse_factors(
    kernel: Kernel,
    noise: Float[Array, ""],
    At: Float[Array, "n m"],
    X: Float[Array, "n d"],
    blocks: Blocks,
) -> InverseFactors:
    """A sparse factor of the inverse of R = I + K/σ² − AᵀA: n·(p + k + m) memory."""
    matrix = _Matrix(kernel, noise, At, X)
    parallel = backend_of(matrix, blocks).parallel.small_matrices()
    parts = _parts(blocks, parallel.width)
    found = parallel.map(partial(_inverse_part, _own(blocks)), matrix, parts)
    return _join(found, parts)


@partial(jax.jit, static_argnums=0)
def _inverse_part(
    own: int, kernel: Kernel, noise: Array, At: Array, X: Array, index: Array, valid: Array
) -> tuple[Array, Array]:
    matrix = _Matrix(kernel, noise, At, X)

    def one(members: _Members) -> tuple[Array, Array]:
        block = _factor_block(matrix, members)
        U = _own_rows(own, block.L, members.valid)
        return U, U @ block.At

    return lax.map(one, _Members(index, valid))


@jax.jit
def _join(found: list[tuple[Array, Array]], parts: _Members) -> InverseFactors:
    U, B = (jnp.concatenate(arrays) for arrays in zip(*found, strict=True))
    index, valid = (array.reshape(-1, array.shape[-1]) for array in parts)
    return InverseFactors(U, B.reshape(-1, B.shape[-1]), index, valid)
