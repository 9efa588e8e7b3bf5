"""Predictions: the mean and covariance of f at new inputs.

`exact` conditions on everything by Cholesky. `cglb` has the paper's mean, which is exact in both limits
Q = K and v = K̂⁻¹e, with SGPR's covariance; `sgpr` is the same at v = 0. `IterativePosterior`, which
`love.condition` makes, is Iterative GP's. All answer `mean`, `variance` and `covariance` for the latent
f; add `noise` for observations. Test rows go through in batches, so memory does not grow with their
number.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from cglb import blocked, dense, nystrom, tiles
from cglb.checks import boundary
from cglb.lanes import on_host
from cglb.model import GP
from cglb.nystrom import DEFAULT_JITTER
from cglb.operator import kernel_operator
from cglb.plan import plan_for

__all__ = ["ExactPosterior", "IterativePosterior", "SparsePosterior", "cglb", "exact", "sgpr"]

BATCH_ROWS = 1024
ROOT_ROWS = 8192


class ExactPosterior(eqx.Module):
    """mean k_sf K̂⁻¹e + μ, covariance k_ss − k_sf K̂⁻¹ k_fs; O(n²) memory."""

    gp: GP
    X: Float[Array, "n d"]
    L: Float[Array, "n n"]
    alpha: Float[Array, " n"]

    @boundary
    def mean(self, X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
        """E f(X_star)."""
        return _cross_mean(self.gp, self.X, self.alpha, X_star)

    @boundary
    def variance(self, X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
        """Var f(xᵢ) for each row, never negative."""
        return _by_rows(_exact_variance, self, X_star)

    @boundary
    def covariance(self, X_star: Float[Array, "s d"]) -> Float[Array, "s s"]:
        """Cov(f(xᵢ), f(xⱼ)) for all pairs of rows."""
        B = solve_triangular(self.L, self.gp.kernel(self.X, X_star), lower=True)
        return _symmetric(self.gp.kernel(X_star, X_star) - B.T @ B)


class SparsePosterior(eqx.Module):
    """mean k_sf v + k_su Kuu⁻¹Kuf Q̂⁻¹(e − K̂v) + μ, covariance SGPR's.

    O(n + m²) memory; a mean costs O(n) a row (O(m) if v = 0), a variance O(m²).
    """

    gp: GP
    X: Float[Array, "n d"] | None  # None where v = 0: the training rows are not needed
    v: Float[Array, " n"] | None
    Z: Float[Array, "m d"]
    weights: Float[Array, " m"]
    L: Float[Array, "m m"]
    LB: Float[Array, "m m"]

    @boundary
    def mean(self, X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
        """E f(X_star)."""
        sparse = _by_rows(_sparse_mean, self, X_star)
        if self.X is None or self.v is None:
            return sparse
        return sparse + _cross_mean(self.gp, self.X, self.v, X_star) - self.gp.mean

    @boundary
    def variance(self, X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
        """Var f(xᵢ) for each row, never negative: k_ss − ‖L⁻¹k_us‖² + ‖LB⁻¹L⁻¹k_us‖²."""
        return _by_rows(_sparse_variance, self, X_star)

    @boundary
    def covariance(self, X_star: Float[Array, "s d"]) -> Float[Array, "s s"]:
        """Cov(f(xᵢ), f(xⱼ)) for all pairs of rows."""
        B = solve_triangular(self.L, self.gp.kernel(self.Z, X_star), lower=True)
        C = solve_triangular(self.LB, B, lower=True)
        return _symmetric(self.gp.kernel(X_star, X_star) - B.T @ B + C.T @ C)


class IterativePosterior(eqx.Module):
    """mean k_sf v + μ, covariance k_ss − k_sf RRᵀ k_fs with R [n, k] from Lanczos (LOVE).

    RRᵀ ⪯ K̂⁻¹, so variances are never below those of `exact`. O(nk) memory; O(n) a row for the mean,
    O(nk) for a variance.
    """

    gp: GP
    X: Float[Array, "n d"]
    v: Float[Array, " n"]
    root: Float[Array, "n k"]

    @boundary
    def mean(self, X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
        """E f(X_star)."""
        return _cross_mean(self.gp, self.X, self.v, X_star)

    @boundary
    def variance(self, X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
        """Var f(xᵢ) for each row, never negative."""
        parts = []
        for start in range(0, X_star.shape[0], ROOT_ROWS):
            rows = X_star[start : start + ROOT_ROWS]
            B = _cross_root(self, rows)
            parts.append(jnp.maximum(self.gp.kernel.diag(rows) - jnp.sum(B * B, axis=1), 0.0))
        return jnp.concatenate(parts)

    @boundary
    def covariance(self, X_star: Float[Array, "s d"]) -> Float[Array, "s s"]:
        """Cov(f(xᵢ), f(xⱼ)) for all pairs of rows."""
        B = _cross_root(self, X_star)
        return _symmetric(self.gp.kernel(X_star, X_star) - B @ B.T)


@boundary
def exact(gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]) -> ExactPosterior:
    """The posterior given all data, by Cholesky: O(n³).

    `numpy.linalg.LinAlgError` where more than 12,000 rows have no factor in float64; fewer give NaN.
    """
    if X.shape[0] > blocked.WHOLE and on_host(gp, X, y):  # JAX's own would end the process: `blocked`
        found = dense.condition(gp, X, y)
        return ExactPosterior(gp, X, jnp.asarray(found.L), jnp.asarray(found.alpha))
    L = jnp.linalg.cholesky(tiles.dense(gp.kernel, jnp.asarray(gp.noise), X))
    return ExactPosterior(gp, X, L, cho_solve((L, True), y - gp.mean))


@boundary
def cglb(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v: Float[Array, " n"],
    jitter: float = DEFAULT_JITTER,
) -> SparsePosterior:
    """The paper's predictor at v (from `cglb.solve`, tolerance 1e-3 for predictions)."""
    factors = nystrom.factor(gp, X, Z, jitter)
    r = y - gp.mean - kernel_operator(gp, X) @ v
    return SparsePosterior(gp, X, v, Z, factors.inducing_weights(r), factors.L, factors.LB)


