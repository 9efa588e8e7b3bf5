"""Squared distances between rows, and profiles of them.

Distances come from one matrix product, |x|² + |x'|² − 2xᵀx', which is what makes tiles fast. Profiles
carry their own derivative in r², so that coincident points give finite gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["distance_between", "matern12", "matern32", "matern52", "squared_distance", "with_norms"]

# units in the last place of |x|² + |x'|² up to which a squared distance is 0
ROUNDING = 16.0


def with_norms(X: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Rows and their squared norms: what `distance_between` needs."""
    return X, jnp.sum(X * X, axis=1)


def distance_between(F1: Any, F2: Any) -> Float[Array, "n1 n2"]:
    """r² between all rows, never negative. Rounding is of order 1e-16 times the squared norms, which is
    why rows are shifted to an origin near the data first; what is no larger counts as 0, so that rows
    that coincide do so exactly (a rough kernel would pass on the root of the rounding)."""
    (X1, norms1), (X2, norms2) = F1, F2
    norms = norms1[:, None] + norms2[None, :]
    r2 = norms - 2.0 * (X1 @ X2.T)
    return jnp.where(r2 > ROUNDING * jnp.finfo(r2.dtype).eps * norms, r2, 0.0)


def squared_distance(X1: Float[Array, "n1 d"], X2: Float[Array, "n2 d"]) -> Float[Array, "n1 n2"]:
    """r² between all rows of X1 and X2, shifted to a common point near the data."""
    shift = jax.lax.stop_gradient(X2[:1])
    return distance_between(with_norms(X1 - shift), with_norms(X2 - shift))


def _with_slope(value_and_slope: Callable[[Array], tuple[Array, Array]]) -> Callable[[Array], Array]:
    """A profile of r² with its derivative given, in place of autodiff through the root at 0. Value and
    slope come from one function, so that they share the root and the exponential."""
    profile = jax.custom_jvp(lambda r2: value_and_slope(r2)[0])

    def derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        value, slope = value_and_slope(*primals)
        return value, slope * tangents[0]

    profile.defjvp(derivative)
    return profile


def _root(x: Array) -> Array:
    """√x whose own derivative at 0 is large but finite: there it only ever meets a factor 0."""
    return jnp.sqrt(x + jnp.finfo(x.dtype).tiny)


def _matern12(r2: Array) -> tuple[Array, Array]:
    r = jnp.sqrt(r2)
    value = jnp.exp(-r)
    # −exp(−r)/(2r): unbounded at 0, where it only ever meets a difference x − x' of 0
    return value, jnp.where(r2 > 0.0, -0.5 * value / jnp.where(r2 > 0.0, r, 1.0), 0.0)


def _matern32(r2: Array) -> tuple[Array, Array]:
    s = _root(3.0 * r2)
    decay = jnp.exp(-s)
    return (1.0 + s) * decay, -1.5 * decay


def _matern52(r2: Array) -> tuple[Array, Array]:
    s = _root(5.0 * r2)
    decay = jnp.exp(-s)
    return (1.0 + s + (5.0 / 3.0) * r2) * decay, (-5.0 / 6.0) * (1.0 + s) * decay


matern12, matern32, matern52 = (_with_slope(f) for f in (_matern12, _matern32, _matern52))
