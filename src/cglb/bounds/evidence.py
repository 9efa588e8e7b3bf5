"""The log marginal likelihood and its bounds, each a pure function that returns its terms separately.

    sgpr ≤ cglb (at a good v) ≤ exact ≤ upper

`cglb` and `upper` hold for *every* v: conjugate gradients (`cglb.solve`) only supplies a good one. All
are differentiable in gp and, if they take one, Z; X, y and v are data.

    log p(y) = −(n/2) log 2π − ½ eᵀK̂⁻¹e − ½ log|K̂|,   e = y − μ

The functions that end in `_at` are the same bounds for a given `System` at (gp, Z).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cglb.bounds import logdet as logdet_bounds
from cglb.bounds.logdet import LogdetBound, Side
from cglb.bounds.terms import BoundTerms
from cglb.core.validation import boundary
from cglb.linalg import dense
from cglb.linalg.nystrom import DEFAULT_JITTER
from cglb.linalg.quadratic import QuadraticInterval
from cglb.linalg.quadratic import quadratic_interval as lemma_3
from cglb.linalg.system import Solver, System
from cglb.model import GP

__all__ = ["cglb", "cglb_at", "exact", "quadratic_interval", "sgpr", "sgpr_at", "upper", "upper_at"]


@boundary
def exact(gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]) -> BoundTerms:
    """log p(y) by Cholesky: O(n³) time, O(n²) memory."""
    return BoundTerms.of(X.shape[0], *dense.terms(gp, X, y))


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
    return sgpr_at(system, gp, Z, y, _prepared(logdet, Side.ABOVE, system))


def sgpr_at(
    system: System, gp: GP, Z: Float[Array, "m d"], y: Float[Array, " n"], logdet: LogdetBound
) -> BoundTerms:
    """`sgpr` with a system at the values of (gp, Z) and a prepared log-det bound."""
    view, quadratic = system.linearised(gp, Z, y - gp.mean, logdet.rows)
    return BoundTerms.of(system.n, quadratic, logdet(view))


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
    return cglb_at(system, gp, Z, y, v, system.operator @ v, bound)


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
    e = y - gp.mean
    product = system.known_product(gp, v, K_hat_v)
    view, residual_form = system.linearised(gp, Z, e - product, logdet.rows)
    quadratic = lemma_3(e, v, product, residual_form)
    return BoundTerms.of(system.n, quadratic.upper, logdet(view))


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
    return upper_at(system, gp, Z, y, v, system.operator @ v, bound)


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
    e = y - gp.mean
    product = system.known_product(gp, v, K_hat_v)
    view, _ = system.linearised(gp, Z, e, logdet.rows)
    quadratic = lemma_3(e, v, product, jnp.zeros_like(e[0]))
    return BoundTerms.of(system.n, quadratic.lower, logdet(view))


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
    e, K_hat_v = y - gp.mean, system.operator @ v
    r = e - K_hat_v
    return lemma_3(e, v, K_hat_v, r @ system.nystrom.solve(r))


def _fixed_system(gp: GP, X: Array, Z: Array, jitter: float) -> System:
    """The system at these values; gradients go through the arguments of `…_at` instead."""
    fixed_gp, fixed_Z = jax.lax.stop_gradient((gp, Z))
    return System(fixed_gp, X, fixed_Z, Solver(jitter=jitter))


def _prepared(logdet: str | LogdetBound, side: Side, system: System) -> LogdetBound:
    return logdet_bounds.find(logdet, side).prepare(system)
