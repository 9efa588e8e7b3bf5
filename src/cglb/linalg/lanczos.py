"""Block CG that keeps its coefficients, and Lanczos quadrature with them, for Iterative GP.

CG on K̂v = b, preconditioned by P, is Lanczos on M = P^{-1/2} K̂ P^{-1/2} from the start P^{-1/2}b: its
step lengths αⱼ and βⱼ = ρⱼ₊₁/ρⱼ (ρ = rᵀP⁻¹r) give Lanczos' tridiagonal matrix,

    Tⱼⱼ = 1/αⱼ + βⱼ₋₁/αⱼ₋₁,   Tⱼ,ⱼ₊₁ = √βⱼ/αⱼ,   and   ζᵀ log(M) ζ ≈ ‖ζ‖² e₁ᵀ log(T) e₁,  ζ = P^{-1/2}b.

So one run gives both solves and log-determinants. The stop rule is GPyTorch's: the mean over the columns
of ‖r‖/‖b‖, with r from the recursion. Unlike the rule of `cglb.linalg.cg` it certifies nothing in nats.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import eigh_tridiagonal

from cglb.linalg.cg import Stop
from cglb.linalg.krylov import TURN, Preconditioner, Rule, Search, dot, walk
from cglb.linalg.operator import Operator

__all__ = ["BlockSolution", "block_cg", "inverse_root", "log_quadrature"]

# a column with a smaller relative residual is solved; further steps would put rounding errors into T
SOLVED = 1e-10


class BlockSolution(eqx.Module):
    """V with K̂V ≈ B, and the coefficients of every step.

    Attributes:
        V: the solution.
        residual: ‖r‖/‖b‖ of each column, by the recursion.
        alpha: step lengths; 0 after a column is solved.
        rho: rᵀP⁻¹r before each step.
        steps: of CG.
        stop: why CG stopped.
    """

    V: Float[Array, "n t"]
    residual: Float[np.ndarray, " t"]
    alpha: Float[np.ndarray, "j t"]
    rho: Float[np.ndarray, "j t"]
    steps: int = eqx.field(static=True)
    stop: Stop = eqx.field(static=True)


class _Relative(Rule):
    """Stop if the mean over the columns of ‖r‖/‖b‖ is small, or all columns are solved to rounding."""

    scale: Float[Array, " t"]
    tolerance: float
    min_steps: int

    def look(self, R: Array) -> tuple[Array, Array, Array | None]:
        residual = jnp.sqrt(dot(R, R)) / self.scale
        # a solved column is set to 0, which removes it from the recursion
        return jnp.where((residual <= SOLVED)[None, :], 0.0, R), residual, None

    def reached(self, measure: Array, steps: Array) -> Array:
        close = (steps >= self.min_steps) & (jnp.mean(measure) <= self.tolerance)
        return jnp.all(measure <= SOLVED) | close


@jax.jit
def _scales(B: Array) -> Array:
    """‖b‖ of each column, 1 for a column of zeros."""
    norms = jnp.sqrt(dot(B, B))
    return jnp.where(norms > 0.0, norms, 1.0)


@jax.jit
def _first_look(rule: _Relative, R: Array) -> tuple[Array, Array, Array]:
    R, measure, _ = rule.look(R)
    return R, measure, rule.reached(measure, jnp.asarray(0))


def block_cg(
    operator: Operator,
    B: Float[Array, "n t"],
    precondition: Preconditioner,
    *,
    V0: Float[Array, "n t"] | None = None,
    tolerance: float = 1.0,
    min_steps: int = 10,
    max_steps: int = 1000,
) -> BlockSolution:
    """CG on K̂V = B from V0 or 0, each column with its own step lengths; one product [n, t] per step.

    It stops when the mean of ‖r‖/‖b‖ is at most `tolerance`, or when all columns are solved to rounding.

    Args:
        operator: K̂.
        B: right-hand sides.
        precondition: P⁻¹.
        V0: where to start.
        tolerance: on the mean of ‖r‖/‖b‖.
        min_steps: steps before the tolerance counts; with tolerance 1, CG would otherwise take none.
        max_steps: the step limit.
    """
    rule = _Relative(_scales(B), tolerance, min_steps)
    V = jnp.zeros_like(B) if V0 is None else V0
    R, measure, at_once = _first_look(rule, B if V0 is None else B - operator @ V0)
    residual, reached = np.asarray(measure), bool(at_once)
    search: Search | None = None
    alphas, rhos = [np.zeros((0, B.shape[1]))], [np.zeros((0, B.shape[1]))]
    steps, stop = 0, None
    while stop is None:
        if reached:
            stop = Stop.TOLERANCE
        elif steps >= max_steps:
            stop = Stop.STEP_LIMIT
        else:
            budget = min(TURN, max_steps - steps)
            found = walk(
                operator,
                V,
                R,
                rule=rule,
                precondition=precondition,
                search=search,
                before=steps,
                budget=budget,
            )
            V, R, search, residual, reached = found[:5]
            steps += found.steps
            alphas.append(found.alpha)
            rhos.append(found.rho)
            if search is None and not reached:
                stop = Stop.BREAKDOWN
    return BlockSolution(
        V, residual, np.concatenate(alphas), np.concatenate(rhos), steps=steps, stop=stop
    )


def log_quadrature(
    alpha: Float[np.ndarray, "j t"], rho: Float[np.ndarray, "j t"]
) -> Float[np.ndarray, " t"]:
    """e₁ᵀ log(T) e₁ for every column, T from CG's coefficients; O(j²) per column.

    This is Gauss quadrature of log. The even derivatives of log are negative, so the error has one
    sign: the result is never below the exact ζᵀ log(M) ζ/‖ζ‖², and decreases towards it with more steps.

    Args:
        alpha: step lengths.
        rho: rᵀP⁻¹r before each step.
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
    # T is positive definite, but rounding may give a tiny negative eigenvalue
    return float(vectors[0] ** 2 @ np.log(np.maximum(values, np.finfo(values.dtype).tiny)))


def inverse_root(
    operator: Operator, b: Float[Array, " n"], rank: int, seed: int = 0
) -> Float[Array, "n k"]:
    """R with RRᵀ ≈ K̂⁻¹ from `rank` Lanczos steps started at b: R = QS^{-T/2} with S = QᵀK̂Q.

    RRᵀ ⪯ K̂⁻¹ for every orthonormal Q, with equality at full rank. S is computed from Q itself, not
    from the recursion, so that this also holds with rounding in Lanczos. O(rank) products and O(n·rank²)
    time, O(n·rank) memory.

    Args:
        operator: K̂.
        b: the first direction.
        rank: columns of R, at most n.
        seed: of the random directions that continue an exhausted Krylov space.
    """
    n = b.shape[0]
    k = min(rank, n)
    rng = np.random.default_rng(seed)
    Q = jnp.zeros((n, k), dtype=b.dtype)
    w = b
    for j in range(k):
        # an exhausted Krylov space is continued in a random direction
        spare = jnp.asarray(rng.standard_normal(n), dtype=b.dtype)
        Q = _extend(Q, w, spare, jnp.asarray(j))
        if j + 1 < k:
            w = operator @ Q[:, j]
    return _inverse_root(Q, operator @ Q)


@jax.jit
def _extend(Q: Array, w: Array, spare: Array, j: Array) -> Array:
    """Q with w, orthonormalised, as column j; in floating point two passes are enough."""

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
