"""How to walk over the tiles of K: their size, their order, and the rows padded to whole tiles."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.lanes import lane_count

__all__ = ["Plan", "Walk", "pad_rows", "plan_for", "tile_size", "walk"]

# Rows a tile. On a CPU a tile and its temporaries should fit in a core's level-2 cache (a 200 × 200
# float64 tile is 320 kB), and no power of two: the columns of one would fall on the same cache lines,
# which makes the product with its transpose half as fast. An accelerator wants larger ones.
CPU_TILE = {8: 200, 4: 312}
ACCELERATOR_TILE = 2048
TILES_A_PART = 4096


class Plan(NamedTuple):
    """How to walk K(X1, X2): static, so part of the compilation key."""

    tile: int
    symmetric: bool  # X1 is X2: visit each pair of blocks once


def plan_for(X: Float[Array, "n d"], symmetric: bool) -> Plan:
    """The plan with this device's tile, or one tile for few rows."""
    return Plan(min(tile_size(X.dtype), X.shape[0]), symmetric)


def tile_size(dtype: Any, memory_gb: float | None = None) -> int:
    """Rows a tile for this device, shrunk where a few tiles a core would exceed the budget."""
    if jnp.dtype(dtype).name not in ("float32", "float64"):
        raise ValueError(f"dtype must be float32 or float64, found {jnp.dtype(dtype).name}.")
    itemsize = jnp.dtype(dtype).itemsize
    tile = CPU_TILE[itemsize] if jax.default_backend() == "cpu" else ACCELERATOR_TILE
    if memory_gb is not None:
        if not memory_gb > 0.0:
            raise ValueError(f"memory_gb must be positive, found {memory_gb}.")
        tiles_alive = 6 * lane_count()
        tile = min(tile, int((memory_gb * 2**30 / (tiles_alive * itemsize)) ** 0.5))
    return max(tile, 16)


class Walk(NamedTuple):
    """Blocks of rows and columns (one of padding included), and the tiles of each part."""

    rows: int
    columns: int
    lanes: int
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # one each: rows, columns, diagonal


def walk(plan: Plan, X1: Array, X2: Array, lanes: int) -> Walk:
    """Deal the tiles out to parts of equal length, so that one compilation serves them all: one part a
    lane, or several if there are many tiles and more than one lane.

    Block numbers run to one past the data: that last block is all padding, and parts that would fall
    short visit it, where every vector is 0.
    """
    rows, columns = -(-X1.shape[0] // plan.tile), -(-X2.shape[0] // plan.tile)
    if plan.symmetric:
        I, J = np.triu_indices(rows, 1)
        D = np.arange(rows)
    else:
        I, J = (index.ravel() for index in np.mgrid[:rows, :columns])
        D = np.zeros(0, dtype=np.int64)
    lanes = min(lanes, max(len(I), len(D), 1))
    count = lanes * max(1, -(-len(I) // (lanes * TILES_A_PART))) if lanes > 1 else 1
    parts = [
        (_deal(I, part, count, rows), _deal(J, part, count, columns), _deal(D, part, count, rows))
        for part in range(count)
    ]
    return Walk(rows + 1, columns + 1, lanes, parts)


def _deal(index: np.ndarray, part: int, count: int, filler: int) -> np.ndarray:
    length = -(-len(index) // count)
    mine = index[part::count]
    return np.concatenate([mine, np.full(length - len(mine), filler)]).astype(np.int32)


def pad_rows(rows: Any, blocks: int, tile: int) -> Any:
    """Arrays [n, ...] with zero rows added, as [blocks, tile, ...]."""

    def pad(array: Array) -> Array:
        missing = blocks * tile - array.shape[0]
        padded = jnp.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1)))
        return padded.reshape(blocks, tile, *array.shape[1:])

    return jax.tree.map(pad, rows)
