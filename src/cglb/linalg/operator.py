"""K̂ = K(X, X) + noise·I as an operator: products, gradients of bilinear forms, and K̂ in memory.

For use inside the package: arguments are not validated, and callers must be in the float64 scope.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cglb.compute import tiles
from cglb.compute.backend import backend_of, one_program
from cglb.compute.shards import Tall
from cglb.compute.stored import StoredMatrix
from cglb.core.precision import cast
from cglb.kernels.base import Kernel
from cglb.model import GP

__all__ = ["BilinearGradient", "KernelOperator", "Operator", "StoredOnUse"]

STORE_GB = 4.0  # K̂ is stored during CG up to this size: half of K̂ with 32,000 rows in float64
STORE_AFTER = 2  # products


class BilinearGradient(eqx.Module):
    """Gradient of Σₜ aₜᵀ K̂ bₜ.

    Attributes:
        kernel: the gradient in the kernel's hyperparameters, as a kernel.
        noise: the gradient in the noise.
        X: the gradient in the inputs; None if not requested.
    """

    kernel: Kernel
    noise: Float[Array, ""]
    X: Float[Array, "n d"] | None


class KernelOperator(eqx.Module):
    """K̂ = K(X, X) + noise·I without storing it: O(n·(t + d)) memory and a few tiles per core.

    It computes in the dtype of its fields and returns the dtype of its argument, so a float32 copy
    (`astype`) works inside float64 code. Differentiable in its fields.

    Attributes:
        kernel: k.
        noise: σ².
        X: inputs.
    """

    kernel: Kernel
    noise: Float[Array, ""]
    X: Float[Array, "n d"]

    @classmethod
    def of(cls, gp: GP, X: Float[Array, "n d"], dtype: Any = jnp.float64) -> KernelOperator:
        """K̂ of a model on data, without validation.

        Args:
            gp: the model.
            X: inputs.
            dtype: float64, or float32 if a rounded product is good enough (inside CG).
        """
        kernel, noise, X = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, dtype=dtype), (gp.kernel, gp.noise, X)
        )
        return cls(kernel, noise, X)

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.X.shape[0]

    def astype(self, dtype: Any) -> KernelOperator:
        """The same operator, computed in `dtype`."""
        return KernelOperator(*cast((self.kernel, self.noise, self.X), dtype))

    def __matmul__(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """K̂ V for one vector [n] or several [n, t]: n² kernel entries."""
        return _product(self, V)

    def precise(self, v: Float[Array, " n"]) -> tuple[Float[Array, " n"], int]:
        """K̂v with distances from differences and sums tile by tile, and the terms of its longest sum.

        For concrete arrays; a few times the time of an ordinary product.
        """
        backend = backend_of(self, v)
        plan = backend.plan(self.X, symmetric=True)._replace(differences=True)
        walk = backend.walk(plan, self.n, self.n)
        columns, noise_columns = _with_noise(self.noise, v, self.X)
        found = tiles.product(plan, self.kernel, self.X, self.X, columns)
        # a sum per tile, one over tiles and one over parts; twice as many as there are, to be safe
        terms = 2 * (plan.tile + walk.columns + len(walk.parts[0]))
        return _shaped_like(v, found, noise_columns), terms

    def cross(self, X_star: Float[Array, "s d"], V: Float[Array, "n *t"]) -> Float[Array, "s *t"]:
        """K(X_star, X) V, without noise: s·n kernel entries."""
        plan = backend_of(self, X_star, V).plan(self.X, symmetric=False)
        columns = _as_columns(V, self.X)
        found = tiles.product(plan, self.kernel, X_star.astype(self.X.dtype), self.X, columns)
        return _shaped_like(V, found)

    def bilinear_gradient(
        self, a: Float[Array, "n *t"], b: Float[Array, "n *t"], inputs: bool = False
    ) -> BilinearGradient:
        """Gradient of Σₜ aₜᵀ K̂ bₜ in kernel and noise, in one pass over the tiles.

        Args:
            a: left vectors.
            b: right vectors.
            inputs: whether to compute the gradient in X too.
        """
        plan = backend_of(self, a, b).plan(self.X, symmetric=True)
        a, b = _as_columns(a, self.X), _as_columns(b, self.X)
        kernel_bar, X1_bar, X2_bar = tiles.bilinear(plan, self.kernel, self.X, self.X, a, b, inputs)
        X_bar = None if X1_bar is None or X2_bar is None else X1_bar + X2_bar
        return BilinearGradient(kernel_bar, jnp.vdot(a, b), X_bar)

    def known_product(self, v: Float[Array, " n"], K_hat_v: Float[Array, " n"]) -> Float[Array, " n"]:
        """K̂v, differentiable in kernel and noise, if the caller already has its value.

        The forward pass is free, the backward pass goes over the tiles once. X and v are held fixed: CG
        chose v, and a bound holds for any v.

        Args:
            v: the vector.
            K_hat_v: the value of K̂v.
        """
        plan = backend_of(self, v).plan(self.X, symmetric=True)
        known = tiles.known_product(plan, self.kernel, self.X, v, K_hat_v)
        return _with_slope(known, self.noise, v)

    def trace_of_square(self, At: Tall, Ht: Tall) -> Float[Array, ""]:
        """Σ_{i≠j} TᵢⱼTⱼᵢ for T = K/noise − AᵀH: tr T² without its diagonal. 2n²m flops; values only."""
        plan = backend_of(self, At, Ht).plan(self.X, symmetric=True)
        return tiles.trace_of_square(plan, self.kernel, self.X, self.noise, At, Ht)


@one_program
def _product(operator: KernelOperator, V: Array) -> Array:
    """K̂ V."""
    kernel, X = operator.kernel, operator.X
    plan = backend_of(operator, V).plan(X, symmetric=True)
    columns, noise_columns = _with_noise(operator.noise, V, X)
    return _shaped_like(V, tiles.product(plan, kernel, X, X, columns), noise_columns)


@jax.jit
def _with_slope(known: Array, noise: Array, v: Array) -> Array:
    """What is known, plus 0 with the slope v in the noise."""
    return known + (noise - jax.lax.stop_gradient(noise)) * v


@jax.jit
def _as_columns(V: Array, X: Array) -> Array:
    """V as [n, t] in the dtype of the inputs [n, d]."""
    if V.shape[0] != X.shape[0]:  # padding to complete tiles would hide the error
        raise ValueError(f"The vectors have {V.shape[0]} rows, but the operator has {X.shape[0]}.")
    return V.astype(X.dtype).reshape(V.shape[0], -1)


@jax.jit
def _with_noise(noise: Array, V: Array, X: Array) -> tuple[Array, Array]:
    """V as columns, and noise·V (rounded separately: see `tiles`)."""
    columns = _as_columns(V, X)
    return columns, noise * columns


@jax.jit
def _shaped_like(V: Array, found: Array, more: Array | None = None) -> Array:
    """found + more [s, t], as one vector if V is one, in the dtype of V."""
    total = found if more is None else found + more
    return total.reshape(-1, *V.shape[1:]).astype(V.dtype)


class StoredOnUse:
    """K̂ for the products inside CG: stored after a few products, if it fits.

    A product with the stored matrix is several times faster than one that computes its tiles again, but
    storing costs as much as `STORE_AFTER` of the slow ones. So a few products store nothing, and many
    cost at most twice the minimum. The backend of the operands decides how to store K̂.

    Args:
        tiled: the operator.
        memory_gb: the memory limit.
    """

    def __init__(self, tiled: KernelOperator, memory_gb: float = STORE_GB):
        self.tiled = tiled
        self.memory_gb = memory_gb
        self._products = 0
        self._stored: list[StoredMatrix] = []

    def __matmul__(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """K̂ V for one vector [n] or several [n, t]."""
        self._products += 1
        matrix = None if self._products <= STORE_AFTER else self._matrix(V)
        return self.tiled @ V if matrix is None else matrix @ V

    def _matrix(self, V: Array) -> StoredMatrix | None:
        """A stored matrix for as many columns, stored now if necessary; None if it does not fit."""
        columns = V.size // V.shape[0]
        for matrix in self._stored:
            if matrix.serves(columns):
                return matrix
        tiled = self.tiled
        found = backend_of(tiled, V).store(tiled.kernel, tiled.noise, tiled.X, columns, self.memory_gb)
        self._stored += [] if found is None else [found]
        return found


Operator = KernelOperator | StoredOnUse