@boundary
def sgpr(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    jitter: float = DEFAULT_JITTER,
) -> SparsePosterior:
    """Titsias' predictor: `cglb` at v = 0, without any n × n work."""
    factors = nystrom.factor(gp, X, Z, jitter)
    weights = factors.inducing_weights(y - gp.mean)
    return SparsePosterior(gp, None, None, Z, weights, factors.L, factors.LB)


def _cross_mean(gp: GP, X: Array, v: Array, X_star: Array) -> Array:
    plan = plan_for(X, symmetric=False)
    return tiles.product(plan, gp.kernel, X_star, X, jnp.asarray(v)[:, None])[:, 0] + gp.mean


def _cross_root(posterior: IterativePosterior, X_star: Array) -> Array:
    plan = plan_for(posterior.X, symmetric=False)
    return tiles.product(plan, posterior.gp.kernel, X_star, posterior.X, posterior.root)


def _exact_variance(posterior: ExactPosterior, X_star: Array) -> Array:
    B = solve_triangular(posterior.L, posterior.gp.kernel(posterior.X, X_star), lower=True)
    return jnp.maximum(posterior.gp.kernel.diag(X_star) - jnp.sum(B * B, axis=0), 0.0)


def _sparse_mean(posterior: SparsePosterior, X_star: Array) -> Array:
    return posterior.gp.kernel(X_star, posterior.Z) @ posterior.weights + posterior.gp.mean


def _sparse_variance(posterior: SparsePosterior, X_star: Array) -> Array:
    B = solve_triangular(posterior.L, posterior.gp.kernel(posterior.Z, X_star), lower=True)
    C = solve_triangular(posterior.LB, B, lower=True)
    variance = posterior.gp.kernel.diag(X_star) - jnp.sum(B * B, axis=0) + jnp.sum(C * C, axis=0)
    return jnp.maximum(variance, 0.0)


@partial(jax.jit, static_argnums=0)
def _batches(function: object, posterior: eqx.Module, batches: Array) -> Array:
    return lax.map(lambda rows: function(posterior, rows), batches)  # pyright: ignore


def _by_rows(function: object, posterior: eqx.Module, X_star: Array) -> Array:
    """`function(posterior, rows)` in batches of equal size. The last is padded with zero rows, so that
    the batch's shape, and with it the compiled code, does not depend on the number of rows."""
    s = X_star.shape[0]
    size = min(BATCH_ROWS, 1 << (s - 1).bit_length())
    count = -(-s // size)
    padded = jnp.pad(X_star, ((0, count * size - s), (0, 0)))
    return _batches(function, posterior, padded.reshape(count, size, -1)).reshape(-1)[:s]


def _symmetric(C: Array) -> Array:
    """Rounding leaves C a little asymmetric and its diagonal perhaps a little negative."""
    C = 0.5 * (C + C.T)
    return C + jnp.diag(jnp.maximum(-jnp.diagonal(C), 0.0))
