"""The exact likelihood of few rows, with its gradient, as one compiled program.

Up to about a hundred rows the calls of the parts of `linalg.dense` take longer than their arithmetic.
Rows that count for nothing fill X up to one of a few sizes, so that these programs serve every n: their
part of K̂ is the identity, and their residual is 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float

from cglb.compute import assemble
from cglb.core.precision import Number
from cglb.kernels.base import Kernel

__all__ = ["MOST_ROWS", "value_and_slopes"]

# the sizes that rows are filled up to
SIZES = assemble.SIZES[:2]
MOST_ROWS = SIZES[-1]

Slopes = tuple[Kernel, Array, Array]  # in kernel, noise and mean


def value_and_slopes(
    kernel: Kernel, noise: Number, X: Float[Array, "n d"], e: Float[np.ndarray, " n"]
) -> tuple[Array, Array, Slopes]:
    """eᵀK̂⁻¹e, log|K̂|, and the slopes of −½eᵀK̂⁻¹e − ½log|K̂|, for at most MOST_ROWS rows: n³ flops.

    All are NaN if K̂ is not positive definite in its precision.
    """
    n, given = len(e), np.asarray(X)
    size = next(size for size in SIZES if size >= n)
    rows = np.empty((size, X.shape[1]), dtype=X.dtype)
    rows[:n], rows[n:] = given, given[-1]
    residual = np.zeros(size, dtype=X.dtype)
    residual[:n] = e
    return _value_and_slopes(kernel, noise, rows, residual, np.arange(size) < n)


@jax.jit
def _value_and_slopes(
    kernel: Kernel, noise: Array, X: Float[Array, "s d"], e: Float[Array, " s"], real: Bool[Array, " s"]
) -> tuple[Array, Array, Slopes]:
    K, pull = assemble.covariance_and_pull(kernel, X)
    pairs, identity = real[:, None] & real[None, :], jnp.eye(len(real), dtype=X.dtype)
    K_hat = jnp.where(pairs, K + noise * identity, identity)
    L = jnp.linalg.cholesky(K_hat)
    alpha, V = cho_solve((L, True), e), solve_triangular(L, identity, lower=True)
    # W = ½(ααᵀ − K̂⁻¹), d log p(y) = Σᵢⱼ Wᵢⱼ dK̂ᵢⱼ + 1ᵀα dμ
    W = 0.5 * jnp.where(pairs, jnp.outer(alpha, alpha) - V.T @ V, 0.0)
    logdet = 2.0 * jnp.sum(jnp.log(jnp.diagonal(L)))
    return e @ alpha, logdet, (pull(W), jnp.trace(W), jnp.sum(alpha))
