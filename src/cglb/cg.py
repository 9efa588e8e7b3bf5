"""Preconditioned conjugate gradients, stopped in nats.

For K̂v = e the bound loses at most ½rᵀQ̂⁻¹r to an inexact v, so that is the stop rule: the tolerance is
in units of the log marginal likelihood and means the same at every noise level. It is checked on a
residual recomputed in float64, never on the recursion alone, and why the solver stopped is part of its
answer.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb import nystrom
from cglb.chain import Chain
from cglb.checks import boundary
from cglb.model import GP
from cglb.nystrom import DEFAULT_JITTER, Nystrom
from cglb.operator import KernelOperator, Operator, StoredOnUse, kernel_operator
from cglb.preconditioners import choose

__all__ = ["Search", "Solution", "Stop", "conjugate_gradients", "direction", "dot", "solve", "step"]

Preconditioner = Callable[[Array, Array, float], tuple[Array, bool]]

# nats that CG may leave on the table where a model is used, not trained: the paper's
PREDICTION_TOLERANCE = 1e-3
RECOMPUTE_EVERY = 50
STALLED_TURNS = 3


class Stop(enum.Enum):
    """Why CG stopped."""

    TOLERANCE = "tolerance"
    STEP_LIMIT = "step limit"
    BREAKDOWN = "breakdown"

    @property
    def message(self) -> str:
        """The same in a sentence."""
        return {
            Stop.TOLERANCE: "The certified slack is within the tolerance.",
            Stop.STEP_LIMIT: "The step limit was reached first. The bound is valid but looser: raise "
            "max_steps, use more inducing points, or accept the slack.",
            Stop.BREAKDOWN: "Rounding stopped progress. The bound is valid but looser: the matrix is "
            "too ill-conditioned for this precision; raise the noise floor or the jitter.",
        }[self]


class Solution(eqx.Module):
    """v with K̂v ≈ e, and how good it is.

    slack: ½rᵀQ̂⁻¹r from the final float64 residual, a certified bound on the nats that v costs.
    """

    v: Float[Array, "n *t"]
    K_hat_v: Float[Array, "n *t"]
    slack: Float[Array, "*t"]
    steps: int = eqx.field(static=True)
    products: int = eqx.field(static=True)
    stop: Stop = eqx.field(static=True)


@boundary
def solve(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v0: Float[Array, " n"] | None = None,
    tolerance: float = 1.0,
    max_steps: int = 1000,
    jitter: float = DEFAULT_JITTER,
    precondition: str = "auto",
    mixed: bool = False,
) -> Solution:
    """A good v for `bounds.cglb`: K̂v = y − μ by preconditioned CG, to `tolerance` nats.

    v0:           where to start; v = 0 is used instead if it gives the better bound.
    precondition: "nystrom", "chain" or "auto", as in `Objective`.
    mixed:        take CG's products in float32. The final residual, the certificate, stays float64.
    """
    operator = kernel_operator(gp, X)
    assert isinstance(operator, KernelOperator)
    factors = nystrom.factor(gp, X, Z, jitter)
    fast = StoredOnUse(operator.astype(jnp.float32) if mixed else operator)
    return conjugate_gradients(
        operator,
        y - gp.mean,
        factors,
        precondition=choose(precondition, gp, X, factors, lambda: Chain().prepare(gp.kernel, X).blocks),
        v0=v0,
        tolerance=tolerance,
        max_steps=max_steps,
        fast=fast,
    )


def conjugate_gradients(
    operator: Operator,
    e: Float[Array, "n *t"],
    factors: Nystrom,
    *,
    precondition: Preconditioner | None = None,
    v0: Float[Array, "n *k"] | None = None,
    tolerance: float | Float[Array, "*t"] = 1.0,
    max_steps: int = 1000,
    fast: Operator | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> Solution:
    """CG on K̂v = e for one vector [n] or several columns [n, t], each with its own step lengths.

    v0:           where to start, of the shape of e; for one vector also several columns [n, k], whose
                  best combination is the start.
    precondition: (z, same) from (r, Q̂⁻¹r, slack in tolerances); by default z = Q̂⁻¹r. Where `same` is
                  False the directions start anew. The stop rule uses Q̂⁻¹ whatever the preconditioner.
    fast:         an operator for the products inside the loop (float32, say); `operator` certifies.
    on_step:      called with the step number and the largest slack so far.
    """
    if not np.all(np.asarray(tolerance) >= 0.0):
        raise ValueError(f"tolerance must be at least 0 nats, found {tolerance}.")
    if max_steps < 0:
        raise ValueError(f"max_steps must be at least 0, found {max_steps}.")
    single = e.ndim == 1
    E = e[:, None] if single else e
    V0 = v0[:, None] if v0 is not None and v0.ndim == 1 else v0
    limit = np.broadcast_to(np.asarray(tolerance, dtype=float), (E.shape[1],))
    out = _solve_columns(
        operator, E, factors, precondition, V0, limit, max_steps, fast or operator, on_step
    )
    if not single:
        return out
    return Solution(out.v[:, 0], out.K_hat_v[:, 0], out.slack[0], out.steps, out.products, out.stop)


def _solve_columns(
    operator: Operator,
    E: Array,
    factors: Nystrom,
    precondition: Preconditioner | None,
    V0: Array | None,
    limit: np.ndarray,
    max_steps: int,
    fast: Operator,
    on_step: Callable[[int, float], None] | None,
) -> Solution:
    point, products = _start(operator, E, factors, V0)
    first = point
    search: Search | None = None
    steps, stalled, best = 0, 0, np.inf
    while True:
        # here point.R is a true residual; each turn runs CG from it by recursion, then recomputes it
        slack = np.asarray(point.slack)
        if np.all(slack <= limit):
            stop = Stop.TOLERANCE
            break
        if steps >= max_steps:
            stop = Stop.STEP_LIMIT
            break
        if stalled >= STALLED_TURNS:
            stop = Stop.BREAKDOWN
            break
        budget = min(RECOMPUTE_EVERY, max_steps - steps)
        V, R, search, taken = _run(
            point, search, fast, factors, precondition, limit, budget, steps, on_step
        )
        steps += taken
        products += taken + 1
        point = _at(operator, E, factors, V)
        # a recursion that left the truth is restarted; one that does so without progress has stalled
        drifted = bool(jnp.any(dot(R - point.R, R - point.R) > 1e-6 * dot(point.R, point.R)))
        progress = float(np.max(np.asarray(point.slack))) < 0.9 * best
        stalled = stalled + 1 if (drifted or search is None) and not progress else 0
        best = min(best, float(np.max(np.asarray(point.slack))))
        search = None if drifted else search
    if stop is not Stop.TOLERANCE:
        point = _better(E, first, point)
    return Solution(point.V, point.K_hat_V, point.slack, steps=steps, products=products, stop=stop)


class _Point(NamedTuple):
    """A trial V with its true residual."""

    V: Array
    K_hat_V: Array
    R: Array
    slack: Array


class Search(NamedTuple):
    """CG's direction and the rᵀz it came from."""

    P: Array
    rho: Array


