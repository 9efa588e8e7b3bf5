"""A lower bound on log|K̂| from two moments of what the inducing points leave out.

With M = Q̂^(−½) E Q̂^(−½) ⪰ 0, t = tr M and f = tr M² (both exact, in two passes over the tiles of K):

    log|K̂| = log|Q̂| + Σ log(1 + μᵢ) ≥ log|Q̂| + (t²/f) log(1 + f/t).

Proof: log(1 + μ) = μ·g(μ) with g(μ) = log(1 + μ)/μ convex, and the μᵢ/t are weights that sum to 1, so
Σ (μᵢ/t) g(μᵢ) ≥ g(Σ μᵢ²/t) = g(f/t) by Jensen's inequality. It is exact where all non-zero μ are equal.
The appendix's bound log(1 + tr(E)/ℓ₁) does not look at f: it allows all of E to sit in one direction.

Cost: 4n²m flops beside the n² kernel entries, O(nm) memory.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from cglb import tiles
from cglb.checks import boundary
from cglb.model import GP
from cglb.nystrom import Nystrom
from cglb.plan import plan_for

__all__ = ["lower", "residual_moments"]


@boundary
def lower(gp: GP, X: Float[Array, "n d"], factors: Nystrom) -> Float[Array, ""]:
    """log|K̂| ≥ log|Q̂| + (t²/f) log(1 + f/t)."""
    t, f = residual_moments(gp, X, factors)
    # where nothing is left, rounding could make either negative
    some = (t > 0.0) & (f > 0.0)
    t, f = jnp.where(some, t, 1.0), jnp.where(some, f, 1.0)
    return factors.logdet + jnp.where(some, t * t / f * jnp.log1p(f / t), 0.0)


def residual_moments(
    gp: GP, X: Float[Array, "n d"], factors: Nystrom
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(tr M, tr M²) through T = Q̂⁻¹E = K/σ² − AᵀH, H = A + (I + AAᵀ)⁻¹AE/σ², which has M's
    eigenvalues."""
    plan = plan_for(X, symmetric=True)
    KAt = tiles.product(plan, gp.kernel, X, X, factors.At)
    noise = jnp.asarray(gp.noise)
    Ht = _right_factor(factors, KAt, noise)
    diagonal = factors.k_diag / noise - jnp.sum(factors.At * Ht, axis=1)
    off_diagonal = tiles.trace_of_square(plan, gp.kernel, X, noise, factors.At, Ht)
    return jnp.sum(diagonal), jnp.sum(diagonal * diagonal) + off_diagonal


@jax.jit
def _right_factor(factors: Nystrom, KAt: Array, noise: Array) -> Array:
    AE = (KAt - noise * (factors.At @ factors.G)).T
    return factors.At + cho_solve((factors.LB, True), AE).T / noise
