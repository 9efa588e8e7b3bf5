"""Bounds on log|K̂| that need only the Nyström factors: O(n + m³) given these.

Upper bounds, from loose to tight (each is at most the one before, except that `hadamard` may be larger
or smaller than `waterfill`):

    trace      log|Q̂| + tr(E)/σ²                          SGPR's
    amgm       log|Q̂| + n log(1 + tr(E)/(nσ²))            the paper's, by AM-GM
    hadamard   log|Q̂| + Σ log(1 + δᵢ/σ²)                  at most amgm, by Jensen
    waterfill  max Σ log(ℓᵢ + eᵢ), eᵢ ≥ 0, Σeᵢ = tr(E)    the appendix's, over the eigenvalues ℓ of Q̂

Lower bounds: nystrom is log|Q̂|, spectral is log|Q̂| + log(1 + tr(E)/ℓ₁), ℓ₁ the largest eigenvalue.
Here E = K − Q ⪰ 0 and δ = diag E.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from cglb.bounds.logdet.base import LogdetBound, Side
from cglb.linalg.rounding import Rounding
from cglb.linalg.view import View

__all__ = ["AMGM", "Hadamard", "Nystrom", "Spectral", "Trace", "Waterfill"]


class Trace(LogdetBound):
    """log|K̂| ≤ log|Q̂| + tr(E)/σ²: Titsias' bound. `amgm` is never looser at the same cost."""

    key = "trace"

    def __call__(self, view: View) -> Float[Array, ""]:
        return _trace(view)


class AMGM(LogdetBound):
    """log|K̂| ≤ log|Q̂| + n log(1 + tr(E)/(nσ²)).

    The geometric mean of 1 + (λᵢ − ℓᵢ)/σ² is at most its arithmetic mean.
    """

    key, cost = "amgm", 0.0

    def __call__(self, view: View) -> Float[Array, ""]:
        return _amgm(view)


class Hadamard(LogdetBound):
    """log|K̂| ≤ log|Q̂| + Σ log(1 + δᵢ/σ²).

    K̂ = Q̂ + E and Q̂ ⪰ σ²I give log|K̂| − log|Q̂| = log|I + Q̂^(−½)EQ̂^(−½)| ≤ log|I + E/σ²|; then
    Hadamard's inequality.
    """

    key, rows, cost = "hadamard", True, 1.0

    def __call__(self, view: View) -> Float[Array, ""]:
        return _hadamard(view)


class Waterfill(LogdetBound):
    """log|K̂| ≤ max Σᵢ log(ℓᵢ + eᵢ) over e ≥ 0 with Σe = tr(E).

    The maximum distributes tr(E) over the spectrum like water: every level below the water line w rises
    to w. With k of the m eigenvalues under water in addition to the n − m that equal σ²,
    w = (tr(E) + Σ of those levels)/(n − m + k); exactly one k is consistent. O(n + m³).
    """

    key, cost = "waterfill", 2.0

    def __call__(self, view: View) -> Float[Array, ""]:
        return _waterfill(view)

    def margin(self, value: float, view: View, rounding: Rounding) -> float:
        """Small eigenvalues of Q̂ are less precise than its determinant."""
        return rounding.spectrum


class Nystrom(LogdetBound):
    """log|K̂| ≥ log|Q̂|."""

    key, side, cost = "nystrom", Side.BELOW, 0.0

    def __call__(self, view: View) -> Float[Array, ""]:
        return view.logdet_Q


class Spectral(LogdetBound):
    """log|K̂| ≥ log|Q̂| + log(1 + tr(E)/ℓ₁): the product Π(1 + eᵢ/ℓᵢ) is at least 1 + Σeᵢ/ℓᵢ."""

    key, side, cost = "spectral", Side.BELOW, 1.0

    def __call__(self, view: View) -> Float[Array, ""]:
        return _spectral(view)


@jax.jit
def _trace(view: View) -> Array:
    return view.logdet_Q + view.residual_trace / view.noise


@jax.jit
def _amgm(view: View) -> Array:
    return view.logdet_Q + view.n * jnp.log1p(view.residual_trace / (view.n * view.noise))


@jax.jit
def _hadamard(view: View) -> Array:
    return view.logdet_Q + jnp.sum(jnp.log1p(view.residual_diag / view.noise))


@jax.jit
def _waterfill(view: View) -> Array:
    ell = view.eigenvalues
    m, floor_count = ell.shape[0], view.n - ell.shape[0]
    k = jnp.arange(m + 1)
    below = jnp.concatenate([jnp.zeros(1, dtype=ell.dtype), jnp.cumsum(ell)])
    count = floor_count + k.astype(ell.dtype)
    levels = (view.residual_trace + floor_count * view.noise + below) / jnp.maximum(count, 1.0)
    next_level = jnp.concatenate([ell, jnp.full(1, jnp.inf, dtype=ell.dtype)])
    # the first k whose water line is below the next eigenvalue (nothing is under water if count = 0)
    fits = (levels <= next_level) & (count > 0.0)
    chosen = lax.stop_gradient(jnp.argmax(fits))
    submerged = jnp.arange(m) < chosen
    dry = jnp.sum(jnp.where(submerged, 0.0, jnp.log(ell)))
    return count[chosen] * jnp.log(levels[chosen]) + dry


@jax.jit
def _spectral(view: View) -> Array:
    return view.logdet_Q + jnp.log1p(view.residual_trace / view.eigenvalues[-1])
