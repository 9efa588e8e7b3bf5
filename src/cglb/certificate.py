"""An interval that contains log p(y), made as narrow as asked: a one-off certificate after training.

Every level gives a lower and an upper bound, and the best of each over all levels are kept:

    lower   `cglb` with the smallest of the log-det bounds of `Auto`
    upper   `upper` with the largest of the log-det lower bounds

A level costs about four times the one before: it has twice the inducing points (greedy at the model's
hyperparameters), twice the neighbours and a CG tolerance that never matters. Where even that is too
loose, `exact` factors K̂ (n² memory, n³/3 flops).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb import bounds, dense, inducing, logdet, moments, nystrom
from cglb.auto import Auto
from cglb.cg import conjugate_gradients
from cglb.checks import boundary
from cglb.model import GP
from cglb.operator import StoredOnUse, kernel_operator
from cglb.preconditioners import choose

__all__ = ["Certificate", "Evidence", "certify"]

FIRST_INDUCING = 512
# nats of CG's slack: far below what the log-determinant leaves open
CG_TOLERANCE = 1e-3
# relative rounding of a log marginal likelihood by Cholesky, with a wide margin
ROUNDING = 1e-10
# a level's cost against the one before, for the decision whether it fits the time that is left
GROWTH = 4.5


@dataclass(frozen=True)
class Evidence:
    """lower ≤ log p(y) ≤ upper, in nats, for y in the user's units; `message` says how it was found."""

    lower: float
    upper: float
    message: str = ""

    @property
    def width(self) -> float:
        """How much is not known, in nats."""
        return self.upper - self.lower

    def shifted(self, nats: float) -> Evidence:
        """The same for targets in other units."""
        return Evidence(self.lower + nats, self.upper + nats, self.message)

    def __str__(self) -> str:
        return f"log p(y) is between {self.lower:.2f} and {self.upper:.2f}"


class Certificate:
    """The interval for one model and data, refined level by level.

    Z, v: inducing points and CG's vector to start from; by default greedy points and 0.
    """

    def __init__(
        self,
        gp: GP,
        X: Float[Array, "n d"],
        y: Float[Array, " n"],
        Z: Float[Array, "m d"] | None = None,
        v: Float[Array, " n"] | None = None,
        memory_gb: float = 4.0,
    ):
        self._gp, self._X, self._y, self._v = gp, X, y, v
        self._memory_gb = memory_gb
        self._Z = Z
        self._m = min(FIRST_INDUCING, X.shape[0]) if Z is None else Z.shape[0]
        self._neighbours = 64
        self._last_seconds = 0.0
        self.lower, self.upper = -np.inf, np.inf
        self.settled = False

    @property
    def width(self) -> float:
        """Nats between the bounds so far."""
        return self.upper - self.lower

    def why_not(self, seconds: float | None = None) -> str | None:
        """Why another level would not do, or None."""
        n = self._X.shape[0]
        if self.settled:
            return "nothing is left to refine"
        # A, its copy in chunks, the block's rows and a product of n × m are alive at once
        needed = 4 * 8 * n * self._m / 2**30
        if needed > self._memory_gb:
            return (
                f"{self._m} inducing points would need about {needed:.1f} GB, more than memory_gb="
                f"{self._memory_gb:g}; exact=True needs {8 * n * n / 2**30:.1f} GB"
            )
        if seconds is not None and GROWTH * self._last_seconds > seconds:
            return f"the next level would take longer than the {max(seconds, 0.0):.0f} s left"
        return None

    def refine(self) -> None:
        """One level: bounds with the current numbers of inducing points and neighbours."""
        started = time.perf_counter()
        gp, X, n = self._gp, self._X, self._X.shape[0]
        Z = self._Z
        if Z is None:
            Z = jnp.asarray(inducing.greedy(gp.kernel, X, min(self._m, n), seed=0))
        factors = nystrom.factor(gp, X, Z)
        auto = Auto(neighbours=min(self._neighbours, n)).prepare(gp.kernel, X)
        operator = kernel_operator(gp, X)
        e = self._y - gp.mean
        solution = conjugate_gradients(
            operator,
            e,
            factors,
            precondition=choose("auto", gp, X, factors, lambda: auto.blocks),
            v0=self._v,
            tolerance=CG_TOLERANCE,
            fast=StoredOnUse(operator, self._memory_gb),  # pyright: ignore[reportArgumentType]
        )
        self._v = solution.v
        constant = n * np.log(2.0 * np.pi)
        quadratic_lower = float(2.0 * (e @ solution.v) - solution.v @ solution.K_hat_v)
        quadratic_upper = quadratic_lower + 2.0 * float(solution.slack)
        spectrum = bounds.spectrum(gp, X, factors)
        logdet_upper = min(float(auto(spectrum)), float(logdet.UPPER["waterfill"](spectrum)))
        logdet_lower = max(
            float(logdet.LOWER["spectral"](spectrum)), float(moments.lower(gp, X, factors))
        )
        self.lower = max(self.lower, -0.5 * (constant + quadratic_upper + logdet_upper))
        self.upper = min(self.upper, -0.5 * (constant + quadratic_lower + logdet_lower))
        # fewer points than asked for: the rest of the rows is determined by them already
        self.settled = Z.shape[0] >= n or (self._Z is None and Z.shape[0] < self._m)
        self._Z, self._m = None, min(2 * self._m, n)
        self._neighbours *= 2
        self._last_seconds = time.perf_counter() - started

    def exact(self) -> None:
        """log p(y) by Cholesky, in place: one n × n array."""
        value = dense.condition(self._gp, self._X, self._y).lml
        error = ROUNDING * max(abs(value), self._X.shape[0])
        self.lower = max(self.lower, value - error)
        self.upper = min(self.upper, value + error)
        self.settled = True


@boundary
def certify(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"] | None = None,
    v: Float[Array, " n"] | None = None,
    *,
    tolerance: float | None = None,
    exact: bool = False,
    max_seconds: float | None = None,
    memory_gb: float = 4.0,
) -> Evidence:
    """An interval that contains log p(y).

    tolerance:   refine until it is at most this many nats wide, or the budget is spent; the message
                 says which. Without it one level is made.
    exact:       by Cholesky: n² memory, n³/3 flops, an interval of rounding's width.
    max_seconds: stop before a level that would go past it.
    memory_gb:   for the n × m arrays, and for K̂ while CG runs.
    """
    if tolerance is not None and not tolerance > 0.0:
        raise ValueError(f"tolerance must be positive, found {tolerance}.")
    found = Certificate(gp, X, y, Z, v, memory_gb)
    if exact:
        found.exact()
        return Evidence(found.lower, found.upper, "By Cholesky, up to rounding.")
    started = time.perf_counter()
    message = "One level, as asked."
    while True:
        reason = found.why_not(
            None if max_seconds is None else max_seconds - (time.perf_counter() - started)
        )
        if reason is not None:
            message = f"Wider than asked: {reason}."
            break
        found.refine()
        if tolerance is None:
            break
        if found.width <= tolerance:
            message = f"No wider than the {tolerance:g} nats asked for."
            break
    return Evidence(found.lower, found.upper, message)
