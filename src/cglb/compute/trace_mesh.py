"""tr T² for T = K/σ² − AᵀH where the rows of Aᵀ and Hᵀ are split among the devices of a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from cglb.compute import tiling
from cglb.compute.mesh import run_on
from cglb.compute.shards import AXIS, REPLICATED, SPLIT, RowShards, pad_to
from cglb.core.precision import Number
from cglb.kernels.base import Kernel

__all__ = ["trace_of_square"]


def trace_of_square(
    tile: int, kernel: Kernel, F: Any, noise: Number, At: RowShards, Ht: RowShards
) -> Float[Array, ""]:
    """Σ_{i≠j} TᵢⱼTⱼᵢ: each device has its own rows i and sees the rows j of all, tile by tile.

    4n²m flops in all, twice those of one device, which uses symmetry; values only.

    Args:
        tile: rows per tile.
        kernel: k.
        F: its features of all rows.
        noise: σ².
        At: Aᵀ.
        Ht: Hᵀ.
    """
    share, devices = At.share, At.mesh.size
    size, starts = tiling.chunks(share, tile)
    owners = np.repeat(np.arange(devices, dtype=np.int32), starts.shape[1])
    everyone = np.concatenate([owners[:, None], np.tile(starts[0], (devices, 1))], axis=1)
    F = jax.tree.map(lambda leaf: pad_to(share * devices, leaf, "edge"), F)
    specs = ((REPLICATED, REPLICATED, SPLIT, REPLICATED), REPLICATED)
    rows = (At.data, Ht.data)
    return run_on(At.mesh, _share, (size, At.n), specs, (kernel, noise), F, rows, (starts[0], everyone))


def _share(size: int, n: int, model: Any, F: Any, rows: tuple[Array, Array], starts: Any) -> Array:
    (kernel, noise), (At, Ht), (mine, everyone) = model, rows, starts
    share, me = At.shape[0], lax.axis_index(AXIS).astype(jnp.int32)

    def cut(tree: Any, first: Array) -> Any:
        return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, first, size), tree)

    def numbers(first: Array, first_own: Array, owner: Array) -> tuple[Array, Array]:
        """The numbers of the rows of a chunk among all rows, and which of them count in it."""
        local = first + jnp.arange(size, dtype=jnp.int32)
        number = owner * share + local
        return number, (local >= first_own) & (number < n)

    def column(total: Array, begin: Array) -> tuple[Array, None]:
        owner, first, first_own = begin
        here = jax.tree.map(lambda a: jnp.where(me == owner, a, 0.0), cut((At, Ht), first))
        At_j, Ht_j = lax.psum(here, AXIS)
        j, real_j = numbers(first, first_own, owner)
        F_j = cut(F, owner * share + first)

        def tile(total: Array, begin: Array) -> tuple[Array, None]:
            first, first_own = begin
            i, real_i = numbers(first, first_own, me)
            At_i, Ht_i = cut((At, Ht), first)
            K = kernel.between(cut(F, me * share + first), F_j) / noise
            pairs = real_i[:, None] & real_j[None, :] & (i[:, None] != j[None, :])
            products = (K - At_i @ Ht_j.T) * (K - Ht_i @ At_j.T)
            return total + jnp.sum(jnp.where(pairs, products, 0.0)), None

        return lax.scan(tile, total, mine)[0], None

    total, _ = lax.scan(column, jnp.zeros((), dtype=At.dtype), everyone)
    return lax.psum(total, AXIS)
