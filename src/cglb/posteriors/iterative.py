"""The posterior of Iterative GP: the mean by CG, variances by Lanczos (LOVE, Pleiss et al. 2018).

LOVE replaces K̂⁻¹ by RRᵀ from one Lanczos run over the training rows, which is used for every test row.
As RRᵀ ⪯ K̂⁻¹ the variances err on one side only: they are never below the exact ones, and too large if
`rank` steps do not resolve the data near a test row. `variance_by_solves` runs CG for every test row
instead; from v = 0 its kᵀv approaches kᵀK̂⁻¹k from below, so it errs on the same side.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from cglb.core.validation import boundary
from cglb.linalg import inducing, row_noise
from cglb.linalg.cg import Solution
from cglb.linalg.lanczos import block_cg, inverse_root
from cglb.linalg.nystrom import DEFAULT_JITTER
from cglb.linalg.operator import KernelOperator
from cglb.linalg.preconditioners import LowRankPreconditioner
from cglb.linalg.system import Solver, System
from cglb.model import GP
from cglb.posteriors.base import Posterior, batches, cross_mean, filled_up

__all__ = ["RELATIVE_RESIDUAL", "IterativePosterior", "condition", "solve", "variance_by_solves"]

# ‖r‖/‖e‖ at which CG stops for predictions: GPyTorch's choice
RELATIVE_RESIDUAL = 0.01
BATCH = 64
# test rows whose products with the root are computed together
ROOT_ROWS = 8192


class IterativePosterior(Posterior):
    """mean k_sf v + μ, covariance k_ss − k_sf RRᵀ k_fs with R [n, k] from Lanczos (LOVE).

    RRᵀ ⪯ K̂⁻¹, so variances are never below those of `exact`. O(nk) memory; O(n) per row for the mean,
    O(nk) for a variance.

    Attributes:
        gp: the model.
        X: training inputs.
        v: K̂v ≈ e.
        root: R.
    """

    gp: GP
    X: Float[Array, "n d"]
    v: Float[Array, " n"]
    root: Float[Array, "n k"]

    def mean_terms(self) -> tuple[tuple[Array, Array], ...]:
        return ((self.X, self.v),)

    @boundary
    def explained(self, X_star: Float[Array, "s d"]) -> Float[Array, "s s"]:
        B = self.gp.kernel(X_star, self.X) @ self.root
        return B @ B.T

    def _mean(self, X_star: Array) -> Array:
        return cross_mean(self.gp, ((self.X, self.v),), X_star)

    def _variance(self, X_star: Array) -> Array:
        return filled_up(self._each_variance, X_star)

    def _each_variance(self, X_star: Array) -> Array:
        parts = []
        for start in range(0, X_star.shape[0], ROOT_ROWS):
            rows = X_star[start : start + ROOT_ROWS]
            B = self._cross_root(rows)
            parts.append(jnp.maximum(self.gp.kernel.diag(rows) - jnp.sum(B * B, axis=1), 0.0))
        return jnp.concatenate(parts)

    def _explained(self, X_star: Array) -> Array:
        B = self._cross_root(X_star)
        return B @ B.T

    def _cross_root(self, X_star: Array) -> Array:
        return KernelOperator.of(self.gp, self.X).cross(X_star, self.root)


def system_at(gp: GP, X: Array, Z: Array | None, jitter: float = DEFAULT_JITTER) -> System:
    """The system whose Nyström matrix preconditions: at Z, or at the first 100 pivots."""
    points = inducing.pivot_rows(gp.kernel, X) if Z is None else Z
    return System(gp, X, points, Solver(jitter=jitter))


@boundary
def solve(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"] | None = None,
    v0: Float[Array, " n"] | None = None,
    tolerance: float = RELATIVE_RESIDUAL,
    min_steps: int = 10,
    max_steps: int = 1000,
    jitter: float = DEFAULT_JITTER,
) -> Solution:
    """K̂v = y − μ by CG until ‖r‖ ≤ tolerance·‖y − μ‖.

    The slack of the solution is ½rᵀP⁻¹r of the recomputed residual: what this v would cost a bound.

    Args:
        gp: the model.
        X: inputs.
        y: targets.
        Z: the preconditioner's points; by default the first 100 pivots.
        v0: where to start; by default 0.
        tolerance: on ‖r‖/‖y − μ‖.
        min_steps: steps before the tolerance counts.
        max_steps: the step limit.
        jitter: added to diag(Kuu), relative to its mean.
    """
    return solve_at(system_at(gp, X, Z, jitter), y, v0, tolerance, min_steps, max_steps)


def solve_at(
    system: System,
    y: Float[Array, " n"],
    v0: Float[Array, " n"] | None = None,
    tolerance: float = RELATIVE_RESIDUAL,
    min_steps: int = 10,
    max_steps: int = 1000,
) -> Solution:
    """`solve` with a system whose Nyström matrix preconditions."""
    precondition = LowRankPreconditioner.of(system.nystrom)
    e = system.residual(y)
    found = block_cg(
        system.fast,
        e[:, None],
        precondition,
        V0=None if v0 is None else v0[:, None],
        tolerance=tolerance,
        min_steps=min_steps,
        max_steps=max_steps,
    )
    v = found.V[:, 0]
    K_hat_v = system.operator @ v
    r = e - K_hat_v
    products = found.steps + 1 + (v0 is not None)
    slack = 0.5 * (r @ precondition(r[:, None])[:, 0])
    return Solution(v, K_hat_v, slack, steps=found.steps, products=products, stop=found.stop)


@boundary
def condition(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"] | None = None,
    v0: Float[Array, " n"] | None = None,
    tolerance: float = RELATIVE_RESIDUAL,
    rank: int = 100,
) -> tuple[Solution, IterativePosterior]:
    """The posterior given all data: v as in `solve`, and `rank` Lanczos steps for the variances.

    Args:
        gp: the model.
        X: inputs.
        y: targets.
        Z: the preconditioner's points; by default the first 100 pivots.
        v0: where CG starts; by default 0.
        tolerance: on ‖r‖/‖y − μ‖.
        rank: columns of the root.
    """
    return condition_at(system_at(gp, X, Z), y, v0, tolerance, rank)


def condition_at(
    system: System,
    y: Float[Array, " n"],
    v0: Float[Array, " n"] | None = None,
    tolerance: float = RELATIVE_RESIDUAL,
    rank: int = 100,
) -> tuple[Solution, IterativePosterior]:
    """`condition` with a system whose Nyström matrix preconditions.

    Lanczos starts at K̂1, n times the average column of K̂, since test rows resemble training rows.
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1, found {rank}.")
    solution = solve_at(system, y, v0, tolerance)
    root = inverse_root(system.fast, system.fast @ jnp.ones_like(y), rank)
    v, s = solution.v, row_noise.scales(system.gp.kernel, system.X)
    if s is not None:
        v, root = jnp.asarray(s) * v, jnp.asarray(s)[:, None] * root
    X = row_noise.plain_rows(system.gp.kernel, system.X)
    return solution, IterativePosterior(row_noise.plain_model(system.gp), X, v, root)