def _at(operator: Operator, E: Array, factors: Nystrom, V: Array) -> _Point:
    return _point(E, factors, V, operator @ V)


def _point(E: Array, factors: Nystrom, V: Array, K_hat_V: Array) -> _Point:
    R = E - K_hat_V
    return _Point(V, K_hat_V, R, 0.5 * dot(R, factors.solve(R)))


def _start(operator: Operator, E: Array, factors: Nystrom, V0: Array | None) -> tuple[_Point, int]:
    """V0 or 0, column by column, whichever gives the better bound: a stale V0 after a long step of the
    optimiser can be astronomically bad, and 0 is never worse than SGPR."""
    zero = jnp.zeros_like(E)
    origin = _point(E, factors, zero, zero)
    if V0 is None:
        return origin, 0
    if V0.shape[1] == E.shape[1]:
        return _better(E, origin, _at(operator, E, factors, V0)), 1
    return _better(E, origin, _point(E, factors, *_combine(E, V0, operator @ V0))), 1


@jax.jit
def _combine(E: Array, V: Array, K_hat_V: Array) -> tuple[Array, Array]:
    """(v, K̂v) for the v in the span of V's columns that is nearest to K̂⁻¹e in the norm of K̂.

    The columns are solutions of problems that differ little, so it is their differences that count;
    what is zero or repeats another (to rounding) is left out.
    """

    def differences(A: Array) -> Array:
        return jnp.concatenate([A[:, :1], A[:, 1:] - A[:, :-1]], axis=1)

    V, K_hat_V = differences(V), differences(K_hat_V)
    curvature = jnp.sum(V * K_hat_V, axis=0)
    good = (curvature > 0.0) & jnp.isfinite(curvature)
    scale = jnp.where(good, 1.0 / jnp.sqrt(jnp.where(good, curvature, 1.0)), 0.0)
    V, K_hat_V = V * scale[None, :], K_hat_V * scale[None, :]
    values, vectors = jnp.linalg.eigh(V.T @ K_hat_V)
    keep = values > 1e-8
    inverse = jnp.where(keep, 1.0 / jnp.where(keep, values, 1.0), 0.0)
    c = vectors @ (inverse[:, None] * (vectors.T @ (V.T @ E)))
    return V @ c, K_hat_V @ c


