"""How rows are cut into blocks, and K into tiles: sizes, the walk over pairs of blocks, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

__all__ = ["Blocking", "Plan", "Walk", "chunks", "pad_rows", "walk"]

KEPT_WALKS = 8


class Plan(NamedTuple):
    """How to walk over K(X1, X2) in square tiles: static, so part of the compilation key."""

    tile: int
    symmetric: bool  # X1 is X2: visit each pair of blocks once
    differences: bool = False  # distances of a product are made from differences, as precise as can be


class Blocking(NamedTuple):
    """n rows in `count` blocks of `size`, the last one padded."""

    n: int
    size: int
    count: int

    @classmethod
    def of(cls, n: int, sizes: Sequence[int]) -> Blocking:
        """Blocks of the smallest size that takes all n rows at once, or of the largest size."""
        size = next((size for size in sizes if size >= n), sizes[-1])
        return cls(n, size, -(-n // size))

    def rows(self, block: int) -> slice:
        """The rows of a block, without padding."""
        return slice(block * self.size, min(self.n, (block + 1) * self.size))


class Walk(NamedTuple):
    """Blocks of rows and of columns (one of padding included), and the tiles of each part.

    `parts` are three arrays [parts, ...]: block rows I and block columns J of the tiles off the
    diagonal, and the blocks D of those on it.
    """

    rows: int
    columns: int
    parts: tuple[np.ndarray, np.ndarray, np.ndarray]


@lru_cache(maxsize=KEPT_WALKS)
def walk(plan: Plan, n1: int, n2: int, width: int, tiles_per_part: int | None) -> Walk:
    """Split the tiles of K [n1, n2] into parts of equal length, so that one compilation serves them all.

    There are `width` parts or, if these would be longer than `tiles_per_part`, a multiple of it. Block
    numbers run to one past the data: that last block is all padding, and parts that would be too short
    visit it, where every vector is 0.
    """
    rows, columns = -(-n1 // plan.tile), -(-n2 // plan.tile)
    if plan.symmetric:
        I, J = np.triu_indices(rows, 1)
        D = np.arange(rows)
    else:
        I, J = (index.ravel() for index in np.mgrid[:rows, :columns])
        D = np.zeros(0, dtype=np.int64)
    width = min(width, max(len(I), len(D), 1))
    turns = 1 if tiles_per_part is None else max(1, -(-len(I) // (width * tiles_per_part)))
    count = width * turns
    parts = _deal(I, count, rows), _deal(J, count, columns), _deal(D, count, rows)
    return Walk(rows + 1, columns + 1, parts)


def _deal(index: np.ndarray, count: int, filler: int) -> np.ndarray:
    """[count, length]: one after the other to each part in turn, the last round filled up."""
    length = -(-len(index) // count)
    filled = np.concatenate([index, np.full(count * length - len(index), filler)])
    return np.ascontiguousarray(filled.reshape(length, count).T.astype(np.int32))


def chunks(n: int, size: int, width: int = 1) -> tuple[int, np.ndarray]:
    """Chunks of `size` rows (or of all n), as [width, count, 2]: where each begins, its first own row.

    The last chunk overlaps the one before, so that all have one shape and nothing is padded. Where the
    chunks do not fill `width` equal parts, some that own no row are added.
    """
    size = min(size, n)
    own = np.arange(0, n, size)
    width = min(width, len(own))
    own = _deal(own, width, n)
    return size, np.stack([np.minimum(own, n - size), own], axis=-1)


def pad_rows(rows: Any, blocks: int, size: int) -> Any:
    """Arrays [n, ...] with zero rows added, as [blocks, size, ...]."""

    def pad(array: Array) -> Array:
        missing = blocks * size - array.shape[0]
        padded = jnp.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1)))
        return padded.reshape(blocks, size, *array.shape[1:])

    return jax.tree.map(pad, rows)