@boundary
def variance_by_solves(
    gp: GP,
    X: Float[Array, "n d"],
    X_star: Float[Array, "s d"],
    Z: Float[Array, "m d"] | None = None,
    tolerance: float = RELATIVE_RESIDUAL,
    max_steps: int = 1000,
    jitter: float = DEFAULT_JITTER,
) -> Float[Array, " s"]:
    """k_ss − kᵀu with K̂u ≈ k = k(X, x) by CG, for every test row: at least Var f(x).

    One CG run per batch of 64 test rows.

    Args:
        gp: the model.
        X: inputs.
        X_star: test rows.
        Z: the preconditioner's points; by default the first 100 pivots.
        tolerance: on the mean of ‖r‖/‖k‖ over a batch.
        max_steps: the step limit.
        jitter: added to diag(Kuu), relative to its mean.
    """
    system = system_at(gp, X, Z, jitter)
    precondition = LowRankPreconditioner.of(system.nystrom)
    parts = []
    for rows, real in batches(X_star, BATCH):
        k = gp.kernel(X, rows)
        found = block_cg(system.fast, k, precondition, tolerance=tolerance, max_steps=max_steps)
        variance = gp.kernel.diag(rows) - jnp.sum(k * found.V, axis=0)
        parts.append(jnp.maximum(variance, 0.0)[:real])
    return jnp.concatenate(parts)
