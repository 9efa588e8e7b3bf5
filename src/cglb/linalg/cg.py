"""Preconditioned conjugate gradients, stopped in nats.

For K̂v = e an inexact v costs the bound at most ½rᵀQ̂⁻¹r, so this is the stop rule: the tolerance is in
units of the log marginal likelihood and means the same at every noise level. It is checked on a residual
recomputed in float64, never on the recursion alone, and the solution says why CG stopped. So products
inside the recursion may be rounded to float32: they cost steps, never the certificate.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.compute.backend import one_program
from cglb.core.precision import everywhere
from cglb.linalg.krylov import TURN, Rule, Search, dot, walk
from cglb.linalg.nystrom import Nystrom
from cglb.linalg.operator import Operator
from cglb.linalg.preconditioners import OnDemand
from cglb.linalg.quadratic import quadratic_interval

__all__ = ["PREDICTION_NATS", "Limits", "Solution", "Stop", "conjugate_gradients"]

# nats that CG may cost in predictions: the paper's choice
PREDICTION_NATS = 1e-3
# CG stops after so many turns without progress
STALLED_TURNS = 3
# a turn is progress if it lowers the largest slack by a tenth
PROGRESS = 0.9
# CG restarts if the recursion's residual differs from the true one by more than this share, squared
DRIFT = 1e-6
# CG leaves an imprecise operator that drifts, unless the turn lowered the slack to this share
WORTHWHILE = 0.1
# start vectors this close (squared, in the norm of K̂) to the span of the others add nothing
REPEATED = 1e-8


class Stop(enum.Enum):
    """Why CG stopped."""

    TOLERANCE = "tolerance"
    STEP_LIMIT = "step limit"
    BREAKDOWN = "breakdown"

    @property
    def message(self) -> str:
        """The reason in a sentence, with a remedy."""
        return {
            Stop.TOLERANCE: "The certified slack is within the tolerance.",
            Stop.STEP_LIMIT: "The step limit was reached first. The bound is valid but looser: raise "
            "max_steps, use more inducing points, or accept the slack.",
            Stop.BREAKDOWN: "Rounding stopped progress. The bound is valid but looser: the matrix is "
            "too ill-conditioned for this precision; raise the noise floor or the jitter.",
        }[self]


class Solution(eqx.Module):
    """v with K̂v ≈ e, and how accurate it is.

    Attributes:
        v: the solution.
        K_hat_v: K̂v in float64.
        slack: ½rᵀQ̂⁻¹r from the final float64 residual, a certified bound on the nats that v costs.
        steps: of CG.
        products: with K̂.
        stop: why CG stopped.
    """

    v: Float[Array, "n *t"]
    K_hat_v: Float[Array, "n *t"]
    slack: Float[Array, "*t"]
    steps: int = eqx.field(static=True)
    products: int = eqx.field(static=True)
    stop: Stop = eqx.field(static=True)


@dataclass(frozen=True)
class Limits:
    """When CG stops.

    Attributes:
        tolerance: nats of slack, one number or one per column.
        max_steps: the step limit.
    """

    tolerance: float | Float[Array, " t"] = 1.0
    max_steps: int = 1000

    def __post_init__(self) -> None:
        if not np.all(np.asarray(self.tolerance) >= 0.0):
            raise ValueError(f"tolerance must be at least 0 nats, found {self.tolerance}.")
        if self.max_steps < 0:
            raise ValueError(f"max_steps must be at least 0, found {self.max_steps}.")


class _InNats(Rule):
    """Stop when the slack ½rᵀQ̂⁻¹r of every column is at most its limit."""

    factors: Nystrom
    limit: Float[Array, " t"]

    def look(self, R: Array) -> tuple[Array, Array, Array | None]:
        W = self.factors.solve(R)
        return R, 0.5 * dot(R, W), W

    def reached(self, measure: Array, steps: Array) -> Array:
        return jnp.all(measure <= self.limit)


def conjugate_gradients(
    operator: Operator,
    e: Float[Array, "n *t"],
    factors: Nystrom,
    *,
    v0: Float[Array, "n *k"] | None = None,
    limits: Limits = Limits(),
    preconditioner: OnDemand | None = None,
    inside: Sequence[Operator] = (),
) -> Solution:
    """CG on K̂v = e for one vector [n] or several columns [n, t], each with its own step lengths.

    Args:
        operator: K̂ in float64, for the residuals that certify.
        e: right-hand sides.
        factors: of Q̂.
        v0: where to start, in the shape of e. If e is one vector, v0 may have several columns [n, k];
            CG then starts at their best combination.
        limits: when to stop.
        preconditioner: built when CG needs it; by default Q̂⁻¹. The stop rule always uses Q̂⁻¹.
        inside: operators for the products inside the loop, from the fastest to the most precise. CG
            moves on to the next where rounding ends the progress of one. By default `operator` alone.
    """
    single = e.ndim == 1
    E = e[:, None] if single else e
    V0 = v0[:, None] if v0 is not None and v0.ndim == 1 else v0
    limit = jax.device_put(np.full(E.shape[1], limits.tolerance, dtype=E.dtype))
    rule = _InNats(factors, limit)
    point, products = _start(operator, E, factors, V0)
    inside = inside or (operator,)
    out = _turns(operator, inside, E, rule, preconditioner, limits.max_steps, point, products)
    out = everywhere(out)
    if not single:
        return out
    v, K_hat_v, slack = _first_column(out.v, out.K_hat_v, out.slack)
    return Solution(v, K_hat_v, slack, out.steps, out.products, out.stop)


@jax.jit
def _first_column(*arrays: Array) -> tuple[Array, ...]:
    return tuple(array[..., 0] for array in arrays)


class _Point(NamedTuple):
    """A trial V with its true residual."""

    V: Array
    K_hat_V: Array
    R: Array
    slack: Array


def _turns(
    operator: Operator,
    inside: Sequence[Operator],
    E: Array,
    rule: _InNats,
    preconditioner: OnDemand | None,
    max_steps: int,
    point: _Point,
    products: int,
) -> Solution:
    """Turns of CG by recursion. Each starts at a true residual, which is recomputed after the turn."""
    safest = point
    search: Search | None = None
    limit = np.asarray(rule.limit)
    steps, stalled, best = 0, 0, np.inf
    while True:
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
        budget = min(TURN, max_steps - steps)
        V, R, search, taken = _turn(inside[0], point, search, rule, preconditioner, steps, budget)
        steps += taken
        products += taken + 1
        before, point = point, _at(operator, E, rule.factors, V)
        safest = _better(E, safest, point)
        # restart a recursion that has drifted or broken down, or that ends too early by its own residual
        early = taken < budget and not np.all(np.asarray(point.slack) <= limit)
        search = None if early or bool(_drifted(R, point.R)) else search
        worst = float(np.max(np.asarray(point.slack)))
        if search is None and len(inside) > 1:
            if not worst < WORTHWHILE * float(np.max(np.asarray(before.slack))):
                inside, point = inside[1:], _better(E, before, point)
        # without progress as well, CG has stalled
        elif search is None and not worst < PROGRESS * best:
            stalled += 1
        else:
            stalled = 0
        best = min(best, worst)
    if stop is not Stop.TOLERANCE:
        point = safest
    return Solution(point.V, point.K_hat_V, point.slack, steps=steps, products=products, stop=stop)


def _turn(
    fast: Operator,
    point: _Point,
    search: Search | None,
    rule: _InNats,
    preconditioner: OnDemand | None,
    before: int,
    budget: int,
) -> tuple[Array, Array, Search | None, int]:
    """Up to `budget` steps; a preconditioner that is built during the turn is used at once."""
    V, R, taken = point.V, point.R, 0
    ratio = _ratio(np.asarray(point.slack), np.asarray(rule.limit))
    while True:
        leg, precondition = budget - taken, None
        if preconditioner is not None:
            known = preconditioner.built is not None
            precondition, patience = preconditioner.next(ratio)
            leg = leg if patience is None else min(leg, patience)
            search = search if known == (precondition is not None) else None
        found = walk(
            fast,
            V,
            R,
            rule=rule,
            precondition=precondition,
            search=search,
            before=before + taken,
            budget=leg,
        )
        V, R, search, taken = found.V, found.R, found.search, taken + found.steps
        if found.reached or search is None or taken >= budget:
            return V, R, search, taken
        ratio = _ratio(found.measure, np.asarray(rule.limit))


def _ratio(slack: np.ndarray, limit: np.ndarray) -> float:
    """The largest slack in units of its limit; infinite if a limit is 0."""
    with np.errstate(over="ignore"):
        return float(np.max(slack / np.maximum(limit, np.finfo(float).tiny)))


@jax.jit
def _drifted(R: Array, truth: Array) -> Array:
    return jnp.any(dot(R - truth, R - truth) > DRIFT * dot(truth, truth))


@one_program
def _at(operator: Operator, E: Array, factors: Nystrom, V: Array) -> _Point:
    return _point(E, factors, V, operator @ V)


@jax.jit
def _point(E: Array, factors: Nystrom, V: Array, K_hat_V: Array) -> _Point:
    R = E - K_hat_V
    return _Point(V, K_hat_V, R, 0.5 * dot(R, factors.solve(R)))


@jax.jit
def _origin(E: Array, factors: Nystrom) -> _Point:
    zero = jnp.zeros_like(E)
    return _point(E, factors, zero, zero)


def _start(operator: Operator, E: Array, factors: Nystrom, V0: Array | None) -> tuple[_Point, int]:
    """V0 or 0, column by column, whichever gives the better bound; and the number of products.

    After a long step of the optimiser, an old V0 can be extremely bad. 0 is never worse than SGPR.
    """
    if V0 is None:
        return _origin(E, factors), 0
    return _start_at(operator, E, factors, V0), 1


@one_program
def _start_at(operator: Operator, E: Array, factors: Nystrom, V0: Array) -> _Point:
    origin = _origin(E, factors)
    if V0.shape[1] == E.shape[1]:
        return _better(E, origin, _at(operator, E, factors, V0))
    return _better(E, origin, _point(E, factors, *_combine(E, V0, operator @ V0)))


@jax.jit
def _combine(E: Array, V: Array, K_hat_V: Array) -> tuple[Array, Array]:
    """(v, K̂v) for the v in the span of V's columns that is nearest to K̂⁻¹e in the norm of K̂.

    The columns are solutions of similar problems, so the basis is made of their differences. Directions
    that are zero or (to rounding) in the span of others are left out.
    """

    def differences(A: Array) -> Array:
        return jnp.concatenate([A[:, :1], A[:, 1:] - A[:, :-1]], axis=1)

    V, K_hat_V = differences(V), differences(K_hat_V)
    curvature = jnp.sum(V * K_hat_V, axis=0)
    good = (curvature > 0.0) & jnp.isfinite(curvature)
    scale = jnp.where(good, 1.0 / jnp.sqrt(jnp.where(good, curvature, 1.0)), 0.0)
    V, K_hat_V = V * scale[None, :], K_hat_V * scale[None, :]
    values, vectors = jnp.linalg.eigh(V.T @ K_hat_V)
    keep = values > REPEATED
    inverse = jnp.where(keep, 1.0 / jnp.where(keep, values, 1.0), 0.0)
    c = vectors @ (inverse[:, None] * (vectors.T @ (V.T @ E)))
    return V @ c, K_hat_V @ c


@jax.jit
def _better(E: Array, a: _Point, b: _Point) -> _Point:
    """Column by column, the point with the smaller upper bound on eᵀK̂⁻¹e."""

    def upper(point: _Point) -> Array:
        return quadratic_interval(E, point.V, point.K_hat_V, 2.0 * point.slack).upper

    take_b = upper(b) <= upper(a)
    return _Point(
        *(jnp.where(take_b[None, :] if x.ndim == 2 else take_b, y, x) for x, y in zip(a, b, strict=True))
    )
