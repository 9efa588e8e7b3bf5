"""A certificate after training: an interval that contains log p(y), refined level by level.

Every level gives a lower and an upper bound, and the best of each over all levels are kept:

    lower   `cglb` with the smallest of the registered upper bounds on log|K̂|
    upper   `upper` with the largest of the registered lower bounds

A level costs about four times as much as the previous one: it has twice as many inducing points (greedy
at the model's hyperparameters), twice as many neighbours, and a CG tolerance that never matters. If even
that is too loose, `exact` factors K̂ (n² memory, n³/3 flops).
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtri

from cglb.bounds.logdet import LogdetBound, Side, by_cost
from cglb.bounds.terms import BoundTerms
from cglb.linalg import dense, inducing
from cglb.linalg.blocks import BLOCK, NEIGHBOURS, Neighbours, find_blocks
from cglb.linalg.cg import Limits, Solution
from cglb.linalg.nystrom import DEFAULT_JITTER
from cglb.linalg.quadratic import QuadraticInterval
from cglb.linalg.quadrature import PROBES, LogQuadrature
from cglb.linalg.rounding import Rounding, dense_rounding, gamma, provable_jitter
from cglb.linalg.system import Solver, System

__all__ = ["Certificate"]

# nats of CG's slack: far below the gap of the log-determinant
CG_NATS = 1e-3
# nats by which rounding may widen a level before its factors are made anew with more jitter, or its
# product K̂v more precisely
WORTH_MENDING = 0.01
# nats of rounding that a reader of the interval is told about
WORTH_TELLING = 1e-6
MOST_PROBES = 1024
# neighbours of the chain that whitens the probes: at first, and twice as many while that many probes
# would be needed, since a wider chain costs less than they do
PROBE_NEIGHBOURS, MANY_PROBES = 256, 64
# the cost of a chain relative to one with half as many neighbours, at most
WIDER = 8.0
# the cost of a level relative to the previous one, to decide whether it fits the remaining time
GROWTH = 4.5


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
        self.rounding = 0.0
        self._form = (-math.inf, math.inf)  # an interval for eᵀK̂⁻¹e
        self.left_out: dict[str, None] = {}  # bounds that were not finite, in order
        self._quadrature: LogQuadrature | None = None
        self._probe_neighbours = PROBE_NEIGHBOURS
        self._whiten_seconds = 0.0

    @property
    def width(self) -> float:
        """upper − lower so far, in nats."""
        return self.upper - self.lower

    def why_not(self, seconds: float | None = None) -> str | None:
        """Why another level is not possible, or None.

        Args:
            seconds: the remaining time; None for no limit.
        """
        n = self._system.count
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
        e = system.residual(self._y)
        solution = system.solve(e, self._v, Limits(CG_NATS))
        self._v = solution.v
        rounding = Rounding.of(system)
        quadratic = rounding.quadratic(e, solution)
        if _part_of_rounding(quadratic, solution) > WORTH_MENDING:
            quadratic = rounding.precise_quadratic(system, e, solution)
        self._form = float(quadratic.lower), float(quadratic.upper)
        above, below = (self._values(side, system, rounding) for side in (Side.ABOVE, Side.BELOW))
        self._narrow(
            _nats(system.count, float(quadratic.upper), min(above), -1.0),
            _nats(system.count, float(quadratic.lower), max(below), 1.0),
            0.5 * rounding.logdet + _part_of_rounding(quadratic, solution),
        )
        # fewer points than requested: they already determine all other rows
        self.settled = system.m >= system.count or system.m < asked
        if system is not self._system:
            system.release()
        self._first = False
        self._m = min(2 * asked, system.count)
        self._neighbours *= 2
        self._last_seconds = time.perf_counter() - started

    def _values(self, side: Side, system: System, rounding: Rounding) -> list[float]:
        """The certain values of all bounds on one side; those that are NaN are left out and named."""
        found = [math.inf if side == Side.ABOVE else -math.inf]
        units = float(system.log_units())
        for bound in self._bounds(side, system):
            value = bound.certain(system.view, rounding)
            if math.isnan(value):
                self.left_out[bound.name] = None
            else:
                found.append(value + units)
        return found

    def _narrow(self, lower: float, upper: float, rounding: float) -> None:
        """Keep the best of both sides; what is NaN says nothing."""
        if lower > self.lower:
            self.lower = lower
        if upper < self.upper:
            self.upper = upper
        self.rounding = rounding if self.rounding == 0.0 else min(self.rounding, rounding)

    @property
    def remarks(self) -> str:
        """What a reader of the interval should know about rounding, or nothing."""
        text = ""
        if self.left_out:
            text += f" Not finite and left out: {', '.join(self.left_out)}."
        if not math.isfinite(self.rounding):
            text += (
                " K + noise·I is too ill-conditioned for float64 at this noise, and rounding alone may "
                "change log p(y) by any amount: raise the noise, or lower the variance of the kernel."
            )
        elif self.rounding > max(0.25 * self.width, WORTH_TELLING):
            text += f" Rounding accounts for {2.0 * self.rounding:.2g} nats of its width."
        return text

    def _level(self) -> System:
        """The system of this level: at first the given one, then one with new inducing points."""
        given = self._system
        jitter = provable_jitter(given.gp.kernel, given.X.shape[1], min(self._m, given.count))
        if self._first:
            if Rounding.of(given).logdet <= WORTH_MENDING or given.solver.jitter >= jitter:
                return given
            solver = replace(given.solver, jitter=jitter)
            return given.again(solver, given.neighbours)
        Z = inducing.greedy_points(given.gp.kernel, given.X, self._m, seed=0)
        solver = Solver(memory_gb=self._memory_gb, jitter=max(DEFAULT_JITTER, jitter))
        kernel, k = given.gp.kernel, min(self._neighbours, given.count)
        blocks = find_blocks(kernel, given.X, neighbours=k)
        return System(given.gp, given.X, Z, solver, neighbours=Neighbours.given(blocks))

    @staticmethod
    def _bounds(side: Side, system: System) -> list[LogdetBound]:
        """Every registered bound that has a cost, in every form; chains use the blocks of the system."""
        prepared = (bound.prepare(system) for bound in by_cost(side))
        return [form for bound in prepared for form in bound.variants(system.m)]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._system.count

    def _whiten(self, neighbours: int) -> LogQuadrature:
        """Quadrature whitened by a chain with more neighbours than a bound pays for."""
        started, system = time.perf_counter(), self._system
        self._probe_neighbours = min(neighbours, system.n)
        blocks = find_blocks(system.gp.kernel, system.X, neighbours=self._probe_neighbours)
        self._quadrature = LogQuadrature(system, blocks=blocks)
        self._whiten_seconds = time.perf_counter() - started
        return self._quadrature

    def _can_widen(self, seconds: float) -> bool:
        """Whether a chain with twice as many neighbours fits the data, the memory and the time."""
        wider, n = 2 * self._probe_neighbours, self._system.n
        # the factors, their copy by blocks, and what is gathered from a few columns
        needed = 3 * 8 * n * (wider + BLOCK) / 2**30
        fits = needed <= self._memory_gb and WIDER * self._whiten_seconds <= seconds
        return self._probe_neighbours < self._system.count and fits

    def likely(
        self, confidence: float, tolerance: float, seconds: float | None, seed: int = 0
    ) -> tuple[tuple[float, float], int]:
        """An interval by random probes inside the certain one, and the number of probes.

        Args:
            confidence: its probability.
            tolerance: add probes until it is at most so many nats wide.
            seconds: the remaining time; None for no limit.
            seed: of the probes.
        """
        started, system = time.perf_counter(), self._system
        allowed = math.inf if seconds is None else seconds
        quadrature = (self._quadrature or self._whiten(PROBE_NEIGHBOURS)).restarted(seed)
        looks = 0
        while True:
            before = time.perf_counter()
            quadrature.more()
            looks += 1
            count = len(quadrature.found.upper)
            # the looks share the risk, 1/k² each, so that the interval holds wherever they end
            risk = (1.0 - confidence) * 6.0 / (math.pi * looks) ** 2
            quantile = float(ndtri(1.0 - 0.5 * risk))
            low, high = quadrature.interval(quantile)
            lower = max(self.lower, _nats(system.count, self._form[1], high, -1.0))
            upper = max(min(self.upper, _nats(system.count, self._form[0], low, 1.0)), lower)
            width, now = upper - lower, time.perf_counter()
            left = allowed - (now - started) - (now - before)
            if width <= tolerance or count >= MOST_PROBES or left < 0.0:
                return (lower, upper), count
            needed = count * (width / tolerance) ** 2
            if count == PROBES and needed > MANY_PROBES and self._can_widen(left):
                quadrature = self._whiten(2 * self._probe_neighbours).restarted(seed)

    def exact(self, known: tuple[float, Float[Array, " n"]] | None = None) -> None:
        """Compute log p(y) by Cholesky, in place: one n × n array.

        Args:
            known: its value and K̂⁻¹e, if K̂ has been factored before.
        """
        system, e = self._system, self._system.residual(self._y)
        if known is None:
            found = dense.factor(system.gp, system.X, self._y)
            terms = BoundTerms.of(system.count, found.quadratic, found.logdet)
            known = float(terms.value), jnp.asarray(found.alpha)
        value, alpha = known
        gp = system.gp
        error = dense_rounding(gp.kernel, float(gp.noise), system.X, e, float(jnp.linalg.norm(alpha)))
        nats = 0.5 * (error.logdet + error.quadratic) + 4.0 * gamma(system.n) * (abs(value) + system.n)
        self._narrow(value - nats, value + nats, nats)
        self.settled = True


def _part_of_rounding(quadratic: QuadraticInterval, solution: Solution) -> float:
    """Nats of half the width of ½eᵀK̂⁻¹e that CG's slack does not account for."""
    return 0.25 * max(float(quadratic.upper - quadratic.lower) - 2.0 * float(solution.slack), 0.0)


def _nats(n: int, quadratic: float, logdet: float, outwards: float) -> float:
    """−½(n log 2π + quadratic + logdet), with the rounding of the sum itself."""
    terms = (n * math.log(2.0 * math.pi), quadratic, logdet)
    return -0.5 * sum(terms) + outwards * gamma(0) * sum(map(abs, terms))