def _better(E: Array, a: _Point, b: _Point) -> _Point:
    """Column by column, the point with the smaller upper bound on eᵀK̂⁻¹e."""

    def quadratic(point: _Point) -> Array:
        return 2.0 * point.slack + 2.0 * dot(E, point.V) - dot(point.V, point.K_hat_V)

    take_b = quadratic(b) <= quadratic(a)
    return _Point(
        *(jnp.where(take_b[None, :] if x.ndim == 2 else take_b, y, x) for x, y in zip(a, b, strict=True))
    )


def _run(
    point: _Point,
    search: Search | None,
    fast: Operator,
    factors: Nystrom,
    precondition: Preconditioner | None,
    limit: np.ndarray,
    budget: int,
    before: int,
    on_step: Callable[[int, float], None] | None,
) -> tuple[Array, Array, Search | None, int]:
    """Up to `budget` steps of CG by recursion, or until it looks done or breaks down."""
    V, R = point.V, point.R
    for taken in range(budget + 1):
        W = factors.solve(R)
        slack = np.asarray(0.5 * dot(R, W))
        if taken and on_step is not None:
            on_step(before + taken, float(np.max(slack)))
        if taken == budget or (taken and np.all(slack <= limit)):
            break
        Z, same = (W, True) if precondition is None else precondition(R, W, _ratio(slack, limit))
        found = direction(R, Z, search if same else None)
        V, R, _, healthy = step(V, R, found, fast @ found.P)
        search = found
        if not bool(healthy):
            return V, R, None, taken + 1
    return V, R, search, taken


def _ratio(slack: np.ndarray, limit: np.ndarray) -> float:
    """The largest slack in units of its limit; infinite where nothing is allowed."""
    with np.errstate(over="ignore"):
        return float(np.max(slack / np.maximum(limit, np.finfo(float).tiny)))


@jax.jit
def dot(A: Array, B: Array) -> Array:
    """aₜᵀbₜ for every column t."""
    return jnp.sum(A * B, axis=0)


@jax.jit
def direction(R: Array, Z: Array, search: Search | None) -> Search:
    """The next search direction of every column, from the residual R and the preconditioned one Z."""
    rho = dot(R, Z)
    if search is None:
        return Search(Z, rho)
    beta = jnp.where(search.rho > 0.0, rho / search.rho, 0.0)
    return Search(Z + beta[None, :] * search.P, rho)


@jax.jit
def step(V: Array, R: Array, search: Search, K_hat_P: Array) -> tuple[Array, Array, Array, Array]:
    """V and R after one step along `search`, the step lengths [t], and whether no column broke down."""
    curvature = dot(search.P, K_hat_P)
    good = (curvature > 0.0) & jnp.isfinite(curvature) & (search.rho > 0.0)
    alpha = jnp.where(good, search.rho / jnp.where(good, curvature, 1.0), 0.0)
    # a column that is already solved has rᵀz = 0: that is not a breakdown
    healthy = jnp.all(good | (search.rho == 0.0))
    return V + alpha[None, :] * search.P, R - alpha[None, :] * K_hat_P, alpha, healthy
