"""K̂ = LLᵀ as one n × n array: by XLA anywhere, or in the memory of K̂ itself on a CPU.

Both answer the same questions. Where K̂ is not positive definite in its precision, `logdet` and every
solve are NaN; nothing is raised, so that both may be used where values are not known.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from cglb.compute import assemble
from cglb.compute.cpu import cholesky
from cglb.compute.parallel import Threads, matrices_of, one_blas_thread
from cglb.core.precision import Number
from cglb.kernels.base import Kernel

__all__ = ["Factor", "InPlaceFactor", "Slopes", "XLAFactor"]

Matrix = Float[Array, "n k"] | Float[np.ndarray, "n k"]
Vector = Float[Array, " n"] | Float[np.ndarray, " n"]


class Slopes(eqx.Module):
    """Gradient of a function of K̂ in the kernel, the noise and (if asked for) the inputs."""

    kernel: Kernel
    noise: Number
    X: Matrix | None


@runtime_checkable
class Factor(Protocol):
    """K̂ = LLᵀ."""

    @property
    def L(self) -> Any:
        """The lower factor [n, n]; what is above its diagonal is undefined."""
        ...

    @property
    def logdet(self) -> Number:
        """log|K̂|."""
        ...

    def half_solve(self, B: Matrix) -> Matrix:
        """L⁻¹B: n²k flops."""
        ...

    def solve(self, b: Vector) -> Vector:
        """K̂⁻¹b: 2n² flops."""
        ...

    def pull(
        self,
        kernel: Kernel,
        X: Float[Array, "n d"],
        alpha: Vector,
        quadratic_bar: Number | float,
        logdet_bar: Number | float,
        inputs: bool = False,
        overwrite: bool = False,
    ) -> Slopes:
        """Gradient of quadratic_bar·eᵀK̂⁻¹e + logdet_bar·log|K̂| for alpha = K̂⁻¹e: 2n³/3 flops.

        That is tr(W dK̂) with W = logdet_bar·K̂⁻¹ − quadratic_bar·ααᵀ.

        Args:
            inputs: also in X.
            overwrite: the inverse may take the place of the factor, which cannot be used afterwards.
        """
        ...


class XLAFactor(eqx.Module):
    """A factor on any device, also inside a trace."""

    L: Float[Array, "n n"]

    @classmethod
    def of(cls, kernel: Kernel, noise: Number, X: Float[Array, "n d"]) -> XLAFactor:
        """Factor K̂ = K(X, X) + noise·I: n³/3 flops, several n × n arrays."""
        return cls(jnp.linalg.cholesky(assemble.dense(kernel, noise, X)))

    @property
    def logdet(self) -> Float[Array, ""]:
        return 2.0 * jnp.sum(jnp.log(jnp.diagonal(self.L)))

    def half_solve(self, B: Matrix) -> Float[Array, "n k"]:
        return solve_triangular(self.L, jnp.asarray(B), lower=True)

    def solve(self, b: Vector) -> Float[Array, " n"]:
        return cho_solve((self.L, True), jnp.asarray(b))

    def pull(
        self,
        kernel: Kernel,
        X: Float[Array, "n d"],
        alpha: Vector,
        quadratic_bar: Number | float,
        logdet_bar: Number | float,
        inputs: bool = False,
        overwrite: bool = False,
    ) -> Slopes:
        alpha = jnp.asarray(alpha)
        inverse = cho_solve((self.L, True), jnp.eye(self.L.shape[0], dtype=self.L.dtype))
        W = logdet_bar * inverse - quadratic_bar * jnp.outer(alpha, alpha)
        _, pull = jax.vjp(assemble.covariance, kernel, X)
        kernel_bar, X_bar = pull(W)
        return Slopes(kernel_bar, jnp.trace(W), X_bar if inputs else None)


class InPlaceFactor(eqx.Module):
    """A factor in the memory of K̂, by LAPACK: concrete arrays on a CPU. One n × n array.

    U = Lᵀ in NumPy's order is L in LAPACK's. What is below its diagonal is undefined.
    """

    U: Float[np.ndarray, "n n"] | Float[Array, "n n"]
    threads: Threads = eqx.field(static=True)

    @classmethod
    def of(
        cls, threads: Threads, kernel: Kernel, noise: Number, X: Float[Array, "n d"]
    ) -> InPlaceFactor:
        """Factor K̂ = K(X, X) + noise·I: n³/3 flops."""
        U = assemble.upper_triangle(threads, kernel, noise, X)
        pivot = cholesky.cholesky(U.T, threads)
        if pivot != 0:
            U[pivot - 1, pivot - 1] = np.nan  # from here to all that is solved with it
        return cls(U, threads)

    @property
    def L(self) -> Float[np.ndarray, "n n"]:
        return np.asarray(self.U).T

    @property
    def logdet(self) -> Number:
        with np.errstate(invalid="ignore"):  # of a matrix without a factor: NaN
            return 2.0 * np.sum(np.log(np.diagonal(self.L)))

    def half_solve(self, B: Matrix) -> Float[np.ndarray, "n k"]:
        with matrices_of(len(self.U)):
            return cholesky.solve_lower(self.L, np.asarray(B))

    def solve(self, b: Vector) -> Float[np.ndarray, " n"]:
        with one_blas_thread():  # one vector is a matter of memory
            half = cholesky.solve_lower(self.L, np.asarray(b)[:, None])
            return cholesky.solve_upper(self.L, half)[:, 0]

    def pull(
        self,
        kernel: Kernel,
        X: Float[Array, "n d"],
        alpha: Vector,
        quadratic_bar: Number | float,
        logdet_bar: Number | float,
        inputs: bool = False,
        overwrite: bool = False,
    ) -> Slopes:
        inverse = (np.asarray(self.U) if overwrite else np.array(self.U, order="C")).T
        cholesky.inverse(inverse, self.threads)  # its lower triangle
        weights = assemble.Weights(inverse, np.asarray(alpha), float(logdet_bar), float(quadratic_bar))
        kernel_bar, X_bar = assemble.pull_half(self.threads, kernel, X, weights, inputs)
        return Slopes(kernel_bar, np.asarray(weights.trace, dtype=X.dtype), X_bar)
