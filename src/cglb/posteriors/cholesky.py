"""The exact posterior, by Cholesky, if n × n arrays fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from cglb.bounds.terms import BoundTerms
from cglb.compute.backend import Backend, backend_of
from cglb.core.validation import boundary
from cglb.linalg import dense, row_noise
from cglb.model import GP
from cglb.posteriors.base import Posterior

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
        backend = backend_of(self, X_star)
        xp = backend.arrays
        alpha, mean = xp.asarray(self.alpha), xp.asarray(self.gp.mean)
        found = [K.T @ alpha + mean for _, K in self._batches(backend, X_star)]
        return jax.device_put(xp.concatenate(found))  # `jnp.asarray` compiles a copy for each shape

    def _variance(self, X_star: Array) -> Array:
        backend = backend_of(self, X_star)
        xp, factor, found = backend.arrays, backend.factor_of(self.L), []
        for rows, K in self._batches(backend, X_star):
            B = factor.half_solve(K)
            found.append(backend.prior_variances(self.gp.kernel, rows) - xp.sum(B * B, axis=0))
        return jax.device_put(xp.maximum(xp.concatenate(found), 0.0))

    def _batches(self, backend: Backend, X_star: Array) -> Iterator[tuple[Any, Any]]:
        """Batches of test rows and their covariances with the training rows, [n, batch]."""
        rows = backend.arrays.asarray(X_star)
        for start in range(0, X_star.shape[0], BATCH_ROWS):
            batch = rows[start : start + BATCH_ROWS]
            yield batch, backend.between(self.gp.kernel, self.X, batch)

    @boundary
    def leave_one_out(self, y: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Means and variances of each observation given all others: n³ flops, n² memory.

        E[yᵢ | others] = yᵢ − αᵢ/cᵢ and Var[yᵢ | others] = 1/cᵢ, c = diag K̂⁻¹, noise included.

        Args:
            y: the targets.
        """
        identity = jnp.eye(self.X.shape[0], dtype=self.X.dtype)
        half = jnp.asarray(backend_of(self.L, y).factor_of(self.L).half_solve(identity))
        inverse = jnp.sum(half * half, axis=0)
        return y - self.alpha / inverse, 1.0 / inverse

    def _explained(self, X_star: Array) -> Array:
        B = solve_triangular(self.L, self.gp.kernel(self.X, X_star), lower=True)
        return B.T @ B


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
    terms = BoundTerms.of(row_noise.number(gp.kernel, X), found.quadratic, found.logdet)
    L, alpha, s = found.factor.L, found.alpha, row_noise.scales(gp.kernel, X)
    if s is not None:  # K + D = S⁻¹(SKS + σ²I)S⁻¹, without rows that count for nothing, the last ones
        n = int(np.count_nonzero(s))
        s, X = s[:n], row_noise.plain_rows(gp.kernel, X[:n])
        L, alpha, gp = L[:n, :n] / s[:, None], alpha[:n] * s, row_noise.plain_model(gp)
    # `jnp.asarray` would compile a copy for each new shape
    L, alpha = jax.device_put(L), jax.device_put(alpha)
    return ExactPosterior(gp, X, L, alpha, jnp.asarray(terms.value))
