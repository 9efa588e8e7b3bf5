"""A lower bound on log|K̂| from two moments of what the inducing points do not explain.

With M = Q̂^(−½) E Q̂^(−½) ⪰ 0, t = tr M and f = tr M² (both exact, in two passes over the tiles of K):

    log|K̂| = log|Q̂| + Σ log(1 + μᵢ) ≥ log|Q̂| + (t²/f) log(1 + f/t).

Proof: log(1 + μ) = μ·g(μ) with g(μ) = log(1 + μ)/μ convex, and the μᵢ/t are weights that sum to 1, so
Σ (μᵢ/t) g(μᵢ) ≥ g(Σ μᵢ²/t) = g(f/t) by Jensen's inequality. It is exact if all non-zero μ are equal.
The appendix's bound log(1 + tr(E)/ℓ₁) does not use f: it allows all of E to lie in one direction.

Cost: 4n²m flops in addition to the n² kernel entries, O(nm) memory; a gradient keeps every tile, O(n²).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from cglb.bounds.logdet.base import LogdetBound, Side
from cglb.compute import shards
from cglb.compute.shards import Tall
from cglb.linalg.operator import KernelOperator
from cglb.linalg.rounding import Rounding, gamma
from cglb.linalg.view import View

__all__ = ["Moments", "residual_moments"]


class Moments(LogdetBound):
    """log|K̂| ≥ log|Q̂| + (t²/f) log(1 + f/t)."""

    key, side, rows, cost = "moments", Side.BELOW, True, 2.0

    def __call__(self, view: View) -> Float[Array, ""]:
        t, f = residual_moments(view)
        # if nothing is unexplained, rounding may make either of them negative
        some = (t > 0.0) & (f > 0.0)
        t, f = jnp.where(some, t, 1.0), jnp.where(some, f, 1.0)
        return view.logdet_Q + jnp.where(some, t * t / f * jnp.log1p(f / t), 0.0)

    def certain(self, view: View, rounding: Rounding) -> float:
        """With t as small and f as large as the rounding of T allows: the bound rises in t, falls in f.

        T errs by (B/σ²)(1 + 2‖A‖) from products with K̂, by what a factorisation of I + AAᵀ adds, and by
        what E lacks to be positive semi-definite.
        """
        t, f = (float(moment) for moment in residual_moments(view))
        ratio = float(view.residual_trace) / rounding.noise
        factors = gamma(rounding.n + 3 * rounding.m) * (1.0 + rounding.m + rounding.explained)
        products = rounding.product / rounding.noise * (1.0 + 2.0 * rounding.explained**0.5)
        error = products + factors * (1.0 + ratio)
        least = t - rounding.n**0.5 * error
        most = (max(f, 0.0) ** 0.5 + error + rounding.lost) ** 2
        gain = 0.0
        if least > 0.0 and 0.0 < most < math.inf:
            gain = least * least / most * math.log1p(most / least)
        return float(view.logdet_Q) + gain - rounding.logdet

    def margin(self, value: float, view: View, rounding: Rounding) -> float:
        return abs(value - self.certain(view, rounding))


def residual_moments(view: View) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(tr M, tr M²), from T = Q̂⁻¹E = K/σ² − AᵀH with H = A + (I + AAᵀ)⁻¹AE/σ².

    T has the eigenvalues of M.
    """
    operator = KernelOperator(view.kernel, view.noise, view.X)
    Ht, diagonal = _right_factor(view, shards.by_columns(operator.__matmul__, view.rows))
    off_diagonal = operator.trace_of_square(view.rows, Ht)
    return jnp.sum(diagonal), jnp.sum(diagonal * diagonal) + off_diagonal


@jax.jit
def _right_factor(view: View, K_hat_At: Tall) -> tuple[Tall, Array]:
    """(Hᵀ, diag T)."""
    # factor I + G again: the factor in the view is held fixed, and this one is differentiated
    LB = jnp.linalg.cholesky(view.G + jnp.eye(view.m, dtype=view.G.dtype))

    def rows(At: Array, K_hat_At: Array, G: Array, LB: Array, noise: Array) -> Array:
        AE = (K_hat_At - noise * (At + At @ G)).T  # ((K̂ − Q̂)Aᵀ)ᵀ
        return At + cho_solve((LB, True), AE).T / noise

    Ht = shards.map_rows(rows, (view.rows, K_hat_At), view.G, LB, view.noise)
    return Ht, view.kernel.diag(view.X) / view.noise - shards.row_products(view.rows, Ht)
