"""Squared distances between rows, by one matrix product: |x|² + |x'|² − 2xᵀx'. That makes tiles fast."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["WithNorms", "distance_between", "squared_distance", "with_norms"]

# units in the last place of |x|² + |x'|² up to which a squared distance is 0
ROUNDING = 16.0

# rows [n, d] and their squared norms [n], for any n
WithNorms = tuple[Float[Array, "_ d"], Float[Array, " _"]]


def with_norms(X: Float[Array, "n d"]) -> WithNorms:
    """Rows and their squared norms: what `distance_between` needs."""
    return X, jnp.sum(X * X, axis=1)


def distance_between(F1: WithNorms, F2: WithNorms) -> Float[Array, "n1 n2"]:
    """r² between all rows, never negative; n1·n2·d flops times two.

    Rounding is of order 1e-16 times the squared norms, which is why rows are first shifted to an origin
    near the data. What is no larger than the rounding counts as 0, so that rows that coincide do so
    exactly (a rough kernel would pass on the root of the rounding).
    """
    (X1, norms1), (X2, norms2) = F1, F2
    norms = norms1[:, None] + norms2[None, :]
    r2 = norms - 2.0 * (X1 @ X2.T)
    return jnp.where(r2 > ROUNDING * jnp.finfo(r2.dtype).eps * norms, r2, 0.0)


def squared_distance(X1: Float[Array, "n1 d"], X2: Float[Array, "n2 d"]) -> Float[Array, "n1 n2"]:
    """r² between all rows of X1 and X2, shifted to a common point near the data."""
    shift = jax.lax.stop_gradient(X2[:1])
    return distance_between(with_norms(X1 - shift), with_norms(X2 - shift))
