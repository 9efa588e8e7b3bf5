"""Where to put the inducing points. Every choice is seeded and never takes the same point twice."""

from __future__ import annotations

from functools import partial
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from cglb.checks import boundary
from cglb.kernels import Kernel

__all__ = ["greedy", "greedy_indices", "kmeans", "pivots", "uniform"]


@boundary
def greedy(
    kernel: Kernel, X: Float[Array, "n d"], m: int, seed: int | None = None
) -> Float[Array, "m d"]:
    """The rows of X with the largest variance given the ones before: pivoted Cholesky.

    Each choice lowers tr(K − Q) the most among the diagonal. O(nm²) time, O(nm) memory. Fewer than m
    rows come back if the rest is already determined (duplicates), since more would only make Kuu
    singular. `seed` decides between equal variances (the first pivot of a stationary kernel); without
    it the lowest row number does.
    """
    return X[greedy_indices(kernel, X, m, seed)]


@boundary
def greedy_indices(
    kernel: Kernel, X: Float[Array, "n d"], m: int, seed: int | None = None
) -> Int[np.ndarray, " m"]:
    """The row numbers of `greedy`, in the order of choice."""
    _check_count(m, X.shape[0])
    n = X.shape[0]
    order = np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)
    chosen, variances = pivots(m, kernel, X[order])
    # a conditional variance at the level of rounding means that the row is in the span already
    useful = np.asarray(variances) > 1e-10 * float(np.max(np.asarray(kernel.diag(X))))
    useful[0] = True
    return order[np.asarray(chosen)[np.logical_and.accumulate(useful)]]


@partial(jax.jit, static_argnums=0)
def pivots(m: int, kernel: Kernel, X: Array) -> tuple[Array, Array]:
    """Pivots [m] and their conditional variances: distinct rows, also past the rank of K. Stages of
    doubling width, so that a step touches only about as many columns of the factor as are filled."""
    n = X.shape[0]
    diag = kernel.diag(X)
    C = jnp.zeros((0, n), dtype=X.dtype)
    chosen, variances = [], []
    start = 0
    while start < m:
        stop = min(m, max(64, 2 * start))
        C = jnp.concatenate([C, jnp.zeros((stop - start, n), dtype=X.dtype)])

        def step(state: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], tuple]:
            C, diag = state
            pivot = jnp.argmax(diag)
            variance = diag[pivot]
            column = kernel(X, lax.dynamic_slice_in_dim(X, pivot, 1))[:, 0]
            column = (column - C[:, pivot] @ C) / jnp.sqrt(jnp.maximum(variance, 1e-300))
            C = lax.dynamic_update_slice_in_dim(C, column[None, :], t, axis=0)
            diag = jnp.maximum(diag - column * column, 0.0).at[pivot].set(-jnp.inf)
            diag = jnp.where(jnp.isneginf(state[1]), -jnp.inf, diag)  # chosen rows stay out
            return (C, diag), (pivot, variance)

        (C, diag), (p, s) = lax.scan(step, (C, diag), jnp.arange(start, stop))
        chosen.append(p)
        variances.append(s)
        start = stop
    return jnp.concatenate(chosen), jnp.concatenate(variances)


@boundary
def uniform(X: Float[Array, "n d"], m: int, seed: int = 0) -> Float[np.ndarray, "m d"]:
    """m distinct rows of X, each as likely as the other."""
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
    if len(centres) < m:  # empty clusters: fill up with rows that are not centres yet
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
