"""The log marginal likelihood and its bounds, each a pure function that returns its terms separately.

    sgpr ≤ cglb (at a good v) ≤ exact ≤ upper

`cglb` and `upper` hold for *every* v: conjugate gradients (`cglb.solve`) only supplies a good one. All
are differentiable in gp and, if they take one, Z; X, y and v are data.

    log p(y) = −(n/2) log 2π − ½ eᵀK̂⁻¹e − ½ log|K̂|,   e = y − μ

The functions that end in `_at` are the same bounds for a given `System` at (gp, Z).
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.bounds import logdet as logdet_bounds
from cglb.bounds.logdet import LogdetBound, Side
from cglb.bounds.terms import BoundTerms
from cglb.core.precision import is_traced
from cglb.core.validation import boundary
from cglb.linalg import dense, row_noise
from cglb.linalg.cg import Solution, Stop
from cglb.linalg.nystrom import DEFAULT_JITTER
from cglb.linalg.quadratic import QuadraticInterval
from cglb.linalg.quadratic import quadratic_interval as lemma_3
from cglb.linalg.rounding import Rounding, dense_rounding
from cglb.linalg.system import Solver, System
from cglb.model import GP

__all__ = [
    "cglb",
    "cglb_at",
    "cglb_at_solution",
    "exact",
    "quadratic_interval",
    "sgpr",
    "sgpr_at",
    "upper",
    "upper_at",
]


@boundary
def exact(gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]) -> BoundTerms:
    """log p(y) by Cholesky: O(n³) time, O(n²) memory.

    Raises:
        numpy.linalg.LinAlgError: if K̂ has no factor in float64 (inside a trace the terms are NaN).
    """
    found = BoundTerms.of(row_noise.number(gp.kernel, X), *dense.terms(gp, X, y))
    if is_traced(gp, X, y, found):
        return found
    if not np.isfinite(float(found.value)):
        raise np.linalg.LinAlgError(
            f"K + noise·I [{X.shape[0]} x {X.shape[0]}] is not positive definite in float64 at noise "
            f"{float(gp.noise):.3g}: raise the noise, or check the kernel's values."
        )
    noise = float(gp.noise)
    norm = float(np.sqrt(-2.0 * float(found.quadratic) / noise))  # |K̂⁻¹e|² ≤ eᵀK̂⁻¹e/σ²
    error = dense_rounding(gp.kernel, noise, X, row_noise.residual(gp, X, y), norm)
    return replace(found, rounding=0.5 * (error.logdet + error.quadratic))


@boundary
def sgpr(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    logdet: str | LogdetBound = "trace",
    jitter: float = DEFAULT_JITTER,
) -> BoundTerms:
    """log p(y) ≥ −(n/2)log 2π − ½eᵀQ̂⁻¹e − ½·(upper bound on log|K̂|), O(nm²).

    logdet="trace" is Titsias' bound; "amgm" is the paper's improvement at the same cost.

    Args:
        gp: the model.
        X: inputs.
        y: targets.
        Z: inducing points.
        logdet: the upper bound on log|K̂|, by key or as an object.
        jitter: added to diag(Kuu), relative to its mean.
    """
    system = _fixed_system(gp, X, Z, jitter)
    bound = _prepared(logdet, Side.ABOVE, system)
    found = sgpr_at(system, gp, Z, y, bound)
    return _with_rounding(found, system, y, None, bound)


def sgpr_at(
    system: System, gp: GP, Z: Float[Array, "m d"], y: Float[Array, " n"], logdet: LogdetBound
) -> BoundTerms:
    """`sgpr` with a system at the values of (gp, Z) and a prepared log-det bound."""
    view, quadratic = system.linearised(gp, Z, system.residual(y, gp), logdet.rows)
    return BoundTerms.of(system.count, quadratic, logdet(view) + system.log_units(gp))


@boundary
def cglb(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v: Float[Array, " n"],
    logdet: str | LogdetBound = "amgm",
    jitter: float = DEFAULT_JITTER,
) -> BoundTerms:
    """log p(y) ≥ −(n/2)log 2π − ½(rᵀQ̂⁻¹r + 2eᵀv − vᵀK̂v) − ½·(upper bound on log|K̂|) for every v.

    r = e − K̂v. v = 0 gives `sgpr`, v = K̂⁻¹e the best bound of this form. One product K̂v (n² kernel
    entries, O(n) memory) in addition to O(nm²); the gradient takes one more pass over the tiles.

    Args:
        gp: the model.
        X: inputs.
        y: targets.
        Z: inducing points.
        v: any vector; `cglb.solve` gives a good one.
        logdet: the upper bound on log|K̂|, by key or as an object.
        jitter: added to diag(Kuu), relative to its mean.
    """
    system, v = _fixed_system(gp, X, Z, jitter), jax.lax.stop_gradient(v)
    bound = _prepared(logdet, Side.ABOVE, system)
    K_hat_v = system.operator @ v
    found = cglb_at(system, gp, Z, y, v, K_hat_v, bound)
    return _with_rounding(found, system, y, (v, K_hat_v), bound)


def cglb_at(
    system: System,
    gp: GP,
    Z: Float[Array, "m d"],
    y: Float[Array, " n"],
    v: Float[Array, " n"],
    K_hat_v: Float[Array, " n"],
    logdet: LogdetBound,
) -> BoundTerms:
    """`cglb` with a system at the values of (gp, Z), the value of K̂v and a prepared log-det bound."""
    e = system.residual(y, gp)
    product = system.known_product(gp, v, K_hat_v)
    view, residual_form = system.linearised(gp, Z, e - product, logdet.rows)
    quadratic = lemma_3(e, v, product, residual_form)
    return BoundTerms.of(system.count, quadratic.upper, logdet(view) + system.log_units(gp))


def cglb_at_solution(
    system: System,
    gp: GP,
    Z: Float[Array, "m d"],
    y: Float[Array, " n"],
    v: Float[Array, " n"],
    K_hat_v: Float[Array, " n"],
    logdet: LogdetBound,
) -> BoundTerms:
    """The value of `cglb_at` with the slopes that it has at the solution v = K̂⁻¹e: those of 2eᵀv − vᵀK̂v.

    At the solution this form is stationary in v (the envelope theorem), so its slopes at v are those of
    eᵀK̂⁻¹e up to 2(K̂⁻¹r)ᵀ(dK̂)v. The slopes of `cglb_at` have 2wᵀ(dK̂)v with w = Q̂⁻¹r in its place: where Q̂
    is a poor approximation of K̂, w is far larger, and slopes can be off by hundreds of nats.
    """
    e = system.residual(y, gp)
    product = system.known_product(gp, v, K_hat_v)
    r = jax.lax.stop_gradient(e - product)
    view, residual_form = system.linearised(gp, Z, r, logdet.rows)
    quadratic = lemma_3(e, v, product, jax.lax.stop_gradient(residual_form))
    return BoundTerms.of(system.count, quadratic.upper, logdet(view) + system.log_units(gp))


@boundary
def upper(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v: Float[Array, " n"],
    logdet: str | LogdetBound = "nystrom",
    jitter: float = DEFAULT_JITTER,
) -> BoundTerms:
    """log p(y) ≤ −(n/2)log 2π − ½(2eᵀv − vᵀK̂v) − ½·(lower bound on log|K̂|) for every v.

    With `cglb` at the same v this gives an interval that contains the log marginal likelihood.

    Args:
        gp: the model.
        X: inputs.
        y: targets.
        Z: inducing points.
        v: any vector; `cglb.solve` gives a good one.
        logdet: the lower bound on log|K̂|, by key or as an object.
        jitter: added to diag(Kuu), relative to its mean.
    """
    system, v = _fixed_system(gp, X, Z, jitter), jax.lax.stop_gradient(v)
    bound = _prepared(logdet, Side.BELOW, system)
    K_hat_v = system.operator @ v
    found = upper_at(system, gp, Z, y, v, K_hat_v, bound)
    return _with_rounding(found, system, y, (v, K_hat_v), bound)


def upper_at(
    system: System,
    gp: GP,
    Z: Float[Array, "m d"],
    y: Float[Array, " n"],
    v: Float[Array, " n"],
    K_hat_v: Float[Array, " n"],
    logdet: LogdetBound,
) -> BoundTerms:
    """`upper` with a system at the values of (gp, Z), the value of K̂v and a prepared log-det bound."""
    e = system.residual(y, gp)
    product = system.known_product(gp, v, K_hat_v)
    view, _ = system.linearised(gp, Z, e, logdet.rows)
    quadratic = lemma_3(e, v, product, jnp.zeros_like(e[0]))
    return BoundTerms.of(system.count, quadratic.lower, logdet(view) + system.log_units(gp))


@boundary
def quadratic_interval(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v: Float[Array, " n"],
    jitter: float = DEFAULT_JITTER,
) -> QuadraticInterval:
    """2eᵀv − vᵀK̂v ≤ eᵀK̂⁻¹e ≤ rᵀQ̂⁻¹r + 2eᵀv − vᵀK̂v (Lemma 3), for every v."""
    system = _fixed_system(gp, X, Z, jitter)
    e, K_hat_v = system.residual(y), system.operator @ v
    r = e - K_hat_v
    return lemma_3(e, v, K_hat_v, r @ system.nystrom.solve(r))


def _fixed_system(gp: GP, X: Array, Z: Array, jitter: float) -> System:
    """The system at these values; gradients go through the arguments of `…_at` instead."""
    fixed_gp, fixed_Z = jax.lax.stop_gradient((gp, Z))
    return System(fixed_gp, X, fixed_Z, Solver(jitter=jitter))


def _with_rounding(
    found: BoundTerms,
    system: System,
    y: Array,
    at: tuple[Array, Array] | None,
    logdet: LogdetBound,
) -> BoundTerms:
    """The terms with their rounding, where values are known.

    Args:
        found: the terms.
        system: of the bound.
        y: targets.
        at: v and K̂v; None for v = 0.
        logdet: the bound on log|K̂|.
    """
    e = system.residual(y)
    if is_traced(found, system.gp, system.X, y, at):
        return found
    v, K_hat_v = (jnp.zeros_like(e), jnp.zeros_like(e)) if at is None else at
    r = e - K_hat_v
    slack = 0.5 * (r @ system.nystrom.solve(r))
    rounding = Rounding.of(system)
    certain = rounding.quadratic(e, Solution(v, K_hat_v, slack, 0, 0, Stop.TOLERANCE))
    sides = {Side.ABOVE: certain.upper, Side.BELOW: certain.lower}
    quadratic = abs(float(sides[logdet.side]) + 2.0 * float(found.quadratic))
    value = -2.0 * float(found.logdet) - float(system.log_units())
    return replace(found, rounding=0.5 * (quadratic + logdet.margin(value, system.view, rounding)))


def _prepared(logdet: str | LogdetBound, side: Side, system: System) -> LogdetBound:
    return logdet_bounds.find(logdet, side).prepare(system)
