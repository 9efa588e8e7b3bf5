"""Linear functions and constant ones."""

from __future__ import annotations

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
from cglb.kernels.distance import UNIT

__all__ = ["Constant", "Linear"]


class Linear(Kernel):
    """Σⱼ varianceⱼ xⱼ x'ⱼ.

    Args:
        variance: one number, or one per column.
    """

    variance: Numbers = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter("Linear", "variance", self.variance, 1)

    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        return (F1 * as_row(self.variance)) @ F2.T

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.sum(X * X * as_row(self.variance), axis=1)

    def check_columns(self, d: int) -> None:
        check_count("Linear", "variance", self.variance, d)

    def rounding(self, d: int, differences: bool = False) -> float:
        return (d + 2.0) * UNIT  # of d products, whose sizes sum to at most √(k(x, x)k(x', x'))

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        return np.sqrt(per_column(self.variance, d))

    def rescaled(self, units: Float[np.ndarray, " d"]) -> Kernel:
        return replace_fields(self, {"variance": in_units(self.variance, 1.0 / units**2)})

    @classmethod
    def default(cls, d: int) -> Kernel:
        return cls(np.ones(d))


class Constant(Kernel):
    """The same covariance everywhere: an unknown offset. (Noise belongs to the model, not here.)"""

    variance: Number = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter("Constant", "variance", self.variance, 0)

    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        return jnp.full((F1.shape[0], F2.shape[0]), self.variance, dtype=F1.dtype)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.full(X.shape[:1], self.variance, dtype=X.dtype)

    def rounding(self, d: int, differences: bool = False) -> float:
        return 0.0

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        return np.zeros(d)  # no column matters to it

    def rescaled(self, units: Float[np.ndarray, " d"]) -> Kernel:
        return self
