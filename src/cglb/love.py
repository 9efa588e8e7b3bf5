"""Predictions of Iterative GP: the mean by CG, variances by Lanczos (LOVE, Pleiss et al. 2018).

LOVE replaces K̂⁻¹ by RRᵀ from one Lanczos run over the training rows, which then serves every test row.
As RRᵀ ⪯ K̂⁻¹ the variances err on one side only: they are never below the exact ones, and too large
where `rank` steps do not see the data near a test row. `variance_by_solves` runs CG for every test row
instead; from v = 0 its kᵀv approaches kᵀK̂⁻¹k from below, so it errs on the same side.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from cglb.cg import Solution
from cglb.checks import boundary
from cglb.iterative import pivots, preconditioner
from cglb.lanczos import block_cg, inverse_root
from cglb.model import GP
from cglb.nystrom import DEFAULT_JITTER
from cglb.operator import KernelOperator, StoredOnUse, kernel_operator
from cglb.posterior import IterativePosterior

__all__ = ["PREDICTION_TOLERANCE", "condition", "solve", "variance_by_solves"]

PREDICTION_TOLERANCE = 0.01
BATCH = 64


@boundary
def solve(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"] | None = None,
    v0: Float[Array, " n"] | None = None,
    tolerance: float = PREDICTION_TOLERANCE,
    min_steps: int = 10,
    max_steps: int = 1000,
    jitter: float = DEFAULT_JITTER,
) -> Solution:
    """K̂v = y − μ by CG until ‖r‖ ≤ tolerance·‖y − μ‖.

    Z: the preconditioner's points; by default the first 100 pivots.
    The slack in the answer is ½rᵀP⁻¹r of the recomputed residual: what this v would cost a bound.
    """
    return _solve(StoredOnUse(_tiled(gp, X)), gp, X, y, Z, v0, tolerance, min_steps, max_steps, jitter)


def _solve(
    operator: StoredOnUse,
    gp: GP,
    X: Array,
    y: Array,
    Z: Array | None,
    v0: Array | None,
    tolerance: float,
    min_steps: int = 10,
    max_steps: int = 1000,
    jitter: float = DEFAULT_JITTER,
) -> Solution:
    precondition = preconditioner(gp, X, pivots(gp, X) if Z is None else Z, jitter)
    e = y - gp.mean
    found = block_cg(
        operator,
        e[:, None],
        precondition,
        V0=None if v0 is None else v0[:, None],
        tolerance=tolerance,
        min_steps=min_steps,
        max_steps=max_steps,
    )
    v = found.V[:, 0]
    K_hat_v = operator.tiled @ v
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
    tolerance: float = PREDICTION_TOLERANCE,
    rank: int = 100,
) -> tuple[Solution, IterativePosterior]:
    """The posterior given all data: v as in `solve`, and `rank` Lanczos steps for the variances.

    Lanczos starts at K̂1, the average column of K̂, since test rows look like training rows.
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1, found {rank}.")
    operator = StoredOnUse(_tiled(gp, X))
    solution = _solve(operator, gp, X, y, Z, v0, tolerance)
    root = inverse_root(operator, operator @ jnp.ones_like(y), rank)
    return solution, IterativePosterior(gp, X, solution.v, root)


@boundary
def variance_by_solves(
    gp: GP,
    X: Float[Array, "n d"],
    X_star: Float[Array, "s d"],
    Z: Float[Array, "m d"] | None = None,
    tolerance: float = PREDICTION_TOLERANCE,
    max_steps: int = 1000,
    jitter: float = DEFAULT_JITTER,
) -> Float[Array, " s"]:
    """k_ss − kᵀu with K̂u ≈ k = k(X, x) by CG, for every test row: at least Var f(x).

    Test rows go in batches of 64, a CG run a batch; the tolerance is on the mean of ‖r‖/‖k‖.
    """
    operator = StoredOnUse(_tiled(gp, X))
    precondition = preconditioner(gp, X, pivots(gp, X) if Z is None else Z, jitter)
    s = X_star.shape[0]
    parts = []
    for start in range(0, s, BATCH):
        rows = X_star[start : start + BATCH]
        # one shape, one compilation: the last batch is filled up with copies of its last row
        missing = BATCH - rows.shape[0] if s > BATCH else 0
        padded = jnp.pad(rows, ((0, missing), (0, 0)), mode="edge")
        k = gp.kernel(X, padded)
        found = block_cg(operator, k, precondition, tolerance=tolerance, max_steps=max_steps)
        variance = gp.kernel.diag(padded) - jnp.sum(k * found.V, axis=0)
        parts.append(jnp.maximum(variance, 0.0)[: rows.shape[0]])
    return jnp.concatenate(parts)


def _tiled(gp: GP, X: Array) -> KernelOperator:
    operator = kernel_operator(gp, X)
    assert isinstance(operator, KernelOperator)
    return operator
