"""The tightest bound on log|K̂| that is worth its cost, chosen from the data.

The smallest of several upper bounds is an upper bound, so any choice is valid, and none is best on all
data. With much noise the inducing points explain nearly everything, and the paper's bound is as good as
any other; with little noise the chain is much tighter.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from cglb.bounds.logdet.base import LogdetBound, Side, by_cost
from cglb.bounds.logdet.chain import Chain
from cglb.linalg.blocks import BLOCK, NEIGHBOURS, Blocks, Neighbours, find_blocks
from cglb.linalg.rounding import Rounding
from cglb.linalg.view import View

if TYPE_CHECKING:
    from cglb.linalg.system import System

__all__ = ["Auto"]

# nats of log p(y) that a more expensive bound must gain; CG may cost as much in training
WORTH = 1.0


class Auto(LogdetBound):
    """The smallest of all registered upper bounds that have a `cost`.

    In training, `settle` chooses one of them for each round.

    Attributes:
        block: rows per block of its chains.
        neighbours: of each block of its chains.
        seed: of its chains.
        candidates: the bounds to choose from, after `prepare`.
    """

    key, rows = "auto", True
    after = ("amgm", "hadamard")

    block: int = eqx.field(static=True, default=BLOCK)
    neighbours: int = eqx.field(static=True, default=NEIGHBOURS)
    seed: int = eqx.field(static=True, default=0)
    candidates: tuple[LogdetBound, ...] = ()

    def __check_init__(self) -> None:
        Chain(self.block, self.neighbours, seed=self.seed)  # which checks the numbers

    def prepare(self, system: System) -> Auto:
        if self.candidates:
            return self
        if (self.block, self.neighbours, self.seed) != (BLOCK, NEIGHBOURS, 0):
            blocks = find_blocks(system.gp.kernel, system.X, self.block, self.neighbours, seed=self.seed)
            system = system.again(neighbours=Neighbours.given(blocks))
        prepared = (bound.prepare(system) for bound in by_cost(Side.ABOVE))
        forms = tuple(form for bound in prepared for form in bound.variants(system.m))
        return replace(self, candidates=forms)

    @property
    def shared_blocks(self) -> Blocks | None:
        found = (bound.shared_blocks for bound in self.candidates)
        return next((blocks for blocks in found if blocks is not None), None)

    def __call__(self, view: View) -> Float[Array, ""]:
        if not self.candidates:
            raise ValueError("No candidates yet: call prepare(system) first.")
        values = jnp.stack([bound(view) for bound in self.candidates])
        return jnp.min(jnp.where(jnp.isnan(values), jnp.inf, values))  # one NaN must not spoil them all

    def margin(self, value: float, view: View, rounding: Rounding) -> float:
        margins = [bound.margin(value, view, rounding) for bound in self.candidates]
        return max(margins, default=rounding.logdet)

    def settle(self, system: System) -> LogdetBound:
        """The cheapest candidate, unless a more expensive one is tighter by `WORTH` nats.

        Since log|K̂| ≥ log|Q̂|, a value that is nearly log|Q̂| ends the search.
        """
        view = system.view
        least = 0.5 * float(view.logdet_Q)
        best, best_value = self.candidates[0], math.inf
        for bound in self.candidates:
            value = 0.5 * float(bound(view))
            if value < best_value - WORTH:  # never true for NaN
                best, best_value = bound, value
            if best_value - least <= WORTH:
                break
        return best
