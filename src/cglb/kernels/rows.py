"""A kernel on rows that carry their own noise, which turns K + diag(Dᵢ) into K' + σ²I.

With Dᵢ the noise variance of row i and sᵢ = σ/√Dᵢ,

    S(K + D)S = SKS + σ²I,   (SKS)ᵢⱼ = sᵢ·k(xᵢ, xⱼ)·sⱼ,

so all that is known about K + σ²I (bounds, gradients, CG, factors) serves rows with any noise: only the
kernel changes. A row with s = 0 has infinite noise and counts for nothing: its part of SKS is 0. Such
rows fill data up to a size for which code has been compiled.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.core.parameters import parameter
from cglb.core.precision import Number
from cglb.kernels.base import Features, Kernel
from cglb.kernels.distance import UNIT

__all__ = ["RowScaled"]


class RowScaled(Kernel, known_as="_row_scaled"):
    """k'((x, u, t), (x', u', t')) = s·k(x, x')·s', s = u/√(1 + u²t/σ²): noise variances σ²/u² + t.

    The last columns of the inputs are u and, if `known`, t.

    Attributes:
        kernel: k, on the other columns.
        noise: σ², on which s depends if `known`.
        known: whether rows carry a noise variance t that is not multiplied by σ².
    """

    kernel: Kernel
    noise: Number = parameter()
    known: bool = eqx.field(static=True, default=False)

    @property
    def extra(self) -> int:
        """Columns of the inputs that are not k's."""
        return 2 if self.known else 1

    def scale(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """s of each row."""
        u = X[:, -self.extra]
        return u / jnp.sqrt(1.0 + u * u * X[:, -1] / self.noise) if self.known else u

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Features:
        own = slice(None, -self.extra)
        return self.kernel.features(X[:, own], origin[:, own]), self.scale(X)

    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        return self.kernel.between(F1[0], F2[0]) * (F1[1][:, None] * F2[1][None, :])

    def pull_between(
        self, F1: Features, F2: Features, W: Float[Array, "n1 n2"], inputs: bool
    ) -> tuple[Kernel, Features, Features]:
        s1, s2 = F1[1], F2[1]
        kernel_bar, F1_bar, F2_bar = self.kernel.pull_between(
            F1[0], F2[0], W * (s1[:, None] * s2[None, :]), inputs
        )
        if self.known:
            WK = W * self.kernel.between(F1[0], F2[0])
            s1_bar, s2_bar = WK @ s2, WK.T @ s1
        else:  # s depends on no parameter, and u is data: no gradient in it is wanted
            s1_bar, s2_bar = jnp.zeros_like(s1), jnp.zeros_like(s2)
        # not through the constructor, which checks values: slopes may be negative
        leaves = (*jax.tree.leaves(kernel_bar), jnp.zeros_like(self.noise))
        gradient = jax.tree.unflatten(jax.tree.structure(self), leaves)
        return gradient, (F1_bar, s1_bar), (F2_bar, s2_bar)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        s = self.scale(X)
        return self.kernel.diag(X[:, : -self.extra]) * (s * s)

    def check_columns(self, d: int) -> None:
        self.kernel.check_columns(d - self.extra)

    def rounding(self, d: int, differences: bool = False) -> float:
        # two products with s, whose own error of a few units both sides of the ratio share
        return self.kernel.rounding(d - self.extra, differences) + 16.0 * UNIT

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        return np.append(self.kernel.relevance(d - self.extra), np.zeros(self.extra))
