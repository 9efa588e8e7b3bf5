"""Covariance functions.

A kernel is a small pytree of natural-valued parameters. `kernel(X1, X2)` is the matrix of covariances
[n1, n2] and `kernel.diag(X)` its diagonal [n] for X1 = X2 = X. Stationary kernels are a `profile` of the
squared scaled distance r². Kernels combine: `k1 + k2`, `k1 * k2`, `2.0 * k`, `k.on([0, 3])` (a
restriction to columns).

The matrix is made in two steps, so that loops over tiles do the first only once: `features` of each row
(scaled inputs and their squared norms, say), and the covariances `between` rows given by their features.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.parameters import Numbers, as_parameter, check_parameter, parameter
from cglb.precision import Number
from cglb.profiles import distance_between, matern12, matern32, matern52, with_norms

__all__ = [
    "RBF",
    "Columns",
    "Constant",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Stationary",
    "Sum",
]


class Kernel(eqx.Module):
    """What every covariance function provides."""

    def __call__(self, X1: Float[Array, "n1 d"], X2: Float[Array, "n2 d"]) -> Float[Array, "n1 n2"]:
        """Covariances between the rows of X1 and of X2."""
        if X1.shape[1] != X2.shape[1]:  # one column would broadcast
            raise ValueError(f"X1 has {X1.shape[1]} columns, but X2 has {X2.shape[1]}.")
        self.check_columns(X1.shape[1])
        origin = X2[:1]
        return self.between(self.features(X1, origin), self.features(X2, origin))

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Any:
        """What `between` needs of each row: arrays with n rows; by default the inputs themselves.

        origin: a point near the data, the same for both sides. A stationary kernel may shift by it, to
        keep rounding small; no gradient goes through it.
        """
        return X

    @abc.abstractmethod
    def between(self, F1: Any, F2: Any) -> Float[Array, "n1 n2"]:
        """Covariances between rows given by their features."""

    def pull_between(self, F1: Any, F2: Any, W: Float[Array, "n1 n2"], inputs: bool) -> Any:
        """Gradient of Σᵢⱼ Wᵢⱼ between(F1, F2)ᵢⱼ in (kernel, F1, F2).

        inputs: whether single rows of the gradient in F1 and F2 will be looked at. If not, a kernel may
        give any that lead to the same gradient in its own parameters.
        """
        _, pull = jax.vjp(lambda kernel, f1, f2: kernel.between(f1, f2), self, F1, F2)
        return pull(W)

    @abc.abstractmethod
    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Prior variances k(x, x)."""

    def check_columns(self, d: int) -> None:
        """ValueError if this kernel cannot take inputs with d columns."""

    def on(self, columns: Sequence[int]) -> Columns:
        """This kernel, seeing only the given columns."""
        return Columns(self, tuple(columns))

    def __add__(self, other: Kernel) -> Sum:
        if not isinstance(other, Kernel):
            raise ValueError(
                f"Only a kernel can be added to a kernel, found {other!r}. Use Constant(…)."
            )
        return Sum(self, other)

    def __mul__(self, other: Kernel | Number | float | int) -> Product | Scaled:
        return Product(self, other) if isinstance(other, Kernel) else self.__rmul__(other)

    def __rmul__(self, other: Number | float | int) -> Scaled:
        return Scaled(self, as_parameter(other))


def _columnwise(parameter: Numbers) -> Numbers:
    """A scalar as it is, a vector of length d as [1, d]."""
    return parameter if parameter.ndim == 0 else parameter[None, :]


def _constant(value: Number, shape: tuple[int, ...], dtype: Any) -> Array:
    return jnp.full(shape, value, dtype=dtype)


