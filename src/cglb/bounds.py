"""The log marginal likelihood and its bounds, each a pure function with its terms apart.

    sgpr ≤ cglb (at a good v) ≤ exact ≤ upper

`cglb` and `upper` hold for *every* v: conjugate gradients (`cglb.solve`) only supplies a good one. All
are differentiable in gp and, where there is one, Z; X, y and v are data.

    log p(y) = −(n/2) log 2π − ½ eᵀK̂⁻¹e − ½ log|K̂|,   e = y − μ
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from cglb import logdet as logdet_bounds
from cglb import nystrom, tiles
from cglb.auto import Auto
from cglb.chain import Chain
from cglb.checks import boundary
from cglb.logdet import LOWER, Spectrum, find
from cglb.model import GP
from cglb.nystrom import DEFAULT_JITTER, Nystrom
from cglb.plan import Plan, plan_for
from cglb.precision import Number

__all__ = [
    "UPPER",
    "BoundTerms",
    "cglb",
    "cglb_given",
    "exact",
    "quadratic_interval",
    "sgpr",
    "sgpr_given",
    "spectrum",
    "upper",
]

# every upper bound on log|K̂| by name; `Chain(...)` with other settings may be given in place of a name
UPPER = {**logdet_bounds.UPPER, "chain": Chain(), "auto": Auto()}


class BoundTerms(eqx.Module):
    """Three summands, with their signs: constant −(n/2)log 2π, quadratic −½·(…), logdet −½·(…)."""

    constant: Float[Array, ""]
    quadratic: Float[Array, ""]
    logdet: Float[Array, ""]

    @property
    def value(self) -> Number:
        """The bound itself, in nats."""
        return self.constant + self.quadratic + self.logdet


def _terms(n: int, quadratic: Array, logdet: Array) -> BoundTerms:
    constant = jnp.asarray(-0.5 * n * np.log(2.0 * np.pi), dtype=quadratic.dtype)
    return BoundTerms(constant, -0.5 * quadratic, -0.5 * logdet)


@boundary
def exact(gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]) -> BoundTerms:
    """log p(y) by Cholesky: O(n³) time, O(n²) memory."""
    K_hat = tiles.dense(gp.kernel, jnp.asarray(gp.noise), X)
    quadratic, logdet = _gaussian(K_hat, y - gp.mean)
    return _terms(X.shape[0], quadratic, logdet)


@jax.custom_vjp
def _gaussian(K_hat: Float[Array, "n n"], e: Float[Array, " n"]) -> tuple[Array, Array]:
    """(eᵀK̂⁻¹e, log|K̂|)."""
    return _gaussian_forward(K_hat, e)[0]


@jax.jit
def _gaussian_forward(K_hat: Array, e: Array) -> Any:
    L = jnp.linalg.cholesky(K_hat)
    alpha = cho_solve((L, True), e)
    return (e @ alpha, 2.0 * jnp.sum(jnp.log(jnp.diagonal(L)))), (L, alpha)


@jax.jit
def _gaussian_backward(residuals: Any, cotangents: Any) -> tuple[Array, Array]:
    L, alpha = residuals
    quadratic_bar, logdet_bar = cotangents
    inverse = cho_solve((L, True), jnp.eye(L.shape[0], dtype=L.dtype))
    K_bar = logdet_bar * inverse - quadratic_bar * jnp.outer(alpha, alpha)
    return K_bar, 2.0 * quadratic_bar * alpha


_gaussian.defvjp(_gaussian_forward, _gaussian_backward)


@boundary
def sgpr(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    logdet: Any = "trace",
    jitter: float = DEFAULT_JITTER,
) -> BoundTerms:
    """log p(y) ≥ −(n/2)log 2π − ½eᵀQ̂⁻¹e − ½·(upper bound on log|K̂|), O(nm²).

    logdet="trace" is Titsias' bound; any other choice is the paper's improvement at the same cost.
    """
    factors = nystrom.factor(jax.lax.stop_gradient(gp), X, jax.lax.stop_gradient(Z), jitter)
    return sgpr_given(gp, X, y, Z, factors, _upper(logdet, gp, X))


def sgpr_given(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    factors: Nystrom,
    logdet: Any,
) -> BoundTerms:
    """`sgpr` where the Nyström factors at (gp, Z) are already there."""
    e = y - gp.mean
    quadratic, logdet_value = _nystrom_terms(logdet, gp, X, Z, e, factors)
    return _terms(X.shape[0], quadratic, logdet_value)


@boundary
def cglb(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v: Float[Array, " n"],
    logdet: Any = "amgm",
    jitter: float = DEFAULT_JITTER,
) -> BoundTerms:
    """log p(y) ≥ −(n/2)log 2π − ½(rᵀQ̂⁻¹r + 2eᵀv − vᵀK̂v) − ½·(upper bound on log|K̂|) for every v.

    r = e − K̂v. v = 0 gives `sgpr`, v = K̂⁻¹e the best bound of this form. One product K̂v (n² kernel
    entries, O(n) memory) beside O(nm²); the gradient takes one more pass over the tiles.
    """
    plan = plan_for(X, symmetric=True)
    fixed, v = jax.lax.stop_gradient((gp, v))
    factors = nystrom.factor(fixed, X, jax.lax.stop_gradient(Z), jitter)
    Kv = tiles.product(plan, fixed.kernel, X, X, v[:, None])[:, 0]
    return cglb_given(gp, X, y, Z, v, factors, Kv, _upper(logdet, gp, X), plan)


def cglb_given(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v: Float[Array, " n"],
    factors: Nystrom,
    Kv: Float[Array, " n"],
    logdet: Any,
    plan: Plan,
) -> BoundTerms:
    """`cglb` where the Nyström factors and K(X, X)v (without noise) are already there."""
    e = y - gp.mean
    K_hat_v = tiles.known_product(plan, gp.kernel, X, v, Kv) + gp.noise * v
    r = e - K_hat_v
    quadratic, logdet_value = _nystrom_terms(logdet, gp, X, Z, r, factors)
    return _terms(X.shape[0], quadratic + 2.0 * (e @ v) - v @ K_hat_v, logdet_value)


@boundary
def upper(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v: Float[Array, " n"],
    logdet: Any = "nystrom",
    jitter: float = DEFAULT_JITTER,
) -> BoundTerms:
    """log p(y) ≤ −(n/2)log 2π − ½(2eᵀv − vᵀK̂v) − ½·(lower bound on log|K̂|) for every v.

    With `cglb` at the same v this is an interval that contains the log marginal likelihood.
    """
    plan = plan_for(X, symmetric=True)
    fixed, v = jax.lax.stop_gradient((gp, v))
    factors = nystrom.factor(fixed, X, jax.lax.stop_gradient(Z), jitter)
    Kv = tiles.product(plan, fixed.kernel, X, X, v[:, None])[:, 0]
    e = y - gp.mean
    K_hat_v = tiles.known_product(plan, gp.kernel, X, v, Kv) + gp.noise * v
    _, logdet_value = _nystrom_terms(find(logdet, LOWER), gp, X, Z, e, factors)
    return _terms(X.shape[0], 2.0 * (e @ v) - v @ K_hat_v, logdet_value)


class QuadraticInterval(eqx.Module):
    """lower ≤ eᵀK̂⁻¹e ≤ upper; half the width is CG's slack in nats."""

    lower: Float[Array, ""]
    upper: Float[Array, ""]


