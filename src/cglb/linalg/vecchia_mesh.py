"""The chain over blocks of rows where the rows of Aᵀ are split among the devices of a mesh.

Every device factors its own blocks, as `vecchia` does, on the rows of Aᵀ that it fetches from their
owners round by round (`compute.exchange`), and sends the gradients back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from cglb.compute import exchange
from cglb.compute.exchange import Exchange
from cglb.compute.mesh import run_on
from cglb.compute.parallel import one_blas_thread
from cglb.compute.products import transposed_product
from cglb.compute.shards import AXIS, REPLICATED, SPLIT, RowShards, whole
from cglb.kernels.base import Kernel
from cglb.linalg.blocks import Blocks
from cglb.linalg.krylov import Preconditioner

__all__ = ["SplitChain", "apply_chain", "chain_preconditioner", "chain_value", "chain_value_and_grad"]

# [rounds, devices, …] by devices
BY_DEVICE = jax.sharding.PartitionSpec(None, AXIS)
OPERANDS = (REPLICATED, SPLIT, REPLICATED, BY_DEVICE)


def _dealt(At: RowShards, blocks: Blocks) -> Exchange:
    """The members of all blocks, neighbours first, dealt to the devices."""
    index = np.concatenate([np.asarray(blocks.neighbours), np.asarray(blocks.rows)], axis=1)
    valid = np.concatenate([np.asarray(blocks.neighbour_valid), np.asarray(blocks.row_valid)], axis=1)
    return exchange.plan(index, valid, At.mesh.size, At.share)


def chain_value(part: Any, own: int, matrix: Any, blocks: Blocks) -> Float[Array, ""]:
    """The chain's bound on log|R|.

    Args:
        part: the same for blocks on one device: `vecchia._value_part`.
        own: rows of a block itself.
        matrix: R, as its kernel, noise, Aᵀ and X.
    """
    return _run(_value, (part, own), REPLICATED, matrix, blocks)


def chain_value_and_grad(part: Any, own: int, matrix: Any, blocks: Blocks) -> tuple[Array, Any]:
    """The value, and the gradient in kernel, noise and Aᵀ."""
    specs = (REPLICATED, REPLICATED, REPLICATED, SPLIT)
    value, kernel_bar, noise_bar, bars = _run(_gradient, (part, own), specs, matrix, blocks)
    return value, (kernel_bar, noise_bar, matrix.At.like(bars))


def _run(fn: Any, settings: Any, out: Any, matrix: Any, blocks: Blocks) -> Any:
    kernel, noise, At, X = matrix
    operands = ((kernel, noise), At.data, X, _dealt(At, blocks))
    with one_blas_thread():
        return jax.block_until_ready(run_on(At.mesh, fn, settings, (OPERANDS, out), *operands))


def _of_round(At: Array, X: Array, one: Exchange) -> tuple[Array, Array, Array, Array]:
    """One device's view of a round: its rows of Aᵀ and of X, members as places in them, and which there
    are."""
    rows = exchange.fetch(At, one.send[0])
    return rows, X[one.rows[0]], jnp.asarray(one.place[0]), jnp.asarray(one.valid[0])


def _value(part: Any, own: int, model: Any, At: Array, X: Array, dealt: Exchange) -> Array:
    kernel, noise = model

    def turn(total: Array, one: Exchange) -> tuple[Array, None]:
        return total + part(own, kernel, noise, *_of_round(At, X, one)), None

    total, _ = lax.scan(turn, jnp.zeros((), dtype=At.dtype), dealt)
    return lax.psum(total, AXIS)


def _gradient(part: Any, own: int, model: Any, At: Array, X: Array, dealt: Exchange) -> Any:
    kernel, noise = model

    def turn(total: Any, one: Exchange) -> tuple[Any, None]:
        *small, bars = part(own, kernel, noise, *_of_round(At, X, one))
        summed = jax.tree.map(jnp.add, total[0], tuple(small))
        return (summed, exchange.give_back(total[1], bars, one.send[0])), None

    zeros = jax.tree.map(jnp.zeros_like, ((jnp.zeros((), dtype=At.dtype), kernel, noise), At))
    small, At_bar = lax.scan(turn, zeros, dealt)[0]
    return (*jax.tree.map(lambda a: lax.psum(a, AXIS), small), At_bar)


class SplitChain(Preconditioner):
    """`ChainPreconditioner` with the blocks of U and the rows of B split among the devices.

    Attributes:
        U: the sparse factor, one block of rows after the other.
        index: the columns of each block of U.
        valid: which of these are not padding.
        B: UAᵀ, by blocks.
        LC: the Cholesky factor of I + BᵀB.
        noise: σ².
        mesh: the devices.
    """

    U: Float[Array, "b p pk"]
    index: Int[Array, "b pk"]
    valid: Bool[Array, "b pk"]
    B: Float[Array, "b p m"]
    LC: Float[Array, "m m"]
    noise: Float[Array, ""]
    mesh: Any = eqx.field(static=True)

    def __call__(self, R: Float[Array, "n t"]) -> Float[Array, "n t"]:
        split = (self.U, self.index, self.valid, self.B)
        specs = ((SPLIT, (REPLICATED, REPLICATED), REPLICATED), REPLICATED)
        return run_on(self.mesh, _apply_part, (), specs, split, (self.LC, self.noise), R)

    def gathered(self) -> tuple[Array, Array, Array, Array]:
        """U, index, valid and B [bp, m], all on every device."""
        return _gather(self)


@jax.jit
def _gather(self: SplitChain) -> Any:
    split = (self.U, self.index, self.valid, _joined(self.B))
    return jax.tree.map(lambda array: whole(self.mesh, array), split)


def _apply_part(split: Any, model: Any, R: Array) -> Array:
    U, index, valid, B = split
    return apply_chain((U, index, valid, _joined(B)), model, R, lambda part: lax.psum(part, AXIS))


def apply_chain(
    factors: tuple[Array, Array, Array, Array],
    model: tuple[Array, Array],
    R: Float[Array, "n t"],
    total: Callable[[Array], Array] = lambda part: part,
) -> Float[Array, "n t"]:
    """Uᵀ(I + BBᵀ)⁻¹U R/σ² for the blocks of one device.

    Args:
        factors: U, index, valid and B [bp, m], as in `ChainPreconditioner`.
        model: LC and σ².
        total: the sum over all devices.
    """
    (U, index, valid, B), (LC, noise) = factors, model
    t = R.shape[1]
    gathered = jnp.where(valid[:, :, None], R[index], 0.0)
    y = jnp.einsum("bpk,bkt->bpt", U, gathered).reshape(-1, t)
    y = y - B @ cho_solve((LC, True), total(transposed_product(B, y)))
    parts = jnp.einsum("bpk,bpt->bkt", U, y.reshape(*U.shape[:2], t))
    parts = jnp.where(valid[:, :, None], parts, 0.0)
    return total(jnp.zeros_like(R).at[index].add(parts)) / noise


def chain_preconditioner(
    part: Any, own: int, kernel: Kernel, noise: Float[Array, ""], At: RowShards, X: Any, blocks: Blocks
) -> SplitChain:
    """The preconditioner of K̂ on X.

    Args:
        part: the factors of blocks on one device: `vecchia._inverse_part`.
        own: rows of a block itself.
    """
    specs = (SPLIT, SPLIT, SPLIT, SPLIT, REPLICATED)
    found = _run(_inverse, (part, own), specs, (kernel, noise, At, X), blocks)
    *split, gram = found
    U, B, index, valid = split
    return SplitChain(U, index, valid, B, _cholesky(gram), noise, At.mesh)


@jax.jit
def _cholesky(gram: Array) -> Array:
    return jnp.linalg.cholesky(gram + jnp.eye(gram.shape[0], dtype=gram.dtype))


def _inverse(part: Any, own: int, model: Any, At: Array, X: Array, dealt: Exchange) -> Any:
    kernel, noise = model

    def turn(one: Exchange) -> tuple[Array, Array]:
        return part(own, kernel, noise, *_of_round(At, X, one))

    U, B = lax.map(turn, dealt)
    flat = _joined(_joined(B))
    gram = lax.psum(transposed_product(flat, flat), AXIS)
    valid = dealt.valid[:, 0]
    # members as numbers of rows
    index = jnp.take_along_axis(dealt.rows, dealt.place[:, 0].reshape(len(valid), -1)[:, None], axis=2)
    index = index.reshape(valid.shape)
    return (*(_joined(a) for a in (U, B, index, valid)), gram)


def _joined(array: Any) -> Array:
    """[a, b, …] as [a · b, …]."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
