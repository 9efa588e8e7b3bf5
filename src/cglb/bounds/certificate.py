"""An interval that contains log p(y), as narrow as requested: a certificate after training.

Every level gives a lower and an upper bound, and the best of each over all levels are kept:

    lower   `cglb` with the smallest of the registered upper bounds on log|K̂|
    upper   `upper` with the largest of the registered lower bounds

A level costs about four times as much as the previous one: it has twice as many inducing points (greedy
at the model's hyperparameters), twice as many neighbours, and a CG tolerance that never matters. If even
that is too loose, `exact` factors K̂ (n² memory, n³/3 flops).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float

from cglb.bounds.logdet import LogdetBound, Side, by_cost
from cglb.bounds.terms import BoundTerms
from cglb.core.validation import boundary
from cglb.kernels import Kernel
from cglb.linalg import dense, inducing
from cglb.linalg.blocks import NEIGHBOURS, Neighbours, find_blocks
from cglb.linalg.cg import Limits
from cglb.linalg.system import Solver, System
from cglb.model import GP

__all__ = ["Certificate", "Evidence", "certify"]

FIRST_INDUCING = 512
# nats of CG's slack: far below the gap of the log-determinant
CG_NATS = 1e-3
# relative rounding of a log marginal likelihood by Cholesky, with a wide margin
ROUNDING = 1e-10
# the cost of a level relative to the previous one, to decide whether it fits the remaining time
GROWTH = 4.5


@dataclass(frozen=True)
class Evidence:
    """lower ≤ log p(y) ≤ upper, in nats, for y in the user's units.

    Attributes:
        lower: the lower bound.
        upper: the upper bound.
        message: how the interval was found.
    """

    lower: float
    upper: float
    message: str = ""

    @property
    def width(self) -> float:
        """upper − lower, in nats."""
        return self.upper - self.lower

    def shifted(self, nats: float) -> Evidence:
        """The same interval for targets in other units, which add `nats` to log p(y)."""
        return Evidence(self.lower + nats, self.upper + nats, self.message)

    def __str__(self) -> str:
        return f"log p(y) is between {self.lower:.2f} and {self.upper:.2f}"


class Certificate:
    """The interval for one model and data, refined level by level.

    Args:
        system: the model on its data, and the inducing points of the first level.
        y: targets.
        v: where CG starts; by default 0.
        memory_gb: memory for the n × m arrays, and for K̂ while CG runs.
    """

    def __init__(
        self,
        system: System,
        y: Float[Array, " n"],
        v: Float[Array, " n"] | None = None,
        memory_gb: float = 4.0,
    ):
        self._system, self._y, self._v = system, y, v
        self._memory_gb = memory_gb
        self._m = system.m
        self._neighbours = NEIGHBOURS
        self._last_seconds = 0.0
        self._first = True
        self.lower, self.upper = -np.inf, np.inf
        self.settled = False

    @property
    def width(self) -> float:
        """upper − lower so far, in nats."""
        return self.upper - self.lower

    def why_not(self, seconds: float | None = None) -> str | None:
        """Why another level is not possible, or None.

        Args:
            seconds: the remaining time; None for no limit.
        """
        n = self._system.n
        if self.settled:
            return "the interval cannot be refined further"
        # A, its copy in chunks, the blocks' rows and an n × m product are in memory at the same time
        needed = 4 * 8 * n * self._m / 2**30
        if needed > self._memory_gb:
            return (
                f"{self._m} inducing points would need about {needed:.1f} GB, more than memory_gb="
                f"{self._memory_gb:g}; exact=True needs {8 * n * n / 2**30:.1f} GB"
            )
        if seconds is not None and GROWTH * self._last_seconds > seconds:
            return f"the next level would take longer than the remaining {max(seconds, 0.0):.0f} s"
        return None

    def refine(self) -> None:
        """Compute one level: bounds with the current numbers of inducing points and neighbours."""
        started = time.perf_counter()
        system, asked = self._level(), self._m
        e = self._y - system.gp.mean
        solution = system.solve(e, self._v, Limits(CG_NATS))
        self._v = solution.v
        quadratic, view = system.quadratic(e, solution), system.view
        logdet_upper = min(float(bound(view)) for bound in self._bounds(Side.ABOVE, system))
        logdet_lower = max(float(bound(view)) for bound in self._bounds(Side.BELOW, system))
        lower = BoundTerms.of(system.n, quadratic.upper, logdet_upper)
        upper = BoundTerms.of(system.n, quadratic.lower, logdet_lower)
        self.lower = max(self.lower, float(lower.value))
        self.upper = min(self.upper, float(upper.value))
        # fewer points than requested: they already determine all other rows
        self.settled = system.m >= system.n or system.m < asked
        if system is not self._system:
            system.release()
        self._first = False
        self._m = min(2 * asked, system.n)
        self._neighbours *= 2
        self._last_seconds = time.perf_counter() - started

    def _level(self) -> System:
        """The system of this level: at first the given one, then one with new inducing points."""
        given = self._system
        if self._first:
            return given
        Z = given.X[inducing.greedy_rows(given.gp.kernel, given.X, self._m, seed=0)]
        solver = Solver(memory_gb=self._memory_gb)
        kernel, k = given.gp.kernel, min(self._neighbours, given.n)
        blocks = find_blocks(kernel, given.X, neighbours=k)
        return System(given.gp, given.X, Z, solver, neighbours=Neighbours.given(blocks))

    @staticmethod
    def _bounds(side: Side, system: System) -> list[LogdetBound]:
        """Every registered bound that has a cost, in every form; chains use the blocks of the system."""
        prepared = (bound.prepare(system) for bound in by_cost(side))
        return [form for bound in prepared for form in bound.variants(system.m)]

    def exact(self, known: float | None = None) -> None:
        """Compute log p(y) by Cholesky, in place: one n × n array.

        Args:
            known: its value, if K̂ has been factored before.
        """
        system, value = self._system, known
        if value is None:
            found = dense.factor(system.gp, system.X, self._y)
            value = float(BoundTerms.of(system.n, found.quadratic, found.logdet).value)
        error = ROUNDING * max(abs(value), system.n)
        self.lower = max(self.lower, value - error)
        self.upper = min(self.upper, value + error)
        self.settled = True


def first_points(kernel: Kernel, X: Float[Array, "n d"]) -> Float[Array, "m d"]:
    """Inducing points for the first level, if none are given."""
    return X[inducing.greedy_rows(kernel, X, min(FIRST_INDUCING, X.shape[0]), seed=0)]


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

    Args:
        gp: the model.
        X: inputs.
        y: targets.
        Z: inducing points of the first level; by default greedy ones.
        v: where CG starts; by default 0.
        tolerance: refine until the interval is at most this many nats wide, or the budget is spent; the
            message says which. Without a tolerance, one level is computed.
        exact: use Cholesky: n² memory, n³/3 flops; the width of the interval is that of rounding.
        max_seconds: stop before a level that would take longer.
        memory_gb: memory for the n × m arrays, and for K̂ while CG runs.

    Raises:
        ValueError: if the tolerance is not positive.
    """
    if Z is None and not exact:
        Z = first_points(gp.kernel, X)
    found = Certificate(System(gp, X, Z, Solver(memory_gb=memory_gb)), y, v, memory_gb)
    return certify_at(found, tolerance=tolerance, exact=exact, max_seconds=max_seconds)


def certify_at(
    found: Certificate, *, tolerance: float | None, exact: bool, max_seconds: float | None
) -> Evidence:
    """`certify` for a certificate that may already have been refined."""
    if tolerance is not None and not tolerance > 0.0:
        raise ValueError(f"tolerance must be positive, found {tolerance}.")
    if exact:
        found.exact()
        return Evidence(found.lower, found.upper, "By Cholesky, up to rounding.")
    started = time.perf_counter()
    message = "One level, as requested."
    while True:
        reason = found.why_not(
            None if max_seconds is None else max_seconds - (time.perf_counter() - started)
        )
        if reason is not None:
            message = f"Wider than requested: {reason}."
            break
        found.refine()
        if tolerance is None:
            break
        if found.width <= tolerance:
            message = f"Not wider than the requested {tolerance:g} nats."
            break
    return Evidence(found.lower, found.upper, message)