class Stationary(Kernel):
    """k(x, x') = variance · profile(r²), r² = Σⱼ (xⱼ − x'ⱼ)²/lengthscaleⱼ².

    `lengthscale` is one number, or one a column (automatic relevance determination).
    """

    lengthscale: Numbers = parameter(1.0)
    variance: Number = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter(type(self).__name__, "lengthscale", self.lengthscale, 1)
        check_parameter(type(self).__name__, "variance", self.variance, 0)

    @abc.abstractmethod
    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        """The correlation at squared scaled distance r²; 1 at 0."""

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Any:
        return with_norms((X - jax.lax.stop_gradient(origin)) / _columnwise(self.lengthscale))

    def between(self, F1: Any, F2: Any) -> Float[Array, "n1 n2"]:
        return self.profile(distance_between(F1, F2)) * self.variance

    def pull_between(self, F1: Any, F2: Any, W: Float[Array, "n1 n2"], inputs: bool) -> Any:
        # the lengthscales see only Σⱼ xⱼᵀ∂/∂xⱼ of the cross term −2xᵀx', to which both sides give the
        # same: one product in place of two, and it is the dearest part of a tile
        (X1, _), (X2, _) = F1, F2
        r2 = distance_between(F1, F2)
        _, pull = jax.vjp(lambda kernel, r2: kernel.profile(r2) * kernel.variance, self, r2)
        kernel_bar, R = pull(W)
        if inputs:
            X1_bar, X2_bar = -2.0 * (R @ X2), -2.0 * (R.T @ X1)
        else:
            X1_bar, X2_bar = -4.0 * (R @ X2), jnp.zeros_like(X2)
        return kernel_bar, (X1_bar, jnp.sum(R, axis=1)), (X2_bar, jnp.sum(R, axis=0))

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return _constant(self.variance, X.shape[:1], X.dtype)

    def check_columns(self, d: int) -> None:
        if self.lengthscale.ndim == 1 and self.lengthscale.shape[0] not in (1, d):
            raise ValueError(
                f"{type(self).__name__} has {self.lengthscale.shape[0]} lengthscales, but the data "
                f"has {d} columns. Give one lengthscale, or one a column."
            )


class RBF(Stationary):
    """Squared exponential: profile exp(−r²/2)."""

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.exp(-0.5 * r2)


class Matern12(Stationary):
    """Matérn-1/2 (exponential): profile exp(−r)."""

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return matern12(r2)


class Matern32(Stationary):
    """Matérn-3/2: profile (1 + √3 r) exp(−√3 r)."""

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return matern32(r2)


class Matern52(Stationary):
    """Matérn-5/2: profile (1 + √5 r + 5r²/3) exp(−√5 r)."""

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return matern52(r2)


