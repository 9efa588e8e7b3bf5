"""The steps of preconditioned conjugate gradients, for any operator, preconditioner and stop rule.

`walk` takes steps on K̂V = B by recursion, each column with its own step lengths, until the rule is
satisfied, a column breaks down or the turn ends. On an accelerator, products are part of the compiled
program: a whole turn is one compiled loop, and the host reads its result once. On a CPU the host
distributes products to threads or BLAS, so the host runs the loop: each step has one product, one
compiled function for everything else, and one read of two flags; for few rows a turn is one program
there too.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from cglb.compute.backend import backend_of, few_rows
from cglb.linalg.operator import KernelOperator

__all__ = ["TURN", "Preconditioner", "Rule", "Search", "Walked", "dot", "walk"]

# steps after which the caller checks the true residual
TURN = 50

Product = Callable[[Array], Array]


class Preconditioner(eqx.Module):
    """An approximation of K̂⁻¹. Any symmetric positive definite matrix is allowed."""

    @abc.abstractmethod
    def __call__(self, R: Float[Array, "n t"]) -> Float[Array, "n t"]:
        """The preconditioned residuals, column by column."""


class Rule(eqx.Module):
    """When to stop, judged by the residuals R."""

    @abc.abstractmethod
    def look(self, R: Array) -> tuple[Array, Array, Array | None]:
        """Measure the residuals.

        Returns:
            R, the measure of each column [t], and Q̂⁻¹R if the measure needed it, otherwise None. A
            rule may set solved columns of R to 0, which removes them from the recursion.
        """

    @abc.abstractmethod
    def reached(self, measure: Array, steps: Array) -> Bool[Array, ""]:
        """Whether to stop after `steps` steps."""


class Search(NamedTuple):
    """The state of CG's recursion; zeros at the start.

    Attributes:
        P: directions [n, t].
        rho: the rᵀz [t] from which they were computed.
    """

    P: Array
    rho: Array

    @classmethod
    def fresh(cls, R: Array) -> Search:
        return cls(jnp.zeros_like(R), jnp.zeros(R.shape[1], dtype=R.dtype))


class Walked(NamedTuple):
    """The end of a turn.

    Attributes:
        V: the solution so far [n, t].
        R: its residuals by the recursion [n, t].
        search: of the last step, to continue from; None after a breakdown.
        measure: of every column, by the rule.
        reached: whether the rule was satisfied (by the recursion's residual).
        alpha: step lengths [steps, t].
        rho: rᵀz [steps, t] before each step.
    """

    V: Array
    R: Array
    search: Search | None
    measure: np.ndarray
    reached: bool
    alpha: np.ndarray
    rho: np.ndarray

    @property
    def steps(self) -> int:
        return len(self.alpha)


class _Iterate(NamedTuple):
    V: Array
    R: Array
    search: Search  # of the next step
    used: Search  # of the step that led here
    measure: Array
    status: Array  # [reached, healthy]
    steps: Array
    alpha: Array  # of the step that led here


def walk(
    operator: Any,
    V: Float[Array, "n t"],
    R: Float[Array, "n t"],
    *,
    rule: Rule,
    precondition: Preconditioner | None = None,
    search: Search | None = None,
    before: int = 0,
    budget: int = TURN,
) -> Walked:
    """Up to `budget` (at most `TURN`) steps of CG from V, whose residuals are R.

    Args:
        operator: K̂, with `@`.
        V: where to start.
        R: the residuals of V.
        rule: when to stop.
        precondition: the preconditioner; None for the Q̂⁻¹R of the rule.
        search: the state of an earlier walk with the same preconditioner, to continue from.
        before: steps before this walk, for the rule.
        budget: the step limit.
    """
    first = _begin(V, R, search or Search.fresh(R), jnp.asarray(before), rule, precondition)
    if isinstance(operator, KernelOperator) and _compiles_loops(operator, V):
        last, alpha, rho, taken = _compiled(operator, first, jnp.asarray(budget), rule, precondition)
        return _walked(last, np.asarray(alpha)[: int(taken)], np.asarray(rho)[: int(taken)])
    point, alphas, rhos = first, [], []
    reached, healthy = False, True
    while len(alphas) < budget and not reached and healthy:
        rhos.append(point.search.rho)
        point = _advance(point, operator @ point.search.P, rule, precondition)
        alphas.append(point.alpha)
        reached, healthy = (bool(flag) for flag in np.asarray(point.status))
    shape = (len(alphas), R.shape[1])
    alpha, rho = (np.array(rows, dtype=R.dtype).reshape(shape) for rows in (alphas, rhos))
    return _walked(point, alpha, rho)


def _compiles_loops(operator: KernelOperator, V: Array) -> bool:
    return few_rows(operator, V) or backend_of(operator, V).compiles_loops


def _walked(last: _Iterate, alpha: np.ndarray, rho: np.ndarray) -> Walked:
    reached, healthy = (bool(flag) for flag in np.asarray(last.status))
    search = last.used if healthy else None
    return Walked(last.V, last.R, search, np.asarray(last.measure), reached, alpha, rho)


@jax.jit
def _begin(
    V: Array, R: Array, search: Search, steps: Array, rule: Rule, precondition: Preconditioner | None
) -> _Iterate:
    status = jnp.array([False, True])
    return _aim(V, R, search, steps, status, jnp.zeros_like(search.rho), rule, precondition)


@jax.jit
def _advance(
    point: _Iterate, K_hat_P: Array, rule: Rule, precondition: Preconditioner | None
) -> _Iterate:
    """Take one step along the directions, given their products with K̂, and choose the next ones."""
    (P, rho), V, R = point.search, point.V, point.R
    curvature = dot(P, K_hat_P)
    good = (curvature > 0.0) & jnp.isfinite(curvature) & (rho > 0.0)
    alpha = jnp.where(good, rho / jnp.where(good, curvature, 1.0), 0.0)
    # a column that is already solved has rᵀz = 0: that is not a breakdown
    healthy = jnp.all(good | (rho == 0.0))
    V, R = V + alpha[None, :] * P, R - alpha[None, :] * K_hat_P
    status = jnp.stack([jnp.asarray(False), healthy])
    return _aim(V, R, point.search, point.steps + 1, status, alpha, rule, precondition)


def _aim(
    V: Array,
    R: Array,
    search: Search,
    steps: Array,
    status: Array,
    alpha: Array,
    rule: Rule,
    precondition: Preconditioner | None,
) -> _Iterate:
    """Measure the residuals and choose the next directions."""
    R, measure, W = rule.look(R)
    Z = precondition(R) if precondition is not None else W
    if Z is None:
        raise ValueError("This stop rule gives no preconditioned residual: pass a preconditioner.")
    rho = dot(R, Z)
    beta = jnp.where(search.rho > 0.0, rho / jnp.where(search.rho > 0.0, search.rho, 1.0), 0.0)
    status = status.at[0].set(rule.reached(measure, steps))
    ahead = Search(Z + beta[None, :] * search.P, rho)
    return _Iterate(V, R, ahead, search, measure, status, steps, alpha)


@jax.jit
def _compiled(
    operator: KernelOperator,
    first: _Iterate,
    budget: Array,
    rule: Rule,
    precondition: Preconditioner | None,
) -> tuple[_Iterate, Array, Array, Array]:
    """The loop of `walk` as one compiled program."""
    empty = jnp.zeros((TURN, first.R.shape[1]), dtype=first.R.dtype)

    def more(state: Any) -> Array:
        point, _, _, taken = state
        return (taken < budget) & ~point.status[0] & point.status[1]

    def body(state: Any) -> Any:
        point, alpha, rho, taken = state
        rho = rho.at[taken].set(point.search.rho)
        point = _advance(point, operator @ point.search.P, rule, precondition)
        return point, alpha.at[taken].set(point.alpha), rho, taken + 1

    start = (first._replace(status=jnp.array([False, True])), empty, empty, jnp.zeros_like(budget))
    return lax.while_loop(more, body, start)


def dot(A: Float[Array, "n t"], B: Float[Array, "n t"]) -> Float[Array, " t"]:
    """aₜᵀbₜ for every column t."""
    return jnp.sum(A * B, axis=0)
