"""The tightest bound on log|K̂| that pays, chosen from the data.

The smallest of several upper bounds is an upper bound, so any choice is valid; no one choice wins
everywhere. With much noise the inducing points explain nearly all and the paper's bound is as good as
any; with little, the chain is far tighter, with all of the inducing points in its residual, half of
them, or none (Vecchia's), depending on how fast the kernel's spectrum decays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from cglb.chain import Chain, ChainBound
from cglb.kernels import Kernel
from cglb.logdet import UPPER, Spectrum
from cglb.neighbours import Blocks

__all__ = ["Auto", "AutoBound"]

# nats of log p(y) that a dearer bound must gain: what CG may leave on the table in training
WORTH = 1.0


@dataclass(frozen=True)
class Auto:
    """Settings of the automatic choice: blocks and neighbours of its chains."""

    block: int = 64
    neighbours: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        self.chain()  # which checks the numbers

    def chain(self, inner: int | None = None) -> Chain:
        """A chain of these blocks with `inner` inducing points in its residual."""
        return Chain(self.block, self.neighbours, inner, seed=self.seed)

    @property
    def side(self) -> str:
        """It bounds log|K̂| from above."""
        return "above"

    @property
    def name(self) -> str:
        """For histories and reports."""
        return "auto"

    def prepare(self, kernel: Kernel, X: Float[Array, "n d"]) -> AutoBound:
        """The candidates, with blocks and neighbours for these hyperparameters."""
        return AutoBound(self.chain().prepare(kernel, X).blocks, self)


class AutoBound(eqx.Module):
    """The smallest of the candidates. In training `settle` picks one of them for a round."""

    blocks: Blocks
    settings: Auto = eqx.field(static=True)
    rows: bool = eqx.field(static=True, default=True)
    side: str = eqx.field(static=True, default="above")
    name: str = eqx.field(static=True, default="auto")

    def prepare(self, kernel: Kernel, X: Float[Array, "n d"]) -> AutoBound:
        """Itself: the blocks stay."""
        return self

    def candidates(self, m: int) -> tuple[Any, ...]:
        """Bounds for m inducing points, cheap ones first."""
        inner = dict.fromkeys((0, m // 2, None))
        chains = (ChainBound(self.blocks, i, self.settings.chain(i).name) for i in inner)
        return (UPPER["amgm"], UPPER["hadamard"], *chains)

    def __call__(self, spectrum: Spectrum) -> Float[Array, ""]:
        """Upper bound on log|K̂|."""
        values = [bound(spectrum) for bound in self.candidates(spectrum.G.shape[0])]
        return jnp.min(jnp.stack(values))

    def settle(self, spectrum: Spectrum) -> Any:
        """The candidate to train with: the cheapest, unless a dearer one is tighter by `WORTH` nats."""
        best, best_value = None, jnp.inf
        for bound in self.candidates(spectrum.G.shape[0]):
            value = 0.5 * float(bound(spectrum))
            if best is None or value < best_value - WORTH:
                best, best_value = bound, value
        return best
