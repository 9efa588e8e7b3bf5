"""Functions that repeat."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.core.parameters import (
    Numbers,
    as_row,
    check_count,
    check_parameter,
    in_units,
    parameter,
    per_column,
)
from cglb.core.precision import Number
from cglb.kernels.base import Features, Kernel, replace_fields
from cglb.kernels.distance import Rows, entry_rounding, from_distance

__all__ = ["Periodic"]


class Periodic(Kernel):
    """variance · exp(−2 Σⱼ sin²(π(xⱼ − x'ⱼ)/periodⱼ)/lengthscaleⱼ²).

    With each input put on a circle, (cos, sin) of 2πx/period, this is an RBF of the chord length, so it
    costs one matrix product like the stationary kernels.

    Args:
        lengthscale: one number, or one per column.
        period: one number, or one per column.
        variance: the prior variance k(x, x).
    """

    lengthscale: Numbers = parameter(1.0)
    period: Numbers = parameter(1.0)
    variance: Number = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter("Periodic", "lengthscale", self.lengthscale, 1)
        check_parameter("Periodic", "period", self.period, 1)
        check_parameter("Periodic", "variance", self.variance, 0)

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Features:
        # the chord does not depend on the origin; angles near 0 have the smallest rounding
        angle = 2.0 * np.pi * (X - jax.lax.stop_gradient(origin)) / as_row(self.period)
        scale = as_row(self.lengthscale)
        circle = jnp.concatenate([jnp.cos(angle) / scale, jnp.sin(angle) / scale], axis=1)
        return Rows.of(circle, jnp.zeros_like(circle[:1]), 1.0)

    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        return from_distance(lambda r2: jnp.exp(-0.5 * r2) * self.variance, F1, F2, 1.0, rough=False)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.full(X.shape[:1], self.variance, dtype=X.dtype)

    def check_columns(self, d: int) -> None:
        check_count("Periodic", "lengthscale", self.lengthscale, d)
        check_count("Periodic", "period", self.period, d)

    def rounding(self, d: int, differences: bool = False) -> float:
        # points on circles of radius 1/lengthscale are rounded in units of that radius
        return entry_rounding(2 * d) * max(1.0, 1.0 / float(np.min(self.lengthscale)))

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        return 1.0 / per_column(self.lengthscale, d)

    def rescaled(self, units: Float[np.ndarray, " d"]) -> Kernel:
        return replace_fields(self, {"period": in_units(self.period, units)})

    @classmethod
    def default(cls, d: int) -> Kernel:
        return cls(np.ones(d))
