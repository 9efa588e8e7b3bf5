"""K̂ in the memory of several devices: each holds those of its tiles on and above the diagonal."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from cglb.compute.mesh import run_on
from cglb.compute.shards import AXIS, REPLICATED, SPLIT
from cglb.compute.tiling import Walk, pad_rows
from cglb.core.precision import Number
from cglb.kernels.base import Kernel
from cglb.kernels.distance import middle

__all__ = ["StoredTiles"]


class StoredTiles:
    """The tiles of K̂ on and above its diagonal, split among devices: n²/2 entries in all.

    Args:
        mesh: the devices.
        walk: which tiles there are, one part per device and turn; for a symmetric plan.
        tile: rows per tile.
        kernel: k.
        noise: σ².
        X: inputs.
    """

    def __init__(
        self,
        mesh: jax.sharding.Mesh,
        walk: Walk,
        tile: int,
        kernel: Kernel,
        noise: Number,
        X: Float[Array, "n d"],
    ):
        self._mesh, self._n, self._tile, self._blocks = mesh, X.shape[0], tile, walk.rows
        self._dtype = X.dtype
        width = mesh.size
        count = len(walk.parts[0]) // width
        self._turns = [
            tuple(part[t * width : (t + 1) * width] for part in walk.parts) for t in range(count)
        ]
        specs = ((REPLICATED, REPLICATED, SPLIT), (SPLIT, SPLIT))
        operands = (kernel, jnp.asarray(noise, dtype=X.dtype)), X
        self._tiles = [
            jax.block_until_ready(run_on(mesh, _make, (walk.rows, tile), specs, *operands, turn))
            for turn in self._turns
        ]

    def serves(self, columns: int) -> bool:
        return True

    def __matmul__(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        blocks = _blocked(V, self._dtype, self._blocks, self._tile)
        specs = ((REPLICATED, SPLIT, (SPLIT, SPLIT)), REPLICATED)
        total: Any = 0.0
        for turn, tiles in zip(self._turns, self._tiles, strict=True):
            found = run_on(self._mesh, _multiply, (), specs, blocks, turn, tiles)
            total = found if turn is self._turns[0] else total + found
        return total.reshape(-1, *V.shape[1:])[: self._n].astype(V.dtype)


def _blocked(V: Array, dtype: Any, blocks: int, tile: int) -> Array:
    return pad_rows(V.reshape(V.shape[0], -1).astype(dtype), blocks, tile)


def _make(blocks: int, tile: int, model: Any, X: Array, turn: Any) -> tuple[Array, Array]:
    """The tiles (I, J) off the diagonal and those on it, of one part."""
    kernel, noise = model
    I, J, D = (part[0] for part in turn)
    F, diag = pad_rows((kernel.features(X, middle(X)), kernel.diag(X) + noise), blocks, tile)

    def at(i: Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[i], F)

    def on_diagonal(i: Array) -> Array:
        return jnp.where(jnp.eye(tile, dtype=bool), diag[i][:, None], kernel.between(at(i), at(i)))

    above = lax.map(lambda pair: kernel.between(at(pair[0]), at(pair[1])), (I, J))
    return above, lax.map(on_diagonal, D)


def _multiply(V: Array, turn: Any, tiles: tuple[Array, Array]) -> Array:
    I, J, D = (part[0] for part in turn)
    above, diagonal = tiles

    def off_diagonal(out: Array, given: Any) -> tuple[Array, None]:
        i, j, K = given
        return out.at[i].add(K @ V[j]).at[j].add((V[i].T @ K).T), None

    def on_diagonal(out: Array, given: Any) -> tuple[Array, None]:
        i, K = given
        return out.at[i].add(K @ V[i]), None

    out, _ = lax.scan(off_diagonal, jnp.zeros_like(V), (I, J, above))
    return lax.psum(lax.scan(on_diagonal, out, (D, diagonal))[0], AXIS)
