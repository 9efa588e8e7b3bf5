"""Block CG that keeps its coefficients, and what Lanczos makes of them: Iterative GP's linear algebra.

CG on K̂v = b, preconditioned by P, is Lanczos on M = P^{-1/2} K̂ P^{-1/2} from the start P^{-1/2}b: its
step lengths αⱼ and βⱼ = ρⱼ₊₁/ρⱼ (ρ = rᵀP⁻¹r) are the entries of Lanczos' tridiagonal matrix,

    Tⱼⱼ = 1/αⱼ + βⱼ₋₁/αⱼ₋₁,   Tⱼ,ⱼ₊₁ = √βⱼ/αⱼ,   and   ζᵀ log(M) ζ ≈ ‖ζ‖² e₁ᵀ log(T) e₁,  ζ = P^{-1/2}b.

So solves and log-determinants come from one run. The stop rule is GPyTorch's: the mean over the columns
of ‖r‖/‖b‖, with r from the recursion. Unlike the rule of `cglb.cg` it certifies nothing in nats.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import eigh_tridiagonal

from cglb.cg import Search, Stop, direction, dot, step
from cglb.operator import Operator

__all__ = ["BlockSolution", "block_cg", "inverse_root", "log_quadrature"]

# a column whose residual has fallen this far is solved: what rounding leaves would spoil T
SOLVED = 1e-10


class BlockSolution(eqx.Module):
    """V with K̂V ≈ B, the relative residuals by the recursion, and the coefficients of every step."""

    V: Float[Array, "n t"]
    residual: Float[np.ndarray, " t"]
    alpha: Float[np.ndarray, "j t"]  # step lengths; 0 from where a column is solved
    rho: Float[np.ndarray, "j t"]  # rᵀP⁻¹r before the step
    steps: int = eqx.field(static=True)
    stop: Stop = eqx.field(static=True)


def block_cg(
    operator: Operator,
    B: Float[Array, "n t"],
    precondition: Callable[[Array], Array],
    *,
    V0: Float[Array, "n t"] | None = None,
    tolerance: float = 1.0,
    min_steps: int = 10,
    max_steps: int = 1000,
) -> BlockSolution:
    """CG on K̂V = B from V0 or 0, each column with its own step lengths; a product [n, t] a step.

    It stops when the mean of ‖r‖/‖b‖ is at most `tolerance`, but not before `min_steps` (with tolerance
    1 CG would otherwise not begin), and when all columns are solved to rounding.
    """
    norms = jnp.sqrt(dot(B, B))
    scale = jnp.where(norms > 0.0, norms, 1.0)
    V = jnp.zeros_like(B) if V0 is None else V0
    R, residual = _retire(B if V0 is None else B - operator @ V0, scale)
    search: Search | None = None
    alphas, rhos = [], []
    while True:
        steps = len(alphas)
        reached = np.asarray(residual)
        if np.all(reached <= SOLVED) or (steps >= min_steps and reached.mean() <= tolerance):
            stop = Stop.TOLERANCE
            break
        if steps >= max_steps:
            stop = Stop.STEP_LIMIT
            break
        ahead = direction(R, precondition(R), search)
        V, R, alpha, healthy = step(V, R, ahead, operator @ ahead.P)
        R, residual = _retire(R, scale)
        alphas.append(np.asarray(alpha))
        rhos.append(np.asarray(ahead.rho))
        search = ahead
        if not bool(healthy):
            stop, reached = Stop.BREAKDOWN, np.asarray(residual)
            break
    shape = (len(alphas), B.shape[1])
    alpha, rho = (np.array(rows, dtype=reached.dtype).reshape(shape) for rows in (alphas, rhos))
    return BlockSolution(V, reached, alpha, rho, steps=len(alphas), stop=stop)


@jax.jit
def _retire(R: Array, scale: Array) -> tuple[Array, Array]:
    """R with solved columns set to 0, which takes them out of the recursion; and ‖r‖/‖b‖."""
    residual = jnp.sqrt(dot(R, R)) / scale
    return jnp.where((residual <= SOLVED)[None, :], 0.0, R), residual


def log_quadrature(
    alpha: Float[np.ndarray, "j t"], rho: Float[np.ndarray, "j t"]
) -> Float[np.ndarray, " t"]:
    """e₁ᵀ log(T) e₁ for every column, T from CG's coefficients; O(j²) a column.

    This is Gauss quadrature of log. The even derivatives of log are negative, so the error has one
    sign: the result is never below the exact ζᵀ log(M) ζ/‖ζ‖², and falls to it with more steps.
    """
    return np.array([_log_quadrature(a, r) for a, r in zip(alpha.T, rho.T, strict=True)])


def _log_quadrature(alpha: np.ndarray, rho: np.ndarray) -> float:
    size = int(np.argmin(alpha > 0.0)) if np.any(alpha <= 0.0) else len(alpha)
    if size == 0:
        return np.nan
    alpha, rho = alpha[:size], rho[:size]
    beta = rho[1:] / rho[:-1]
    diagonal = 1.0 / alpha
    diagonal[1:] += beta / alpha[:-1]
    values, vectors = eigh_tridiagonal(diagonal, np.sqrt(beta) / alpha[:-1])
    # T is positive definite (its factors are in α); rounding may still leave a tiny negative value
    return float(vectors[0] ** 2 @ np.log(np.maximum(values, np.finfo(values.dtype).tiny)))


def inverse_root(
    operator: Operator, b: Float[Array, " n"], rank: int, seed: int = 0
) -> Float[Array, "n k"]:
    """R with RRᵀ ≈ K̂⁻¹ from `rank` Lanczos steps started at b: R = QS^{-T/2} with S = QᵀK̂Q.

    RRᵀ ⪯ K̂⁻¹ for every orthonormal Q, with equality at full rank. S is computed from Q itself, not
    from the recursion, so that rounding in Lanczos cannot break this. O(rank) products and O(n·rank²)
    time, O(n·rank) memory.
    """
    n = b.shape[0]
    k = min(rank, n)
    rng = np.random.default_rng(seed)
    Q = jnp.zeros((n, k), dtype=b.dtype)
    w = b
    for j in range(k):
        # a Krylov space that is exhausted goes on in a random direction
        spare = jnp.asarray(rng.standard_normal(n), dtype=b.dtype)
        Q = _extend(Q, w, spare, jnp.asarray(j))
        if j + 1 < k:
            w = operator @ Q[:, j]
    return _inverse_root(Q, operator @ Q)


@jax.jit
def _extend(Q: Array, w: Array, spare: Array, j: Array) -> Array:
    """Q with w, made orthonormal to its columns, as column j; twice is enough in floating point."""

    def orthogonal(x: Array) -> Array:
        x = x - Q @ (x @ Q)
        return x - Q @ (x @ Q)

    new = orthogonal(w)
    exhausted = jnp.linalg.norm(new) <= SOLVED * jnp.linalg.norm(w)
    new = jnp.where(exhausted, orthogonal(spare), new)
    new = orthogonal(new / jnp.linalg.norm(new))
    return Q.at[:, j].set(new / jnp.linalg.norm(new))


@jax.jit
def _inverse_root(Q: Array, K_hat_Q: Array) -> Array:
    S = Q.T @ K_hat_Q
    L = jnp.linalg.cholesky(0.5 * (S + S.T))
    return jax.scipy.linalg.solve_triangular(L, Q.T, lower=True).T