class RationalQuadratic(Stationary):
    """Rational quadratic: profile (1 + r²/(2·alpha))^(−alpha)."""

    alpha: Number = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter("RationalQuadratic", "alpha", self.alpha, 0)

    def profile(self, r2: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.exp(-self.alpha * jnp.log1p(r2 / (2.0 * self.alpha)))


class Periodic(Kernel):
    """variance · exp(−2 Σⱼ sin²(π(xⱼ − x'ⱼ)/periodⱼ)/lengthscaleⱼ²).

    With each input put on a circle, (cos, sin) of 2πx/period, this is an RBF of the chord length, so it
    costs one matrix product like the stationary kernels.
    """

    lengthscale: Numbers = parameter(1.0)
    period: Numbers = parameter(1.0)
    variance: Number = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter("Periodic", "lengthscale", self.lengthscale, 1)
        check_parameter("Periodic", "period", self.period, 1)
        check_parameter("Periodic", "variance", self.variance, 0)

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Any:
        angle = 2.0 * np.pi * X / _columnwise(self.period)
        scale = _columnwise(self.lengthscale)
        return with_norms(jnp.concatenate([jnp.cos(angle) / scale, jnp.sin(angle) / scale], axis=1))

    def between(self, F1: Any, F2: Any) -> Float[Array, "n1 n2"]:
        return jnp.exp(-0.5 * distance_between(F1, F2)) * self.variance

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return _constant(self.variance, X.shape[:1], X.dtype)

    def check_columns(self, d: int) -> None:
        for name in ("lengthscale", "period"):
            value = getattr(self, name)
            if value.ndim == 1 and value.shape[0] not in (1, d):
                raise ValueError(f"Periodic has {value.shape[0]} {name}s, but the data has {d} columns.")


class Linear(Kernel):
    """Σⱼ varianceⱼ xⱼ x'ⱼ, with one variance or one a column."""

    variance: Numbers = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter("Linear", "variance", self.variance, 1)

    def between(self, F1: Any, F2: Any) -> Float[Array, "n1 n2"]:
        return (F1 * _columnwise(self.variance)) @ F2.T

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.sum(X * X * _columnwise(self.variance), axis=1)

    def check_columns(self, d: int) -> None:
        if self.variance.ndim == 1 and self.variance.shape[0] not in (1, d):
            raise ValueError(
                f"Linear has {self.variance.shape[0]} variances, but the data has {d} columns."
            )


class Constant(Kernel):
    """The same covariance everywhere: an unknown offset. (Noise belongs to the model, not here.)"""

    variance: Number = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter("Constant", "variance", self.variance, 0)

    def between(self, F1: Any, F2: Any) -> Float[Array, "n1 n2"]:
        return _constant(self.variance, (F1.shape[0], F2.shape[0]), F1.dtype)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return _constant(self.variance, X.shape[:1], X.dtype)


class Sum(Kernel):
    """k1 + k2."""

    left: Kernel
    right: Kernel

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Any:
        return self.left.features(X, origin), self.right.features(X, origin)

    def between(self, F1: Any, F2: Any) -> Float[Array, "n1 n2"]:
        return self.left.between(F1[0], F2[0]) + self.right.between(F1[1], F2[1])

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.left.diag(X) + self.right.diag(X)

    def check_columns(self, d: int) -> None:
        self.left.check_columns(d)
        self.right.check_columns(d)


class Product(Kernel):
    """k1 · k2, entry by entry."""

    left: Kernel
    right: Kernel

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Any:
        return self.left.features(X, origin), self.right.features(X, origin)

    def between(self, F1: Any, F2: Any) -> Float[Array, "n1 n2"]:
        return self.left.between(F1[0], F2[0]) * self.right.between(F1[1], F2[1])

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.left.diag(X) * self.right.diag(X)

    def check_columns(self, d: int) -> None:
        self.left.check_columns(d)
        self.right.check_columns(d)


class Scaled(Kernel):
    """factor · k."""

    kernel: Kernel
    factor: Number = parameter(1.0)

    def __check_init__(self) -> None:
        check_parameter("Scaled", "factor", self.factor, 0)

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Any:
        return self.kernel.features(X, origin)

    def between(self, F1: Any, F2: Any) -> Float[Array, "n1 n2"]:
        return self.kernel.between(F1, F2) * self.factor

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.kernel.diag(X) * self.factor

    def check_columns(self, d: int) -> None:
        self.kernel.check_columns(d)


class Columns(Kernel):
    """A kernel that sees only some of the columns."""

    kernel: Kernel
    columns: tuple[int, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not self.columns or min(self.columns) < 0:
            raise ValueError(f"columns must be column numbers from 0, found {self.columns}.")

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Any:
        self.check_columns(X.shape[1])  # JAX would clamp a column that is not there to the last one
        return self.kernel.features(X[:, self.columns], origin[:, self.columns])

    def between(self, F1: Any, F2: Any) -> Float[Array, "n1 n2"]:
        return self.kernel.between(F1, F2)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return self.kernel.diag(X[:, self.columns])

    def check_columns(self, d: int) -> None:
        if max(self.columns) >= d:
            raise ValueError(
                f"The kernel uses column {max(self.columns)}, but the data has {d} columns."
            )
        self.kernel.check_columns(len(self.columns))
