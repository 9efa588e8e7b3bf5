"""K with an exact diagonal: whole, as half of a matrix in memory, or one tile.

The distance of a row to itself is rounded, so the diagonal of K(X, X) is set to `kernel.diag` wherever K
is made; `_exact_diagonal` is the only place that does so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from cglb.compute.cpu import blas
from cglb.compute.parallel import Threads
from cglb.compute.tiling import Blocking, pad_rows
from cglb.core.precision import Number
from cglb.kernels.base import Kernel
from cglb.kernels.distance import middle

__all__ = [
    "TILE",
    "covariance",
    "covariance_and_pull",
    "cross",
    "dense",
    "pull_half",
    "upper_triangle",
    "whole",
]

TILE = 1000  # rows; no power of two, whose columns would fall on the same cache lines
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
    threads: Threads, kernel: Kernel, noise: Number, X: Float[Array, "n d"]
) -> Float[np.ndarray, "n n"]:
    """K̂ on and above its diagonal, in the dtype of X: about n²/2 kernel entries.

    What is below the diagonal tiles is undefined and never written, so no memory is used for it.
    """
    blocking = Blocking.of(X.shape[0], TILE)
    padded = _blocks(blocking, X)
    K_hat = blas.empty((blocking.n, blocking.n), X.dtype)
    noise = jnp.asarray(noise, dtype=X.dtype)

    def fill(i: int, j: int) -> None:
        rows, columns = blocking.rows(i), blocking.rows(j)
        tile = dense(kernel, noise, padded[i]) if i == j else cross(kernel, padded[i], padded[j])
        K_hat[rows, columns] = np.asarray(tile)[: rows.stop - rows.start, : columns.stop - columns.start]

    pairs = [(i, j) for i in range(blocking.count) for j in range(i, blocking.count)]
    threads.for_each(fill, pairs)
    return K_hat


def pull_half(
    threads: Threads,
    kernel: Kernel,
    X: Float[Array, "n d"],
    weights: Callable[[slice, slice], np.ndarray],
    inputs: bool,
) -> tuple[Kernel, Float[np.ndarray, "n d"] | None]:
    """Gradient of Σᵢⱼ WᵢⱼKᵢⱼ in the kernel and, with `inputs`, in X, for a symmetric W.

    Args:
        weights: W on a tile, given by its rows and columns; called for i ≥ j only, and on the diagonal
            the entries above it are ignored.
    """
    blocking = Blocking.of(X.shape[0], TILE)
    padded = _blocks(blocking, X)

    def tile(i: np.integer, j: np.integer) -> Any:
        rows, columns = blocking.rows(int(i)), blocking.rows(int(j))
        part = weights(rows, columns)
        # an entry below the diagonal stands for its mirror image too
        part = np.tril(part) + np.tril(part, -1).T if i == j else 2.0 * part
        W = np.zeros((blocking.size, blocking.size), dtype=part.dtype)
        W[: part.shape[0], : part.shape[1]] = part
        return _pull_tile(bool(i == j), inputs, kernel, padded[i], padded[j], jnp.asarray(W))

    index = np.arange(blocking.count)
    I, J = (side.ravel() for side in np.meshgrid(index, index, indexing="ij"))
    lower = J <= I
    if not inputs:
        return threads.sum(lambda i, j: tile(i, j)[0], (), (I[lower], J[lower])), None
    found = threads.map(tile, (), (I[lower], J[lower]))
    X_bar = np.zeros((blocking.count * blocking.size, X.shape[1]), dtype=X.dtype)
    stripes = X_bar.reshape(blocking.count, blocking.size, -1)
    for i, j, (_, X1_bar, X2_bar) in zip(I[lower], J[lower], found, strict=True):
        stripes[i] += np.asarray(X1_bar)
        stripes[j] += np.asarray(X2_bar)
    kernel_bar = jax.tree.map(lambda *parts: sum(parts), *(kernel_bar for kernel_bar, _, _ in found))
    return kernel_bar, X_bar[: blocking.n]


@partial(jax.jit, static_argnums=(0, 1))
def _pull_tile(
    diagonal: bool, inputs: bool, kernel: Kernel, X1: Array, X2: Array, W: Array
) -> tuple[Kernel, Array | None, Array | None]:
    def total(kernel: Kernel, X1: Array, X2: Array) -> Array:
        if not diagonal:
            return jnp.sum(W * kernel(X1, X2))
        return jnp.sum(W * _exact_diagonal(kernel(X1, X2), kernel.diag(X1)))

    if inputs:
        return jax.grad(total, argnums=(0, 1, 2))(kernel, X1, X2)
    return jax.grad(total)(kernel, X1, X2), None, None


@partial(jax.jit, static_argnums=0)
def _blocks(blocking: Blocking, X: Array) -> list[Array]:
    """X in padded blocks, each an array of its own."""
    padded = pad_rows(X, blocking.count, blocking.size)
    return [padded[i] for i in range(blocking.count)]


@jax.jit
def cross(kernel: Kernel, X1: Float[Array, "n1 d"], X2: Float[Array, "n2 d"]) -> Float[Array, "n1 n2"]:
    """K(X1, X2)."""
    return kernel(X1, X2)
