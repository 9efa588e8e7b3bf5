"""Half of K̂ in memory: made tile by tile on all cores, so that nothing else of its size is alive."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array, Float

from cglb import tiles
from cglb.kernels import Kernel
from cglb.lanes import lane_count, map_lanes
from cglb.plan import pad_rows
from cglb.precision import Number

__all__ = ["TILE", "blocks", "covariance", "cross", "pad", "rows_of", "upper_triangle"]

TILE = 1000  # no power of two, whose columns would fall on the same cache lines


def upper_triangle(kernel: Kernel, noise: Number, X: Float[Array, "n d"]) -> np.ndarray:
    """K(X, X) + noise·I [n, n] on and above its diagonal, in the dtype of X: n²/2 kernel entries.

    What is below the diagonal tiles is never touched, so the memory for it stays unused.
    """
    n = X.shape[0]
    padded, count = pad(X), blocks(n)
    K_hat = np.zeros((n, n), dtype=X.dtype)

    def fill(i: int, j: int) -> None:
        rows, columns = rows_of(i, n), rows_of(j, n)
        tile = covariance(kernel, padded[i]) if i == j else cross(kernel, padded[i], padded[j])
        K_hat[rows, columns] = np.asarray(tile)[: rows.stop - rows.start, : columns.stop - columns.start]

    for _ in map_lanes(fill, [(i, j) for i in range(count) for j in range(i, count)], lane_count()):
        pass
    K_hat[np.diag_indices(n)] += np.asarray(noise, dtype=X.dtype)
    return K_hat


def pad(X: Float[Array, "n d"]) -> Float[Array, "b t d"]:
    """X in blocks of TILE rows, padded."""
    return pad_rows(X, blocks(X.shape[0]), TILE)


def blocks(n: int) -> int:
    """The number of blocks of TILE rows."""
    return -(-n // TILE)


def rows_of(block: int, n: int) -> slice:
    """The rows of a block."""
    return slice(block * TILE, min(n, (block + 1) * TILE))


@jax.jit
def cross(kernel: Kernel, X1: Array, X2: Array) -> Array:
    """K(X1, X2)."""
    return kernel(X1, X2)


covariance = jax.jit(tiles.covariance)
