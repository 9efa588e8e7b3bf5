"""Gradients of predictions in the test inputs, for example to find where a function is largest."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cglb.core.validation import boundary
from cglb.kernels import Kernel
from cglb.posteriors.base import Posterior

__all__ = ["mean_gradient", "variance_gradient"]

# kernel entries whose gradient is computed together
ENTRIES = 4_000_000


@boundary
def mean_gradient(posterior: Posterior, X_star: Float[Array, "s d"]) -> Float[Array, "s d"]:
    """∂ E f(x)/∂x at each row; about as many kernel entries as the mean, and their derivatives."""
    total = jnp.zeros_like(X_star)
    for points, weights in posterior.mean_terms():
        size = max(1, ENTRIES // len(points))
        parts = [
            _slope(posterior.gp.kernel, X_star[i : i + size], points, weights)
            for i in range(0, len(X_star), size)
        ]
        total = total + jnp.concatenate(parts)
    return total


@boundary
def variance_gradient(posterior: Posterior, X_star: Float[Array, "s d"]) -> Float[Array, "s d"]:
    """∂ Var f(x)/∂x at each row, row by row: each costs as much as a variance."""

    def variance(x: Array) -> Array:
        row = x[None, :]
        return posterior.gp.kernel.diag(row)[0] - posterior.explained(row)[0, 0]

    return jax.lax.map(jax.grad(variance), X_star)


@jax.jit
def _slope(kernel: Kernel, rows: Array, points: Array, weights: Array) -> Array:
    return jax.grad(lambda rows: jnp.sum(kernel(rows, points) @ weights))(rows)
