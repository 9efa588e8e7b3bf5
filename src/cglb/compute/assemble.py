"""K with an exact diagonal: whole, as half of a matrix in memory, or one tile.

The distance of a row to itself is rounded, so the diagonal of K(X, X) is set to `kernel.diag` wherever K
is made; `_exact_diagonal` is the only place that does so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from cglb.compute.cpu import blas
from cglb.compute.parallel import Threads
from cglb.compute.programs import wide
from cglb.compute.tiling import Blocking, pad_rows
from cglb.core.precision import Number
from cglb.kernels.base import Kernel
from cglb.kernels.distance import middle

__all__ = [
    "SIZES",
    "Weights",
    "between",
    "covariance",
    "covariance_and_pull",
    "cross",
    "dense",
    "prior_variances",
    "pull_half",
    "upper_triangle",
    "whole",
]

# Rows per tile, for few rows and for more: a handful of programs serve every n, and a tile fits a core's
# cache. No powers of two, whose columns would fall on the same cache lines.
SIZES = (56, 120, 248)
STRIPE = 200  # rows of K that `whole` makes at a time


def _exact_diagonal(K: Array, diag: Array, first: int | Array = 0) -> Array:
    """Rows first, first + 1, … of K(X, X), the entries on the diagonal replaced by `diag` (one per
    row)."""
    return jnp.where(_on_diagonal(K.shape, first), diag[:, None], K)


def _on_diagonal(shape: tuple[int, ...], first: int | Array = 0) -> Bool[Array, "rows columns"]:
    rows = first + lax.broadcasted_iota(jnp.int32, shape, 0)
    return rows == lax.broadcasted_iota(jnp.int32, shape, 1)


def covariance(kernel: Kernel, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """K(X, X)."""
    return _exact_diagonal(kernel(X, X), kernel.diag(X))


def covariance_and_pull(
    kernel: Kernel, X: Float[Array, "n d"]
) -> tuple[Float[Array, "n n"], Callable[[Array], Kernel]]:
    """K(X, X), and the gradient of Σᵢⱼ WᵢⱼKᵢⱼ in the kernel as a function of a symmetric W."""
    F, pull_features = jax.vjp(lambda kernel: kernel.features(X, middle(X)), kernel)
    diag, pull_diag = jax.vjp(lambda kernel: kernel.diag(X), kernel)

    def pull(W: Array) -> Kernel:
        off_diagonal = jnp.where(_on_diagonal(W.shape), 0.0, W)
        kernel_bar, F1_bar, F2_bar = kernel.pull_between(F, F, off_diagonal, False)
        (through_features,) = pull_features(jax.tree.map(jnp.add, F1_bar, F2_bar))
        (through_diag,) = pull_diag(jnp.diagonal(W))
        return jax.tree.map(lambda *parts: sum(parts), kernel_bar, through_features, through_diag)

    return _exact_diagonal(kernel.between(F, F), diag), pull


@jax.jit
def dense(kernel: Kernel, noise: Number, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """K̂ = K(X, X) + noise·I as one array; differentiable."""
    return _exact_diagonal(kernel(X, X), kernel.diag(X) + noise)


@jax.jit
def whole(kernel: Kernel, noise: Number, X: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """K̂ as one array, made in stripes, so that nothing else of its size is alive."""
    n = X.shape[0]
    count = -(-n // STRIPE)
    diag = kernel.diag(X) + noise

    def stripe(part: Any) -> Array:
        first, rows, own_diag = part
        return _exact_diagonal(kernel(rows, X), own_diag, first)

    firsts = STRIPE * jnp.arange(count, dtype=jnp.int32)
    stripes = lax.map(stripe, (firsts, *pad_rows((X, diag), count, STRIPE)))
    return stripes.reshape(-1, n)[:n]


def upper_triangle(
    threads: Threads,
    kernel: Kernel,
    noise: Number,
    X: Float[Array, "n d"],
    empty: Callable[[tuple[int, int], Any], np.ndarray] = blas.empty,
) -> Float[np.ndarray, "n n"]:
    """K̂ on and above its diagonal, in the dtype of X: about n²/2 kernel entries.

    What is below the diagonal tiles is undefined and never written.

    Args:
        empty: gives the array; with `blas.empty_in_small_pages` what is not written takes no memory.
    """
    blocking, blocks = _blocked(X)
    K_hat = empty((blocking.n, blocking.n), X.dtype)
    noise = np.asarray(noise, dtype=X.dtype)

    def fill(i: int, j: int) -> None:
        rows, columns = blocking.rows(i), blocking.rows(j)
        tile = np.asarray(_tile(kernel, noise, blocks[i], blocks[j], i == j))
        K_hat[rows, columns] = tile[: rows.stop - rows.start, : columns.stop - columns.start]

    threads.for_each(fill, [(i, j) for i in range(blocking.count) for j in range(i, blocking.count)])
    return K_hat


def between(threads: Threads, kernel: Kernel, X1: Any, X2: Any) -> Float[np.ndarray, "n1 n2"]:
    """K(X1, X2) of rows [n1, d] and [n2, d], by tiles: the same few programs for every n1 and n2."""
    (rows, blocks1), (columns, blocks2) = _blocked(X1), _blocked(X2)
    K = np.empty((rows.n, columns.n), dtype=X1.dtype)
    no_noise = np.zeros((), dtype=X1.dtype)

    def fill(i: int, j: int) -> None:
        here, there = rows.rows(i), columns.rows(j)
        tile = np.asarray(_tile(kernel, no_noise, blocks1[i], blocks2[j], False))
        K[here, there] = tile[: here.stop - here.start, : there.stop - there.start]

    threads.for_each(fill, [(i, j) for i in range(rows.count) for j in range(columns.count)])
    return K


def prior_variances(kernel: Kernel, X: Any) -> Float[np.ndarray, " n"]:
    """kernel.diag(X) in blocks: the same few programs for every n."""
    blocking, blocks = _blocked(X)
    return np.concatenate([np.asarray(_diag(kernel, block)) for block in blocks])[: blocking.n]


@jax.jit
def _diag(kernel: Kernel, X: Array) -> Array:
    return kernel.diag(X)


class Weights(NamedTuple):
    """The symmetric matrix W = logdet_bar·K̂⁻¹ − quadratic_bar·ααᵀ."""

    inverse: Float[np.ndarray, "n n"]  # K̂⁻¹ on and below its diagonal
    alpha: Float[np.ndarray, " n"]
    logdet_bar: float
    quadratic_bar: float

    @property
    def trace(self) -> float:
        return self.logdet_bar * np.trace(self.inverse) - self.quadratic_bar * (self.alpha @ self.alpha)


def pull_half(
    threads: Threads, kernel: Kernel, X: Float[Array, "n d"], weights: Weights, inputs: bool
) -> tuple[Kernel, Float[np.ndarray, "n d"] | None]:
    """Gradient of Σᵢⱼ WᵢⱼKᵢⱼ in the kernel and, with `inputs`, in X: about n²/2 kernel entries."""
    blocking, blocks = _blocked(X)
    (_, alpha), scales = _blocked(weights.alpha, 0.0), np.array(weights[2:], dtype=X.dtype)

    def tile(i: np.integer, j: np.integer) -> Any:
        part = weights.inverse[blocking.rows(int(i)), blocking.rows(int(j))]
        if part.shape == (blocking.size, blocking.size):
            inverse = np.ascontiguousarray(part)
        else:
            inverse = np.zeros((blocking.size, blocking.size), dtype=X.dtype)
            inverse[: part.shape[0], : part.shape[1]] = part
        W = _Tile(inverse, alpha[i], alpha[j], scales)
        return _pull_tile(inputs, kernel, blocks[i], blocks[j], W, i == j)

    index = np.arange(blocking.count)
    I, J = (side.ravel() for side in np.meshgrid(index, index, indexing="ij"))
    lower = J <= I
    if not inputs:
        return threads.sum(lambda i, j: tile(i, j)[0], (), (I[lower], J[lower])), None
    found = threads.map(tile, (), (I[lower], J[lower]))
    X_bar = np.zeros((blocking.count, blocking.size, X.shape[1]), dtype=X.dtype)
    for i, j, (_, X1_bar, X2_bar) in zip(I[lower], J[lower], found, strict=True):
        X_bar[i] += np.asarray(X1_bar)
        X_bar[j] += np.asarray(X2_bar)
    kernel_bar = jax.tree.map(lambda *parts: sum(parts), *(kernel_bar for kernel_bar, _, _ in found))
    return kernel_bar, X_bar.reshape(-1, X.shape[1])[: blocking.n]


class _Tile(NamedTuple):
    """What W is made of on one tile; zeros where it is padded."""

    inverse: Any
    alpha1: Any
    alpha2: Any
    scales: Any  # logdet_bar and quadratic_bar


@wide
def _tile(kernel: Kernel, noise: Array, X1: Array, X2: Array, diagonal: Array) -> Array:
    K = kernel(X1, X2)
    if K.shape[0] != K.shape[1]:  # between two sets of rows: no tile is on a diagonal
        return K
    return jnp.where(diagonal, _exact_diagonal(K, kernel.diag(X1) + noise), K)


@partial(wide, static_argnums=0)
def _pull_tile(
    inputs: bool, kernel: Kernel, X1: Array, X2: Array, tile: _Tile, diagonal: Array
) -> tuple[Kernel, Array | None, Array | None]:
    """The part of a tile, and of its mirror image where it is off the diagonal."""
    W = tile.scales[0] * tile.inverse - tile.scales[1] * jnp.outer(tile.alpha1, tile.alpha2)
    # above the diagonal of a diagonal tile the inverse is undefined
    W = jnp.where(diagonal, jnp.tril(W) + jnp.tril(W, -1).T, 2.0 * W)
    on_diagonal = jnp.where(diagonal, jnp.diagonal(W), 0.0)
    W = jnp.where(diagonal & _on_diagonal(W.shape), 0.0, W)
    origin = middle(X2)
    (F1, F2), pull_features = jax.vjp(
        lambda kernel, X1, X2: (kernel.features(X1, origin), kernel.features(X2, origin)), kernel, X1, X2
    )
    _, pull_diag = jax.vjp(lambda kernel, X1: kernel.diag(X1), kernel, X1)
    kernel_bar, F1_bar, F2_bar = kernel.pull_between(F1, F2, W, inputs)
    through_features, X1_bar, X2_bar = pull_features((F1_bar, F2_bar))
    through_diag, X1_bar_diag = pull_diag(on_diagonal)
    kernel_bar = jax.tree.map(lambda *parts: sum(parts), kernel_bar, through_features, through_diag)
    return (kernel_bar, X1_bar + X1_bar_diag, X2_bar) if inputs else (kernel_bar, None, None)


def _blocked(X: Any, filler: float | None = None) -> tuple[Blocking, Any]:
    """X in blocks of one size: NumPy's, since only cuts are made.

    The last block is filled up with copies of the last row, which are no outliers, or with `filler`.
    """
    blocking = Blocking.of(X.shape[0], SIZES)
    padded = np.empty((blocking.count * blocking.size, *X.shape[1:]), dtype=X.dtype)
    padded[: blocking.n] = X
    padded[blocking.n :] = padded[blocking.n - 1] if filler is None else filler
    return blocking, padded.reshape(blocking.count, blocking.size, *X.shape[1:])


@jax.jit
def cross(kernel: Kernel, X1: Float[Array, "n1 d"], X2: Float[Array, "n2 d"]) -> Float[Array, "n1 n2"]:
    """K(X1, X2)."""
    return kernel(X1, X2)
