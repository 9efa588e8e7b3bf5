"""How to choose inducing points. Every choice is seeded and never takes the same point twice."""

from __future__ import annotations

from functools import partial
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from cglb.compute.backend import backend_of
from cglb.compute.mesh import Mesh
from cglb.core.validation import boundary
from cglb.kernels.base import Kernel
from cglb.linalg import pivots_mesh
from cglb.linalg.pivoting import in_stages
from cglb.linalg.row_noise import number

__all__ = ["greedy", "greedy_rows", "kmeans", "pivots", "uniform"]


# a conditional variance below this share of the largest prior variance is rounding: earlier rows
# already determine this row
DETERMINED = 1e-10
# avoids a division by 0 where the variance is 0
TINY = 1e-300


@boundary
def greedy(
    kernel: Kernel, X: Float[Array, "n d"], m: int, seed: int | None = None
) -> Float[Array, "m d"]:
    """Rows of X chosen one by one, each with the largest variance given those before: pivoted Cholesky.

    O(nm²) time, O(nm) memory. The result has fewer than m rows if these already determine all others
    (duplicates): more rows would only make Kuu singular.

    Args:
        kernel: at the hyperparameters of the model.
        X: inputs.
        m: the number of points.
        seed: decides between equal variances (the first pivot of a stationary kernel); without it the
            lowest row number is chosen.
    """
    return greedy_points(kernel, X, m, seed)


def greedy_points(
    kernel: Kernel, X: Float[Array, "n d"], m: int, seed: int | None = None
) -> Float[Array, "m d"]:
    """`greedy` for validated arguments."""
    return jnp.take(X, greedy_rows(kernel, X, m, seed), axis=0)


def greedy_rows(
    kernel: Kernel, X: Float[Array, "n d"], m: int, seed: int | None = None, enough: float = 0.0
) -> Int[np.ndarray, " m"]:
    """The row numbers of `greedy`, in the order of choice, for validated arguments.

    Args:
        enough: stop where the conditional variances of all rows sum to at most this; the number of
            points is then rounded up to a power of two, so that there are few sizes to compile for.
    """
    _check_count(m, number(kernel, X))
    n, size = number(kernel, X), X.shape[0]
    order = np.arange(size)
    if seed is not None:  # rows that count for nothing stay last
        order[:n] = np.random.default_rng(seed).permutation(n)
    chosen, variances = pivots(m, kernel, jax.device_put(np.asarray(X)[order]))
    useful = np.asarray(variances) > DETERMINED * float(np.max(np.asarray(kernel.diag(X))))
    useful[0] = True
    count = int(np.sum(np.logical_and.accumulate(useful)))
    # the chosen row has the largest variance: n times as much is at least the sum
    needed = int(np.sum(n * np.asarray(variances) > enough))
    return order[np.asarray(chosen)[: min(count, 1 << max(needed - 1, 0).bit_length())]]


def pivots(m: int, kernel: Kernel, X: Array) -> tuple[Array, Array]:
    """Pivots [m] and their conditional variances [m]: distinct rows, also if m exceeds the rank of K.

    O(nm²); on a mesh, rows and memory are split.
    """
    backend = backend_of(kernel, X)
    if isinstance(backend, Mesh):
        return pivots_mesh.pivots(backend.mesh, m, TINY, kernel, X)
    return _pivots(m, kernel, X)


@partial(jax.jit, static_argnums=0)
def _pivots(m: int, kernel: Kernel, X: Array) -> tuple[Array, Array]:
    """Pivots [m] and their conditional variances [m]: distinct rows, also if m exceeds the rank of K.

    O(nm²).
    """

    def step(state: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], tuple]:
        C, diag = state
        pivot = jnp.argmax(diag)
        variance = diag[pivot]
        column = kernel(X, lax.dynamic_slice_in_dim(X, pivot, 1))[:, 0]
        column = (column - C[:, pivot] @ C) / jnp.sqrt(jnp.maximum(variance, TINY))
        C = lax.dynamic_update_slice_in_dim(C, column[None, :], t, axis=0)
        diag = jnp.maximum(diag - column * column, 0.0).at[pivot].set(-jnp.inf)
        diag = jnp.where(jnp.isneginf(state[1]), -jnp.inf, diag)  # chosen rows stay out
        return (C, diag), (pivot, variance)

    return in_stages(m, kernel.diag(X), step)


def pivot_rows(kernel: Kernel, X: Float[Array, "n d"], rank: int = 100) -> Float[Array, "m d"]:
    """The rows of X that pivoted Cholesky chooses: min(rank, n) distinct rows, O(n·rank²)."""
    chosen, _ = pivots(min(rank, X.shape[0]), kernel, X)
    return jnp.take(X, chosen, axis=0)


@boundary
def uniform(X: Float[Array, "n d"], m: int, seed: int = 0) -> Float[np.ndarray, "m d"]:
    """m distinct rows of X, chosen with equal probability."""
    rows = np.unique(np.asarray(X), axis=0)
    _check_count(m, len(rows), "distinct rows")
    return rows[np.random.default_rng(seed).choice(len(rows), size=m, replace=False)]


@boundary
def kmeans(X: Float[Array, "n d"], m: int, seed: int = 0) -> Float[np.ndarray, "m d"]:
    """The centres of m clusters of the rows of X (scikit-learn's k-means)."""
    from sklearn.cluster import MiniBatchKMeans  # slow to import and needed only here

    data = np.asarray(X)
    rows = np.unique(data, axis=0)
    _check_count(m, len(rows), "distinct rows")
    found = MiniBatchKMeans(n_clusters=m, random_state=seed, n_init="auto").fit(data)
    centres = np.unique(found.cluster_centers_, axis=0)
    if len(centres) < m:  # empty clusters: add rows that are not centres
        taken = {row.tobytes() for row in centres}
        spare = np.array([row for row in rows if row.tobytes() not in taken])
        extra = np.random.default_rng(seed).choice(len(spare), size=m - len(centres), replace=False)
        centres = np.concatenate([centres, spare[extra]])
    return centres


def _check_count(m: int, available: int, what: str = "rows") -> None:
    if not isinstance(m, Integral) or not 1 <= m <= available:
        raise ValueError(
            f"m must be a whole number between 1 and the number of {what} in X ({available}), found {m}."
        )
