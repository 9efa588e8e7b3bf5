"""Relevance of input columns measured on a kernel, for kernels that do not state it.

With x' = x + h·eⱼ, a step of h along column j changes the function by E[(f(x') − f(x))²] = k(x, x) +
k(x', x') − 2k(x, x'): here on average over points x, relative to the prior variance. The relevance of a
column is the inverse of the step at which this first reaches a level, the same for all columns: steps
that change the function by the same amount count as equally far. It is scaled so that an RBF kernel gets
exactly its inverse lengthscales, and every other function of Σⱼ (xⱼ − x'ⱼ)²/lengthscaleⱼ² gets a
multiple of them. No derivative is taken, so it also serves rough kernels, which have none at x = x'.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from cglb.core.precision import float64

__all__ = ["probe_relevance"]

POINTS = 16
SMALLEST, LARGEST, STEPS = 1e-6, 1e6, 64  # steps that are tried, in standardised inputs
ROUNDS = 7  # each narrows the steps between which the level is reached by a factor of STEPS
IGNORED = 1e-6  # a column that never changes f by more than this share of its variance has relevance 0
LOWEST_LEVEL, HIGHEST_LEVEL = 1e-4, 0.5


def probe_relevance(kernel: Any, d: int) -> Float[np.ndarray, " d"]:
    """Relevance of each of d columns, as the module says; about 7000·d entries of the kernel.

    The points are drawn from a standard normal distribution, the same ones at every call. A column that
    changes nothing in steps of up to 1e6 has 0. Where the kernel is not finite at any of the points,
    nothing can be said, and every column has 1.
    """
    points = np.random.default_rng(0).normal(size=(POINTS, d))
    steps = np.tile(np.geomspace(SMALLEST, LARGEST, STEPS), (d, 1))
    with float64():
        held = jax.tree.map(jnp.asarray, (kernel, points))
        change = np.asarray(_change(*held, jnp.asarray(steps)))
        if np.isnan(change).all():
            return np.ones(d)
        # where the kernel is periodic the change falls again: what counts is that it was reached
        most = np.nanmax(change, axis=1, initial=0.0)
        used = most > IGNORED
        if not used.any():
            return np.zeros(d)
        level = float(np.clip(0.5 * most[used].min(), LOWEST_LEVEL, HIGHEST_LEVEL))
        reached = most >= level
        for _ in range(ROUNDS):
            steps = _narrow(steps, change >= level, reached)
            change = np.asarray(_change(*held, jnp.asarray(steps)))
    # a column that never comes to the level: as if the change went on as the square of the step
    beyond = LARGEST * np.sqrt(level / np.where(used, most, 1.0))
    step = np.where(reached, steps[:, -1], beyond)
    lengthscale = step / np.sqrt(-2.0 * np.log1p(-0.5 * level))  # of the RBF with that change there
    return np.where(used, 1.0 / lengthscale, 0.0)


def _narrow(steps: np.ndarray, above: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """Steps [d, STEPS] between the last one before a column reaches the level and the first after."""
    columns = np.arange(len(steps))
    # rounding may put the last step, known to reach the level, below it
    first = np.where(above.any(axis=1), above.argmax(axis=1), steps.shape[1] - 1)
    low, high = steps[columns, np.maximum(first - 1, 0)], steps[columns, first]
    return np.where(reached[:, None], np.geomspace(low, high, steps.shape[1], axis=1), steps)


@jax.jit
def _change(kernel: Any, points: Float[Array, "p d"], steps: Float[Array, "d s"]) -> Float[Array, "d s"]:
    """Mean of E[(f(x + h·eⱼ) − f(x))²] over the points x where it is finite, over the mean variance."""

    def along(column: tuple[Array, Array]) -> Array:
        direction, h = column

        def at(x: Array) -> Array:
            start, moved = x[None, :], x[None, :] + h[:, None] * direction[None, :]
            covariance = kernel(moved, start)[:, 0]
            return kernel.diag(start) + kernel.diag(moved) - 2.0 * covariance

        return _finite_mean(lax.map(at, points))

    variance = _finite_mean(kernel.diag(points))
    eye = jnp.eye(points.shape[1], dtype=points.dtype)
    return lax.map(along, (eye, steps)) / variance


def _finite_mean(values: Array) -> Array:
    """The mean over the first axis of the entries that are finite; NaN where none are."""
    return jnp.nanmean(jnp.where(jnp.isfinite(values), values, jnp.nan), axis=0)
