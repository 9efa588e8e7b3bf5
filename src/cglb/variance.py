"""Predictive variances with a guarantee. SGPR's variance may err on either side; these do not.

`local` conditions on the rows nearest to each test point and on those that are inducing points:
conditioning on a subset of the data can only leave more variance, so it is never below the exact one.
`bracket` encloses the exact variance: Lemma 3 with k(X, x) in the place of the targets bounds kᵀK̂⁻¹k
from both sides, and CG closes the bracket. All are for the latent f; add the noise for an observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from sklearn.neighbors import NearestNeighbors

from cglb import nystrom, tiles, triangular
from cglb.cg import Stop, conjugate_gradients
from cglb.chain import Chain
from cglb.checks import boundary
from cglb.kernels import Kernel
from cglb.lanes import one_blas_thread
from cglb.model import GP
from cglb.nystrom import DEFAULT_JITTER
from cglb.operator import KernelOperator, StoredOnUse, kernel_operator
from cglb.preconditioners import choose
from cglb.relevance import raw_relevance

__all__ = ["VarianceBracket", "bracket", "local"]

BATCH = 64
ROUNDS = 6


class VarianceBracket(eqx.Module):
    """lower ≤ Var f(xᵢ) ≤ upper for every row; `tight` where the asked tolerance was reached."""

    lower: Float[Array, " s"] | Float[np.ndarray, " s"]
    upper: Float[Array, " s"] | Float[np.ndarray, " s"]
    tight: Any  # [s] of bool
    products: int = eqx.field(static=True)

    @property
    def middle(self) -> Any:
        """The midpoint, off by at most half the width."""
        return 0.5 * (self.lower + self.upper)


@boundary
def bracket(
    gp: GP,
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    X_star: Float[Array, "s d"],
    tolerance: float = 0.01,
    max_steps: int = 500,
    jitter: float = DEFAULT_JITTER,
    on_batch: Callable[[int, int], None] | None = None,
) -> VarianceBracket:
    """k_ss − (2kᵀv − vᵀK̂v + rᵀQ̂⁻¹r) ≤ Var f(x) ≤ k_ss − (2kᵀv − vᵀK̂v), for every v.

    tolerance: width of the bracket relative to its lower end. CG takes batches of test rows together;
    where it stops before the tolerance the bracket is wider, and `tight` says so.
    on_batch:  called with the rows done and the rows in all.
    """
    if not tolerance > 0.0:
        raise ValueError(f"tolerance must be positive, found {tolerance}.")
    operator = kernel_operator(gp, X)
    assert isinstance(operator, KernelOperator)
    stored = StoredOnUse(operator)
    factors = nystrom.factor(gp, X, Z, jitter)
    precondition = choose("auto", gp, X, factors, lambda: Chain().prepare(gp.kernel, X).blocks)
    s = X_star.shape[0]
    parts, products = [], 0
    for start in range(0, s, BATCH):
        rows = X_star[start : start + BATCH]
        missing = BATCH - rows.shape[0] if s > BATCH else 0  # one shape, one compilation
        padded = jnp.pad(rows, ((0, missing), (0, 0)))
        k, k_ss = gp.kernel(X, padded), gp.kernel.diag(padded)
        v = jnp.zeros_like(k)
        allowed = 0.5 * tolerance * k_ss
        for _ in range(ROUNDS):
            solution = conjugate_gradients(
                operator,
                k,
                factors,
                precondition=precondition,
                v0=v,
                tolerance=allowed,
                max_steps=max_steps,
                fast=stored,
            )
            products += solution.products
            v = solution.v
            explained = jnp.sum(2.0 * k * v - v * solution.K_hat_v, axis=0)
            upper = jnp.maximum(k_ss - explained, 0.0)
            lower = jnp.maximum(upper - 2.0 * solution.slack, 0.0)
            # the width allowed was a guess from the prior variance: tighten it to what was found, but
            # step by step, as the lower end of a wide bracket may be 0 and says little
            tight = upper - lower <= tolerance * lower
            if bool(jnp.all(tight)) or solution.stop is not Stop.TOLERANCE:
                break
            wanted = jnp.maximum(0.4 * tolerance * lower, 0.01 * allowed)
            allowed = jnp.where(tight, allowed, jnp.minimum(wanted, 0.5 * allowed))
        keep = rows.shape[0]
        parts.append((lower[:keep], upper[:keep], tight[:keep]))
        if on_batch is not None:
            on_batch(start + keep, s)
    lower, upper, tight = (jnp.concatenate(columns) for columns in zip(*parts, strict=True))
    return VarianceBracket(lower, upper, tight, products)


@boundary
def local(
    gp: GP,
    X: Float[Array, "n d"],
    X_star: Float[Array, "s d"],
    Z: Float[Array, "m d"] | None = None,
    neighbours: int = 128,
) -> Float[Array, " s"]:
    """Var(f(x) | y at x's nearest rows and at the inducing points) ≥ Var(f(x) | all of y).

    Z: inducing points. Those that are rows of X (as greedy ones are) are conditioned on at every x, and
       the neighbours are taken from the other rows, so that no observation counts twice; inducing
       points that are no rows of X are not observations, and are left out.
    Nearest in lengthscale-scaled inputs. O(nm²) once, O(n·d + mk² + k³) a test row, O(nm) memory.
    """
    if neighbours < 1:
        raise ValueError(f"neighbours must be at least 1, found {neighbours}.")
    scale = np.asarray(raw_relevance(gp.kernel, X.shape[1]))[None, :]
    shared = _rows_of(X, Z)
    others = np.setdiff1d(np.arange(X.shape[0]), shared)
    k = min(neighbours, len(others))
    index = np.zeros((X_star.shape[0], 0), dtype=int)
    if k:
        search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(np.asarray(X[others]) * scale)
        index = search.kneighbors(np.asarray(X_star) * scale, return_distance=False)
    given = gp.kernel, jnp.asarray(gp.noise), X[shared], X[others]
    factors = _explain(*given) if len(shared) else None
    with one_blas_thread():
        return jax.block_until_ready(_local(*given, factors, X_star, jnp.asarray(index)))


def _rows_of(X: Array, Z: Array | None) -> np.ndarray:
    """The row numbers of X that are inducing points, each once."""
    if Z is None:
        return np.zeros(0, dtype=int)
    number = {row.tobytes(): i for i, row in enumerate(np.asarray(X))}
    found = (number.get(row.tobytes()) for row in np.asarray(Z))
    return np.unique([i for i in found if i is not None]).astype(int)


@jax.jit
def _explain(kernel: Kernel, noise: Array, shared: Array, X: Array) -> tuple[Array, Array]:
    """L = chol(K̂ of the shared rows) and k(X, shared) L⁻ᵀ."""
    L = jnp.linalg.cholesky(tiles.dense(kernel, noise, shared))
    return L, triangular.solve_right(L, kernel(X, shared))


@jax.jit
def _local(
    kernel: Kernel,
    noise: Array,
    shared: Array,
    X: Array,
    factors: tuple[Array, Array] | None,
    X_star: Array,
    neighbours: Array,
) -> Array:
    """shared: the rows that all condition on; neighbours [s, k]: the rows of X that each does."""

    def one(x_and_index: tuple[Array, Array]) -> Array:
        x, index = x_and_index
        row = x[None, :]
        variance = kernel.diag(row)[0]
        if factors is not None:
            b = triangular.solve_right(factors[0], kernel(row, shared))[0]
            variance = variance - b @ b
        if index.shape[0]:
            K, cross = tiles.dense(kernel, noise, X[index]), kernel(X[index], row)[:, 0]
            if factors is not None:  # what is left of the covariances given the shared rows
                B = factors[1][index]
                K, cross = K - B @ B.T, cross - B @ b
            c = solve_triangular(jnp.linalg.cholesky(K), cross, lower=True)
            variance = variance - c @ c
        return jnp.maximum(variance, 0.0)

    return lax.map(one, (X_star, neighbours), batch_size=BATCH)