@boundary
def quadratic_interval(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v: Float[Array, " n"],
    jitter: float = DEFAULT_JITTER,
) -> QuadraticInterval:
    """2eᵀv − vᵀK̂v ≤ eᵀK̂⁻¹e ≤ rᵀQ̂⁻¹r + 2eᵀv − vᵀK̂v (Lemma 3), for every v."""
    plan = plan_for(X, symmetric=True)
    factors = nystrom.factor(gp, X, Z, jitter)
    e = y - gp.mean
    K_hat_v = tiles.product(plan, gp.kernel, X, X, v[:, None])[:, 0] + gp.noise * v
    r = e - K_hat_v
    lower = 2.0 * (e @ v) - v @ K_hat_v
    return QuadraticInterval(lower, lower + r @ factors.solve(r))


def _upper(logdet: Any, gp: GP, X: Array) -> Any:
    """An upper bound on log|K̂| from a name, settings or a prepared bound."""
    return find(logdet, UPPER).prepare(jax.lax.stop_gradient(gp.kernel), X)


def _nystrom_terms(
    logdet: Any, gp: GP, X: Array, Z: Array, r: Array, factors: Nystrom
) -> tuple[Array, Array]:
    """(rᵀQ̂⁻¹r, bound on log|K̂|), differentiable in gp, Z and r."""
    G, c, At = nystrom.gram(gp, X, Z, r, factors, logdet.rows)
    noise = jnp.asarray(gp.noise)
    quadratic = (r @ r - _inverse_quadratic(G, c, factors.LB)) / noise
    return quadratic, logdet(Spectrum(gp.kernel, noise, X, G, factors.LB, At))


def spectrum(gp: GP, X: Float[Array, "n d"], factors: Nystrom) -> Spectrum:
    """What log-det bounds look at, as values: nothing here is differentiable."""
    return Spectrum(gp.kernel, jnp.asarray(gp.noise), X, factors.G, factors.LB, factors.At)


@jax.custom_vjp
def _inverse_quadratic(G: Array, c: Array, LB: Array) -> Array:
    """cᵀ(I + G)⁻¹c given the Cholesky factor of I + G; gradients go through G and c."""
    return _inverse_quadratic_forward(G, c, LB)[0]


@jax.jit
def _inverse_quadratic_forward(G: Array, c: Array, LB: Array) -> tuple[Array, tuple[Array, Array]]:
    x = cho_solve((LB, True), c)
    return c @ x, (x, LB)


@jax.jit
def _inverse_quadratic_backward(residuals: Any, g: Array) -> tuple[Array, Array, Array]:
    x, LB = residuals
    return -g * jnp.outer(x, x), 2.0 * g * x, jnp.zeros_like(LB)


_inverse_quadratic.defvjp(_inverse_quadratic_forward, _inverse_quadratic_backward)
