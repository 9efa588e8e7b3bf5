"""Predictive variances with a guarantee. SGPR's variance may err on either side; these do not.

`local` conditions on the rows nearest to each test point and on those that are inducing points: it is
never below the exact variance (see `cglb.posteriors.local`).
`bracket` encloses the exact variance: Lemma 3 with k(X, x) in place of the targets bounds kᵀK̂⁻¹k from
both sides, and CG narrows the bracket. All are for the latent f; add the noise for an observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.core.validation import boundary
from cglb.kernels import Kernel
from cglb.linalg.cg import Limits, Stop
from cglb.linalg.nystrom import DEFAULT_JITTER
from cglb.linalg.rounding import Rounding
from cglb.linalg.system import Solver, System
from cglb.model import GP
from cglb.posteriors.base import batches
from cglb.posteriors.local import local

__all__ = ["VarianceBracket", "bracket", "bracket_at", "local"]

BATCH = 64
# CG runs at most this often per batch; the first tolerance is a guess from the prior variance
ROUNDS = 6
# CG's slack is half a width; its tolerance is a little less than half of the requested width
SHARE_OF_WIDTH = 0.4
# factors by which a round lowers the tolerance: the lower end of a wide bracket may be 0, a poor guide
STRICTEST, LOOSEST = 0.01, 0.5


class VarianceBracket(eqx.Module):
    """lower ≤ Var f(xᵢ) ≤ upper for every row.

    Attributes:
        lower: the lower ends.
        upper: the upper ends.
        tight: whether each bracket [s] has reached the requested tolerance.
        products: how many products with K̂ were computed.
    """

    lower: Float[Array, " s"] | Float[np.ndarray, " s"]
    upper: Float[Array, " s"] | Float[np.ndarray, " s"]
    tight: Any
    products: int = eqx.field(static=True)

    @property
    def middle(self) -> Any:
        """The midpoint, at most half the width from the exact variance."""
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

    CG solves for a batch of test rows at a time. If it stops before the tolerance, the bracket is wider
    and `tight` is False.

    Args:
        gp: the model.
        X: inputs.
        Z: inducing points.
        X_star: test rows.
        tolerance: width of the bracket relative to its lower end.
        max_steps: CG's step limit.
        jitter: added to diag(Kuu), relative to its mean.
        on_batch: called after each batch with the number of rows done and of all rows.
    """
    system = System(gp, X, Z, Solver(max_steps=max_steps, jitter=jitter))
    return bracket_at(system, X_star, tolerance, on_batch)


def bracket_at(
    system: System,
    X_star: Float[Array, "s d"],
    tolerance: float = 0.01,
    on_batch: Callable[[int, int], None] | None = None,
) -> VarianceBracket:
    """`bracket` with a given system."""
    if not tolerance > 0.0:
        raise ValueError(f"tolerance must be positive, found {tolerance}.")
    parts, products, done = [], 0, 0
    rounding = Rounding.of(system)
    for rows, real in batches(X_star, BATCH):
        found = _bracket_batch(system, rounding, rows, tolerance)
        products += found.products
        parts.append((found.lower[:real], found.upper[:real], found.tight[:real]))
        done += real
        if on_batch is not None:
            on_batch(done, X_star.shape[0])
    lower, upper, tight = (jnp.concatenate(columns) for columns in zip(*parts, strict=True))
    return VarianceBracket(lower, upper, tight, products)


def _bracket_batch(system: System, rounding: Rounding, rows: Array, tolerance: float) -> VarianceBracket:
    k, k_ss = _columns(system.gp.kernel, system.X, rows)
    v, allowed, products = jnp.zeros_like(k), 0.5 * tolerance * k_ss, 0
    for _ in range(ROUNDS):
        solution = system.solve(k, v, Limits(allowed, system.solver.max_steps))
        products += solution.products
        v = solution.v
        explained = system.quadratic(k, solution)
        lower, upper, tight, allowed = _tighten(
            k_ss, explained.lower, explained.upper, allowed, jnp.asarray(tolerance)
        )
        if bool(jnp.all(tight)) or solution.stop is not Stop.TOLERANCE:
            break
    # the columns k themselves are rounded, by at most τ√(k_ss·tr K)
    error = rounding.entry * np.sqrt(np.asarray(k_ss) * rounding.trace)
    certain = rounding.quadratic(k, solution, error)
    lower, upper, tight, _ = _tighten(
        k_ss, certain.lower, certain.upper, allowed, jnp.asarray(tolerance)
    )
    return VarianceBracket(lower, upper, tight, products)


@jax.jit
def _columns(kernel: Kernel, X: Array, rows: Array) -> tuple[Array, Array]:
    return kernel(X, rows), kernel.diag(rows)


@jax.jit
def _tighten(
    k_ss: Array, least: Array, most: Array, allowed: Array, tolerance: Array
) -> tuple[Array, Array, Array, Array]:
    """The bracket from bounds on what the data explain, whether it is tight, and CG's next tolerance."""
    # the data explain neither less than nothing nor more than everything, also where rounding says so
    upper = k_ss - jnp.where(least > 0.0, least, 0.0)
    lower = jnp.maximum(jnp.where(jnp.isnan(most), 0.0, k_ss - most), 0.0)
    upper = jnp.maximum(upper, lower)
    tight = upper - lower <= tolerance * lower
    wanted = jnp.maximum(SHARE_OF_WIDTH * tolerance * lower, STRICTEST * allowed)
    return lower, upper, tight, jnp.where(tight, allowed, jnp.minimum(wanted, LOOSEST * allowed))
