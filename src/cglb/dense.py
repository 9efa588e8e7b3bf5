"""The exact Gaussian process on as many rows as one n × n array in memory allows.

`bounds.exact` and `posterior.exact` are differentiable and hold several n × n arrays at once. Here there
is one: it is filled tile by tile, factored in place (and inverted in place for a gradient) by blocks,
and test rows go through it in batches. 30,000 rows take 7 GB and the n³/3 flops of a Cholesky
factorisation; a gradient takes n³ flops in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb import blocked, tiles
from cglb.bounds import BoundTerms
from cglb.checks import boundary
from cglb.kernels import Kernel
from cglb.lanes import lane_count, sum_lanes
from cglb.model import GP
from cglb.plan import pad_rows
from cglb.precision import to_numpy

__all__ = ["DenseGP", "condition", "value_and_gradient"]

TILE = 512
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
        width = min(BATCH_ROWS, _blocks(len(rows)) * TILE)
        for start in range(0, len(rows), width):
            batch = rows[start : start + width]
            padded = np.pad(batch, ((0, width - len(batch)), (0, 0)))
            cross = np.asarray(_cross(kernel, X, jnp.asarray(padded)))
            mean[start : start + len(batch)] = (cross.T @ self.alpha)[: len(batch)]
            B = blocked.solve_lower(self.L, cross)
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
    blocks, count = pad_rows(X, _blocks(n), TILE), _blocks(n)

    def tile(i: int, j: int) -> Kernel:
        """The part of Σ W dK in one tile of the lower triangle, for both of its places."""
        rows, columns = _slice(i, n), _slice(j, n)
        part = np.outer(alpha[rows], alpha[columns]) - inverse[rows, columns]
        if i == j:  # above the diagonal there is nothing of any meaning
            part = 0.5 * (np.tril(part) + np.tril(part, -1).T)
        W = np.zeros((TILE, TILE))
        W[: part.shape[0], : part.shape[1]] = part
        value = _diagonal if i == j else _cross
        return _pull(value, gp.kernel, blocks[i], blocks[j], jnp.asarray(W))

    pairs = [(i, j) for j in range(count) for i in range(j, count)]
    kernel_bar = sum_lanes(tile, pairs, lane_count())
    noise_bar = 0.5 * (alpha @ alpha - np.trace(inverse))
    bars = (kernel_bar, jnp.asarray(noise_bar), jnp.asarray(np.sum(alpha)))
    return terms, eqx.tree_at(lambda gp: (gp.kernel, gp.noise, gp.mean), gp, bars)


def _factor(gp: GP, X: Array, y: Array) -> tuple[np.ndarray, np.ndarray, BoundTerms]:
    """(L, alpha, log p(y) in its terms)."""
    n = X.shape[0]
    L = _fill(gp, X)
    if (pivot := blocked.cholesky(L)) != 0:
        raise np.linalg.LinAlgError(
            f"K + noise·I is not positive definite in float64 (pivot {pivot} of {n}) at noise "
            f"{float(gp.noise):.3g}: raise the noise floor."
        )
    e = np.asarray(y) - float(gp.mean)
    alpha = blocked.solve_upper(L, blocked.solve_lower(L, e[:, None]))[:, 0]
    parts = (n * np.log(2.0 * np.pi), e @ alpha, 2.0 * np.sum(np.log(np.diagonal(L))))
    return L, alpha, BoundTerms(*(jnp.asarray(-0.5 * part) for part in parts))


def _blocks(n: int) -> int:
    return -(-n // TILE)


def _slice(block: int, n: int) -> slice:
    return slice(block * TILE, min(n, (block + 1) * TILE))


def _fill(gp: GP, X: Array) -> np.ndarray:
    """K̂, column-major, its lower triangle filled; what is above the diagonal tiles stays 0."""
    n = X.shape[0]
    blocks = pad_rows(X, _blocks(n), TILE)
    K_hat = np.zeros((n, n), order="F")
    for j in range(_blocks(n)):
        columns = _slice(j, n)
        for i in range(j, _blocks(n)):
            rows = _slice(i, n)
            tile = _diagonal if i == j else _cross
            # K(columns, rows) transposed is column-major like its target
            block = np.asarray(tile(gp.kernel, blocks[j], blocks[i])).T
            K_hat[rows, columns] = block[: rows.stop - rows.start, : columns.stop - columns.start]
    K_hat[np.diag_indices(n)] += float(gp.noise)
    return K_hat


@jax.jit
def _cross(kernel: Kernel, X1: Array, X2: Array) -> Array:
    return kernel(X1, X2)


@jax.jit
def _diagonal(kernel: Kernel, X1: Array, X2: Array) -> Array:
    return tiles.covariance(kernel, X1)


@partial(jax.jit, static_argnums=0)
def _pull(value: Callable[..., Array], kernel: Kernel, X1: Array, X2: Array, W: Array) -> Kernel:
    return jax.grad(lambda kernel: jnp.sum(W * value(kernel, X1, X2)))(kernel)
