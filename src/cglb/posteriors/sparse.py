"""SGPR's and the paper's predictor: inducing points, and CG's vector on top of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from cglb.core.validation import boundary
from cglb.linalg import row_noise
from cglb.linalg.cg import Solution
from cglb.linalg.nystrom import DEFAULT_JITTER
from cglb.linalg.system import Solver, System
from cglb.model import GP
from cglb.posteriors.base import Posterior, cross_mean, in_batches, points_mean

__all__ = ["SparsePosterior", "cglb", "sgpr"]


class SparsePosterior(Posterior):
    """mean k_sf v + k_su Kuu⁻¹Kuf Q̂⁻¹(e − K̂v) + μ, covariance SGPR's.

    The mean is exact in both limits Q = K and v = K̂⁻¹e. O(n + m²) memory; a mean costs O(n) per row
    (O(m) if v = 0), a variance O(m²).

    Attributes:
        gp: the model.
        X: training inputs, and some rows more where v is 0; None if v = 0 for all, when they are not
            needed.
        v: CG's vector; None for 0.
        Z: inducing points.
        weights: Kuu⁻¹Kuf Q̂⁻¹(e − K̂v).
        L: the Cholesky factor of Kuu.
        LB: the Cholesky factor of I + AAᵀ.
    """

    gp: GP
    X: Float[Array, "N d"] | None
    v: Float[Array, " N"] | None
    Z: Float[Array, "m d"]
    weights: Float[Array, " m"]
    L: Float[Array, "m m"]
    LB: Float[Array, "m m"]

    @classmethod
    def of(
        cls, system: System, y: Float[Array, " n"], solution: Solution | None = None
    ) -> SparsePosterior:
        """The paper's predictor, O(nm).

        Args:
            system: the model on its data.
            y: targets.
            solution: of K̂v ≈ y − μ; without one, v = 0 gives SGPR's predictor.
        """
        factors, e = system.nystrom, system.residual(y)
        if solution is None:
            parts = (None, None, system.Z, factors.inducing_weights(e))
        else:
            weights = factors.inducing_weights(e - solution.K_hat_v)
            parts = (system.X, solution.v, system.Z, weights)
        return cls(system.gp, *parts, factors.L, factors.LB)._of_f()

    def _of_f(self) -> SparsePosterior:
        """The same predictor of f, if rows and inducing points stand for s·f: k(·, X)v = k(·, x)(Sv).

        Rows that count for nothing have s = 0, and so v = 0.
        """
        kernel = self.gp.kernel
        s = None if self.X is None else row_noise.scales(kernel, self.X)
        s_Z = row_noise.scales(kernel, self.Z)
        if s_Z is None:
            return self
        X = None if self.X is None else row_noise.plain_rows(kernel, self.X)
        v = None if self.v is None or s is None else _times(s, self.v)
        weights, L = _of_points(s_Z, self.weights, self.L)
        Z = row_noise.plain_rows(kernel, self.Z)
        return SparsePosterior(row_noise.plain_model(self.gp), X, v, Z, weights, L, self.LB)

    @property
    def solved(self) -> bool:
        return self.v is not None

    def mean_terms(self) -> tuple[tuple[Array, Array], ...]:
        inducing = ((self.Z, self.weights),)
        return inducing if self.X is None or self.v is None else (*inducing, (self.X, self.v))

    def _mean(self, X_star: Array) -> Array:
        if self.v is None:
            return in_batches(points_mean, (self.gp, self.mean_terms()), X_star)
        return cross_mean(self.gp, self.mean_terms(), X_star)

    def _variance(self, X_star: Array) -> Array:
        return in_batches(_sparse_variance, self._without_rows, X_star)

    def _explained(self, X_star: Array) -> Array:
        B = solve_triangular(self.L, self.gp.kernel(self.Z, X_star), lower=True)
        C = solve_triangular(self.LB, B, lower=True)
        return B.T @ B - C.T @ C

    @property
    def _without_rows(self) -> SparsePosterior:
        """The part whose shapes do not depend on n, so that compiled code does not either."""
        return SparsePosterior(self.gp, None, None, self.Z, self.weights, self.L, self.LB)


@jax.jit
def _times(s: Array, v: Array) -> Array:
    return s * v


@jax.jit
def _of_points(s: Array, weights: Array, L: Array) -> tuple[Array, Array]:
    return s * weights, L / s[:, None]


def _sparse_variance(posterior: SparsePosterior, X_star: Array) -> Array:
    """k_ss − ‖L⁻¹k_us‖² + ‖LB⁻¹L⁻¹k_us‖²."""
    B = solve_triangular(posterior.L, posterior.gp.kernel(posterior.Z, X_star), lower=True)
    C = solve_triangular(posterior.LB, B, lower=True)
    variance = posterior.gp.kernel.diag(X_star) - jnp.sum(B * B, axis=0) + jnp.sum(C * C, axis=0)
    return jnp.maximum(variance, 0.0)


@boundary
def cglb(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v: Float[Array, " n"],
    jitter: float = DEFAULT_JITTER,
) -> SparsePosterior:
    """The paper's predictor at v, which `cglb.solve` gives (with tolerance 1e-3 for predictions)."""
    system = System(gp, X, Z, Solver(jitter=jitter))
    r = system.residual(y) - system.operator @ v
    factors = system.nystrom
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
    return SparsePosterior.of(System(gp, X, Z, Solver(jitter=jitter)), y)
