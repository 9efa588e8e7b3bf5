"""Functions of a scaled distance, and the profiles that make them.

A profile carries its own derivative in r², so that coincident points give finite gradients.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
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
from cglb.kernels.distance import Rows, entry_rounding, far_apart, from_distance

__all__ = ["RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic", "Stationary"]


class Stationary(Kernel):
    """k(x, x') = variance · profile(r²), r² = Σⱼ (xⱼ − x'ⱼ)²/lengthscaleⱼ².

    Args:
        lengthscale: one number, or one per column (automatic relevance determination).
        variance: the prior variance k(x, x).

    Attributes:
        rough: whether the slope of the profile in r² may exceed 3/2 in size, as that of exp(−r) does at
            0. Distances between close rows are then made more carefully.
    """

    rough: ClassVar[bool] = True

    lengthscale: Numbers = parameter(1.0)
    variance: Number = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter(type(self).__name__, "lengthscale", self.lengthscale, 1)
        check_parameter(type(self).__name__, "variance", self.variance, 0)

    @abc.abstractmethod
    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        """The correlation at squared scaled distance r²; 1 at 0."""

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Features:
        return Rows.of(X, origin, as_row(self.lengthscale))

    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        return self._through(F1, F2, lambda K: K)

    def through(
        self, F1: Features, F2: Features, function: Callable[[Float[Array, "n1 n2"]], Any]
    ) -> Any:
        if type(self).between is not Stationary.between:  # a subclass has entries of its own
            return super().through(F1, F2, function)
        return self._through(F1, F2, function)

    def _through(self, F1: Rows, F2: Rows, function: Callable[[Float[Array, "n1 n2"]], Any]) -> Any:
        def used(r2: Array) -> Any:
            return function(self.profile(r2) * self.variance)

        return from_distance(used, F1, F2, as_row(self.lengthscale), self.rough)

    def pull_between(
        self, F1: Features, F2: Features, W: Float[Array, "n1 n2"], inputs: bool
    ) -> tuple[Kernel, Features, Features]:
        def pulled(r2: Array) -> tuple[Kernel, Array, Array, Array, Array | None]:
            """The gradient in the kernel, and what that in both features is made of."""
            profile, pull = jax.vjp(lambda kernel, r2: kernel.profile(r2), self, r2)
            kernel_bar, R = pull(W * self.variance)
            kernel_bar = eqx.tree_at(lambda kernel: kernel.variance, kernel_bar, _total(W * profile))
            if self.rough:
                R = jnp.where(far_apart(r2, F1, F2), R, 0.0)
            columns = R.T @ F1.scaled if inputs else None
            return kernel_bar, R @ F2.scaled, jnp.sum(R, axis=1), jnp.sum(R, axis=0), columns

        kernel_bar, rows, sum1, sum2, columns = from_distance(
            pulled, F1, F2, as_row(self.lengthscale), self.rough
        )
        # the lengthscales see only Σⱼ xⱼᵀ∂/∂xⱼ of the cross term −2xᵀx', to which both sides contribute
        # the same: one product in place of two, and it is the most expensive part of a tile
        X2_bar = jnp.zeros_like(F2.scaled) if columns is None else -2.0 * columns
        F1_bar = Rows((-4.0 if columns is None else -2.0) * rows, sum1, jnp.zeros_like(F1.raw))
        return kernel_bar, F1_bar, Rows(X2_bar, sum2, jnp.zeros_like(F2.raw))

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.full(X.shape[:1], self.variance, dtype=X.dtype)

    def check_columns(self, d: int) -> None:
        check_count(type(self).__name__, "lengthscale", self.lengthscale, d)

    def rounding(self, d: int, differences: bool = False) -> float:
        own = (
            type(self).between is not Stationary.between
            or type(self).features is not Stationary.features
        )
        return entry_rounding(d, differences and not own)

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        return 1.0 / per_column(self.lengthscale, d)

    def rescaled(self, units: Float[np.ndarray, " d"]) -> Kernel:
        return replace_fields(self, {"lengthscale": in_units(self.lengthscale, units)})

    @classmethod
    def default(cls, d: int) -> Kernel:
        return cls(np.ones(d))


class RBF(Stationary):
    """Squared exponential: profile exp(−r²/2)."""

    rough = False

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.exp(-0.5 * r2)


class Matern12(Stationary):
    """Matérn-1/2 (exponential): profile exp(−r)."""

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return _matern12(r2)


class Matern32(Stationary):
    """Matérn-3/2: profile (1 + √3 r) exp(−√3 r)."""

    rough = False

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return _matern32(r2)


class Matern52(Stationary):
    """Matérn-5/2: profile (1 + √5 r + 5r²/3) exp(−√5 r)."""

    rough = False

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return _matern52(r2)


class RationalQuadratic(Stationary):
    """Rational quadratic: profile (1 + r²/(2·alpha))^(−alpha)."""

    rough = False

    alpha: Number = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter("RationalQuadratic", "alpha", self.alpha, 0)

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.exp(-self.alpha * jnp.log1p(r2 / (2.0 * self.alpha)))


def _total(A: Array) -> Array:
    """The sum of all entries, as a product: XLA adds up a matrix several times slower."""
    return jnp.sum(jnp.ones((1, A.shape[0]), dtype=A.dtype) @ A)


# ---- Matérn profiles with their slopes in r² ----


def _with_slope(value_and_slope: Callable[[Array], tuple[Array, Array]]) -> Callable[[Array], Array]:
    """A profile of r² with its derivative given, in place of autodiff through the root at 0.

    Value and slope come from one function, so that they share the root and the exponential.
    """
    profile = jax.custom_jvp(lambda r2: value_and_slope(r2)[0])

    def derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        value, slope = value_and_slope(*primals)
        return value, slope * tangents[0]

    profile.defjvp(derivative)
    return profile


def _root(x: Array) -> Array:
    """√x whose own derivative at 0 is large but finite: there it only ever meets a factor 0."""
    return jnp.sqrt(x + jnp.finfo(x.dtype).tiny)


@_with_slope
def _matern12(r2: Array) -> tuple[Array, Array]:
    r = jnp.sqrt(r2)
    value = jnp.exp(-r)
    # −exp(−r)/(2r): unbounded at 0, where it only ever meets a difference x − x' of 0
    return value, jnp.where(r2 > 0.0, -0.5 * value / jnp.where(r2 > 0.0, r, 1.0), 0.0)


@_with_slope
def _matern32(r2: Array) -> tuple[Array, Array]:
    s = _root(3.0 * r2)
    decay = jnp.exp(-s)
    return (1.0 + s) * decay, -1.5 * decay


@_with_slope
def _matern52(r2: Array) -> tuple[Array, Array]:
    s = _root(5.0 * r2)
    decay = jnp.exp(-s)
    return (1.0 + s + (5.0 / 3.0) * r2) * decay, (-5.0 / 6.0) * (1.0 + s) * decay
