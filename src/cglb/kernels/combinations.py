"""Kernels made of kernels. Each asks its parts for gradients, so that those derived by hand are used."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.core.parameters import check_parameter, parameter
from cglb.core.precision import Number
from cglb.kernels.base import Features, Kernel, replace_fields
from cglb.kernels.distance import UNIT

__all__ = ["Columns", "Power", "Product", "Scaled", "Sum"]


class Sum(Kernel):
    """k1 + k2."""

    left: Kernel
    right: Kernel

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Features:
        return self.left.features(X, origin), self.right.features(X, origin)

    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        return self.left.between(F1[0], F2[0]) + self.right.between(F1[1], F2[1])

    def pull_between(
        self, F1: Features, F2: Features, W: Float[Array, "n1 n2"], inputs: bool
    ) -> tuple[Kernel, Features, Features]:
        return _pull_pair(self, F1, F2, (W, W), inputs)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.left.diag(X) + self.right.diag(X)

    def check_columns(self, d: int) -> None:
        self.left.check_columns(d)
        self.right.check_columns(d)

    def rounding(self, d: int, differences: bool = False) -> float:
        return max(self.left.rounding(d, differences), self.right.rounding(d, differences)) + UNIT

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        return np.maximum(self.left.relevance(d), self.right.relevance(d))

    def rescaled(self, units: Float[np.ndarray, " d"]) -> Kernel:
        return replace_fields(
            self, {"left": self.left.rescaled(units), "right": self.right.rescaled(units)}
        )


class Product(Kernel):
    """k1 · k2, entry by entry."""

    left: Kernel
    right: Kernel

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Features:
        return self.left.features(X, origin), self.right.features(X, origin)

    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        return self.left.between(F1[0], F2[0]) * self.right.between(F1[1], F2[1])

    def pull_between(
        self, F1: Features, F2: Features, W: Float[Array, "n1 n2"], inputs: bool
    ) -> tuple[Kernel, Features, Features]:
        left, right = self.left.between(F1[0], F2[0]), self.right.between(F1[1], F2[1])
        return _pull_pair(self, F1, F2, (W * right, W * left), inputs)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.left.diag(X) * self.right.diag(X)

    def check_columns(self, d: int) -> None:
        self.left.check_columns(d)
        self.right.check_columns(d)

    def rounding(self, d: int, differences: bool = False) -> float:
        return _product_rounding(self.left.rounding(d, differences), self.right.rounding(d, differences))

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        return np.maximum(self.left.relevance(d), self.right.relevance(d))

    def rescaled(self, units: Float[np.ndarray, " d"]) -> Kernel:
        return replace_fields(
            self, {"left": self.left.rescaled(units), "right": self.right.rescaled(units)}
        )


class Power(Kernel):
    """k to the power of a positive integer, entry by entry, with one set of parameters."""

    kernel: Kernel
    exponent: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        whole = isinstance(self.exponent, int) and not isinstance(self.exponent, bool)
        if not whole or self.exponent < 1:
            raise ValueError(
                f"The power of a kernel must be a positive integer, found {self.exponent!r}."
            )

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Features:
        return self.kernel.features(X, origin)

    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        return self.kernel.between(F1, F2) ** self.exponent

    def pull_between(
        self, F1: Features, F2: Features, W: Float[Array, "n1 n2"], inputs: bool
    ) -> tuple[Kernel, Features, Features]:
        slope = self.exponent * self.kernel.between(F1, F2) ** (self.exponent - 1)
        kernel_bar, F1_bar, F2_bar = self.kernel.pull_between(F1, F2, W * slope, inputs)
        return _gradient(self, kernel_bar), F1_bar, F2_bar

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.kernel.diag(X) ** self.exponent

    def check_columns(self, d: int) -> None:
        self.kernel.check_columns(d)

    def rounding(self, d: int, differences: bool = False) -> float:
        return self.exponent * _product_rounding(self.kernel.rounding(d, differences), 0.0)

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        return self.kernel.relevance(d)

    def rescaled(self, units: Float[np.ndarray, " d"]) -> Kernel:
        return replace_fields(self, {"kernel": self.kernel.rescaled(units)})


class Scaled(Kernel):
    """factor · k."""

    kernel: Kernel
    factor: Number = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter("Scaled", "factor", self.factor, 0)

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Features:
        return self.kernel.features(X, origin)

    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        return self.kernel.between(F1, F2) * self.factor

    def pull_between(
        self, F1: Features, F2: Features, W: Float[Array, "n1 n2"], inputs: bool
    ) -> tuple[Kernel, Features, Features]:
        factor_bar = jnp.sum(W * self.kernel.between(F1, F2))
        kernel_bar, F1_bar, F2_bar = self.kernel.pull_between(F1, F2, W * self.factor, inputs)
        return _gradient(self, kernel_bar, factor_bar), F1_bar, F2_bar

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.kernel.diag(X) * self.factor

    def check_columns(self, d: int) -> None:
        self.kernel.check_columns(d)

    def rounding(self, d: int, differences: bool = False) -> float:
        return _product_rounding(self.kernel.rounding(d, differences), 0.0)

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        return self.kernel.relevance(d)

    def rescaled(self, units: Float[np.ndarray, " d"]) -> Kernel:
        return replace_fields(self, {"kernel": self.kernel.rescaled(units)})


class Columns(Kernel):
    """A kernel that sees only some of the columns, given by number or, in a table, by name."""

    kernel: Kernel
    columns: tuple[int | str, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not self.columns or any(not isinstance(c, str) and c < 0 for c in self.columns):
            raise ValueError(f"columns must be column numbers from 0 or names, found {self.columns}.")

    @property
    def _numbers(self) -> list[int]:
        named = [column for column in self.columns if isinstance(column, str)]
        if named:
            raise ValueError(
                f"The kernel is on the columns named {', '.join(map(repr, named))}, but an array has no "
                "names. Fit a GPRegressor to a table, or give column numbers."
            )
        return [int(column) for column in self.columns]

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Features:
        self.check_columns(X.shape[1])  # JAX would clamp a column that is not there to the last one
        numbers = tuple(self._numbers)
        return self.kernel.features(X[:, numbers], origin[:, numbers])

    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        return self.kernel.between(F1, F2)

    def pull_between(
        self, F1: Features, F2: Features, W: Float[Array, "n1 n2"], inputs: bool
    ) -> tuple[Kernel, Features, Features]:
        kernel_bar, F1_bar, F2_bar = self.kernel.pull_between(F1, F2, W, inputs)
        return _gradient(self, kernel_bar), F1_bar, F2_bar

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.kernel.diag(X[:, tuple(self._numbers)])

    def check_columns(self, d: int) -> None:
        if max(self._numbers) >= d:
            raise ValueError(
                f"The kernel uses column {max(self._numbers)}, but the data has {d} columns."
            )
        self.kernel.check_columns(len(self.columns))

    def rounding(self, d: int, differences: bool = False) -> float:
        return self.kernel.rounding(len(self.columns), differences)

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        out = np.zeros(d)
        np.maximum.at(out, self._numbers, self.kernel.relevance(len(self.columns)))
        return out

    def rescaled(self, units: Float[np.ndarray, " d"]) -> Kernel:
        return replace_fields(self, {"kernel": self.kernel.rescaled(units[self._numbers])})


def _product_rounding(left: float, right: float) -> float:
    """The relative error of a product of two entries, with what rounding it adds."""
    return (1.0 + left) * (1.0 + right) * (1.0 + UNIT) - 1.0 + UNIT


def _pull_pair(
    pair: Sum | Product, F1: Features, F2: Features, weights: tuple[Array, Array], inputs: bool
) -> tuple[Kernel, Features, Features]:
    """The gradients of both parts, each with its own weights, put together."""
    left_bar, F1_left, F2_left = pair.left.pull_between(F1[0], F2[0], weights[0], inputs)
    right_bar, F1_right, F2_right = pair.right.pull_between(F1[1], F2[1], weights[1], inputs)
    return _gradient(pair, left_bar, right_bar), (F1_left, F1_right), (F2_left, F2_right)


def _gradient(kernel: Kernel, *parts: Any) -> Kernel:
    """A gradient in the form of the kernel, from the gradients of its fields in their order.

    Not through the constructor: it checks values, and gradients may be negative.
    """
    return jax.tree.unflatten(jax.tree.structure(kernel), jax.tree.leaves(parts))
