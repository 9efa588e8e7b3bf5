"""The exact Gaussian process on as many rows as one n × n array in memory allows.

`bounds.exact` and `posterior.exact` are differentiable and hold several n × n arrays at once. Here there
is one: it is filled tile by tile, factored in place (and inverted in place for a gradient) by blocks,
and test rows go through it in batches. 30,000 rows take 7 GB and the n³/3 flops of a Cholesky
factorisation; a gradient takes n³ flops in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb import blocked
from cglb.bounds import BoundTerms
from cglb.checks import boundary
from cglb.kernels import Kernel
from cglb.lanes import lane_count, sum_lanes
from cglb.matrix import TILE, blocks, covariance, cross, pad, rows_of, upper_triangle
from cglb.model import GP
from cglb.precision import to_numpy

__all__ = ["DenseGP", "condition", "value_and_gradient"]

BATCH_ROWS = 2048


@dataclass(frozen=True)
class DenseGP:
    """A model conditioned on all data: K̂ = LLᵀ, alpha = K̂⁻¹e.

    lml: log p(y) = −(n/2) log 2π − ½eᵀK̂⁻¹e − ½ log|K̂|.
    L:   its upper triangle holds no numbers of any meaning.
    """

    gp: GP
    X: np.ndarray
    L: np.ndarray
    alpha: np.ndarray
    lml: float

    @boundary
    def predict(self, X_star: Float[Array, "s d"]) -> tuple[np.ndarray, np.ndarray]:
        """(mean [s], variance [s]) of the latent f at each row of X_star: O(n²) a row, in batches."""
        kernel, X, rows = self.gp.kernel, jnp.asarray(self.X), np.asarray(X_star)
        mean, variance = np.empty(len(rows)), np.empty(len(rows))
        # padded to a few shapes, so that a compilation serves every batch and most numbers of rows
        width = min(BATCH_ROWS, blocks(len(rows)) * TILE)
        for start in range(0, len(rows), width):
            batch = rows[start : start + width]
            padded = np.pad(batch, ((0, width - len(batch)), (0, 0)))
            K_cross = np.asarray(cross(kernel, X, jnp.asarray(padded)))
            mean[start : start + len(batch)] = (K_cross.T @ self.alpha)[: len(batch)]
            B = blocked.solve_lower(self.L, K_cross)
            prior = np.asarray(kernel.diag(jnp.asarray(batch)))
            explained = np.einsum("ij,ij->j", B, B)[: len(batch)]
            variance[start : start + len(batch)] = np.maximum(prior - explained, 0.0)
        return mean + float(self.gp.mean), variance


@boundary
def condition(gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]) -> DenseGP:
    """Factor K̂ and solve for alpha: O(n³) time, one n × n float64 array of memory.

    `numpy.linalg.LinAlgError` where K̂ is not positive definite in float64.
    """
    L, alpha, terms = _factor(gp, X, y)
    return DenseGP(to_numpy(gp), np.asarray(X), L, alpha, float(terms.value))


def value_and_gradient(gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]) -> tuple[BoundTerms, GP]:
    """log p(y) and its gradient in the hyperparameters: n³ flops, one n × n float64 array.

    d log p(y) = Σᵢⱼ Wᵢⱼ dK̂ᵢⱼ + 1ᵀα dμ with W = ½(ααᵀ − K̂⁻¹). `numpy.linalg.LinAlgError` as above.
    """
    n = X.shape[0]
    L, alpha, terms = _factor(gp, X, y)
    blocked.inverse(L)
    inverse = L  # its lower triangle, that is
    padded, count = pad(X), blocks(n)

    def tile(i: int, j: int) -> Kernel:
        """The part of Σ W dK in one tile of the lower triangle, for both of its places."""
        rows, columns = rows_of(i, n), rows_of(j, n)
        part = np.outer(alpha[rows], alpha[columns]) - inverse[rows, columns]
        if i == j:  # above the diagonal there is nothing of any meaning
            part = 0.5 * (np.tril(part) + np.tril(part, -1).T)
        W = np.zeros((TILE, TILE))
        W[: part.shape[0], : part.shape[1]] = part
        return _pull(i == j, gp.kernel, padded[i], padded[j], jnp.asarray(W))

    pairs = [(i, j) for j in range(count) for i in range(j, count)]
    kernel_bar = sum_lanes(tile, pairs, lane_count())
    noise_bar = 0.5 * (alpha @ alpha - np.trace(inverse))
    bars = (kernel_bar, jnp.asarray(noise_bar), jnp.asarray(np.sum(alpha)))
    return terms, eqx.tree_at(lambda gp: (gp.kernel, gp.noise, gp.mean), gp, bars)


def _factor(gp: GP, X: Array, y: Array) -> tuple[np.ndarray, np.ndarray, BoundTerms]:
    """(L, alpha, log p(y) in its terms)."""
    n = X.shape[0]
    # the transpose of the upper triangle is the lower one, column-major as LAPACK wants it
    L = upper_triangle(gp.kernel, gp.noise, X).T
    if (pivot := blocked.cholesky(L)) != 0:
        raise np.linalg.LinAlgError(
            f"K + noise·I is not positive definite in float64 (pivot {pivot} of {n}) at noise "
            f"{float(gp.noise):.3g}: raise the noise floor."
        )
    e = np.asarray(y) - float(gp.mean)
    alpha = blocked.solve_upper(L, blocked.solve_lower(L, e[:, None]))[:, 0]
    parts = (n * np.log(2.0 * np.pi), e @ alpha, 2.0 * np.sum(np.log(np.diagonal(L))))
    return L, alpha, BoundTerms(*(jnp.asarray(-0.5 * part) for part in parts))


@partial(jax.jit, static_argnums=0)
def _pull(diagonal: bool, kernel: Kernel, X1: Array, X2: Array, W: Array) -> Kernel:
    def total(kernel: Kernel) -> Array:
        return jnp.sum(W * (covariance(kernel, X1) if diagonal else kernel(X1, X2)))

    return jax.grad(total)(kernel)
