"""The exact posterior, by Cholesky, if n × n arrays fit into memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from cglb.bounds.terms import BoundTerms
from cglb.compute.backend import backend_of
from cglb.core.validation import boundary
from cglb.kernels import Kernel
from cglb.linalg import dense
from cglb.model import GP
from cglb.posteriors.base import Posterior, batches, cross_mean

__all__ = ["ExactPosterior", "exact", "exact_at"]

BATCH_ROWS = 2048


class ExactPosterior(Posterior):
    """mean k_sf K̂⁻¹e + μ, covariance k_ss − k_sf K̂⁻¹ k_fs; O(n²) memory, O(n²) per row for a variance.

    Attributes:
        gp: the model.
        X: training inputs.
        L: K̂ = LLᵀ; its upper triangle is undefined.
        alpha: K̂⁻¹e.
        lml: log p(y).
    """

    exact = True

    gp: GP
    X: Float[Array, "n d"]
    L: Float[Array, "n n"]
    alpha: Float[Array, " n"]
    lml: Float[Array, ""]

    def mean_terms(self) -> tuple[tuple[Array, Array], ...]:
        return ((self.X, self.alpha),)

    def _mean(self, X_star: Array) -> Array:
        return cross_mean(self.gp, self.X, self.alpha, X_star)

    def _variance(self, X_star: Array) -> Array:
        factor = backend_of(self.L, X_star).factor_of(self.L)
        parts = []
        for rows, real in batches(X_star, BATCH_ROWS):
            B = factor.half_solve(_cross(self.gp.kernel, self.X, rows))
            parts.append(_unexplained(self.gp.kernel, rows, jnp.asarray(B))[:real])
        return jnp.concatenate(parts)

    def _explained(self, X_star: Array) -> Array:
        B = solve_triangular(self.L, self.gp.kernel(self.X, X_star), lower=True)
        return B.T @ B


@jax.jit
def _cross(kernel: Kernel, X: Array, rows: Array) -> Array:
    return kernel(X, rows)


@jax.jit
def _unexplained(kernel: Kernel, rows: Array, B: Array) -> Array:
    return jnp.maximum(kernel.diag(rows) - jnp.sum(B * B, axis=0), 0.0)


@boundary
def exact(gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]) -> ExactPosterior:
    """The posterior given all data, by Cholesky: O(n³).

    Raises:
        numpy.linalg.LinAlgError: if K̂ has no factor in float64 (inside `jit` the result is NaN).
    """
    return exact_at(gp, X, y)


def exact_at(gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]) -> ExactPosterior:
    """`exact` for validated arrays."""
    found = dense.factor(gp, X, y)
    terms = BoundTerms.of(X.shape[0], found.quadratic, found.logdet)
    L, alpha = jnp.asarray(found.factor.L), jnp.asarray(found.alpha)
    return ExactPosterior(gp, X, L, alpha, jnp.asarray(terms.value))
