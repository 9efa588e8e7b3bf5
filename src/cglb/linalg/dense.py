"""The exact likelihood through K̂ = LLᵀ as one n × n array: n³/3 flops, n³ with a gradient.

On a CPU K̂ is filled tile by tile, factored in place and (for a gradient) inverted in place, so that
there is one n × n array: 30,000 rows take 7 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.compute.backend import backend_of, few_rows
from cglb.compute.factors import Factor, Vector
from cglb.compute.parallel import matrices_of
from cglb.core.precision import Number, is_traced
from cglb.kernels.base import Kernel
from cglb.kernels.rows import RowScaled
from cglb.linalg import dense_few, row_noise
from cglb.model import GP

__all__ = ["Exact", "factor", "terms", "value_and_gradient"]


class Exact(NamedTuple):
    """K̂ = LLᵀ, alpha = K̂⁻¹e, and the two terms of log p(y) = −(n/2) log 2π − ½eᵀK̂⁻¹e − ½ log|K̂|."""

    quadratic: Number | float  # eᵀK̂⁻¹e
    logdet: Number | float  # log|K̂|
    alpha: Vector
    factor: Factor


def factor(gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]) -> Exact:
    """Factor K̂ and solve for alpha: n³/3 flops, one n × n array on a CPU.

    Raises:
        numpy.linalg.LinAlgError: if K̂ is not positive definite in the precision of X (inside a trace the
            numbers are NaN instead).
    """
    arrays = backend_of(gp, X, y).arrays
    if isinstance(gp.kernel, RowScaled):
        e = arrays.asarray(row_noise.residual(gp, X, y))
    else:
        e = arrays.asarray(y) - arrays.asarray(gp.mean)
    found = _exact(gp.kernel, gp.noise, X, e)
    if isinstance(gp.kernel, RowScaled):
        found = found._replace(logdet=found.logdet + arrays.asarray(_shift(gp, X)))
    if not is_traced(found.logdet):
        _check_factor(found.logdet, gp, X)
    return found


def _check_factor(logdet: Number | float, gp: GP, X: Array) -> None:
    if not np.isfinite(float(logdet)):
        raise np.linalg.LinAlgError(
            f"K + noise·I [{X.shape[0]} x {X.shape[0]}] is not positive definite in {X.dtype} at noise "
            f"{float(gp.noise):.3g}: raise the noise floor."
        )


def value_and_gradient(
    gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]
) -> tuple[Number | float, Number | float, GP]:
    """eᵀK̂⁻¹e, log|K̂|, and the gradient of log p(y) in the hyperparameters: n³ flops.

    d log p(y) = Σᵢⱼ Wᵢⱼ dK̂ᵢⱼ + 1ᵀα dμ with W = ½(ααᵀ − K̂⁻¹). Values only: for autodiff see `terms`.

    Raises:
        numpy.linalg.LinAlgError: as in `factor`.
    """
    few = len(X) <= dense_few.MOST_ROWS and few_rows(gp.noise, X, y)
    if few and not isinstance(gp.kernel, RowScaled):
        e = np.asarray(y) - np.asarray(gp.mean)
        with matrices_of(len(X)):
            found = dense_few.value_and_slopes(gp.kernel, gp.noise, X, e)
            quadratic, logdet, slopes = jax.block_until_ready(found)
        _check_factor(logdet, gp, X)
        return float(quadratic), float(logdet), _slopes(gp, jax.tree.leaves(slopes))
    found = factor(gp, X, y)
    slopes = found.factor.pull(gp.kernel, X, found.alpha, -0.5, -0.5, overwrite=True)
    leaves = (*jax.tree.leaves(slopes.kernel), slopes.noise, found.alpha.sum())
    if isinstance(gp.kernel, RowScaled):
        leaves = _with_rows(gp, X, y, jnp.asarray(found.alpha), leaves[:-1])
    return found.quadratic, found.logdet, _slopes(gp, leaves)


def _slopes(gp: GP, leaves: Sequence[Any]) -> GP:
    """Slopes may be negative, which a model made by its constructor may not."""
    return jax.tree.unflatten(jax.tree.structure(gp), leaves)


@jax.jit
def _with_rows(gp: GP, X: Array, y: Array, alpha: Array, slopes: tuple) -> tuple:
    """The slopes in kernel and noise, with those through e and the noise of each row, and that in μ."""

    def through_rows(gp: GP) -> tuple[Array, Array]:
        return row_noise.residual(gp, X, y), jnp.asarray(_shift(gp, X))

    _, pull = jax.vjp(through_rows, gp)
    more = jax.tree.leaves(pull((-alpha, jnp.asarray(-0.5, dtype=X.dtype)))[0])
    return (*(a + b for a, b in zip(slopes, more[:-1], strict=True)), more[-1])


def _shift(gp: GP, X: Array) -> Any:
    return row_noise.shift(gp.kernel, gp.noise, X)


def terms(
    gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(eᵀK̂⁻¹e, log|K̂|), differentiable in gp, X and y; NaN if K̂ is not positive definite."""
    noise, e = jnp.asarray(gp.noise), row_noise.residual(gp, X, y)
    quadratic, logdet = _terms(gp.kernel, noise, X, e)  # pyright: ignore[reportGeneralTypeIssues]
    return quadratic, logdet + _shift(gp, X)


def _exact(kernel: Kernel, noise: Number, X: Array, e: Vector) -> Exact:
    found = backend_of(kernel, noise, X, e).factor(kernel, noise, X)
    alpha = found.solve(e)
    if isinstance(alpha, np.ndarray):  # a product of the two would go through JAX
        e = np.asarray(e)
    return Exact(e @ alpha, found.logdet, alpha, found)


@jax.custom_vjp
def _terms(kernel: Kernel, noise: Array, X: Array, e: Array) -> tuple[Array, Array]:
    return _terms_forward(kernel, noise, X, e)[0]


def _terms_forward(kernel: Kernel, noise: Array, X: Array, e: Array) -> Any:
    found = _exact(kernel, noise, X, e)
    values = jnp.asarray(found.quadratic), jnp.asarray(found.logdet)
    return values, (kernel, X, found.alpha, found.factor)


def _terms_backward(residuals: Any, bars: tuple[Array, Array]) -> Any:
    kernel, X, alpha, found = residuals
    slopes = found.pull(kernel, X, alpha, *bars, inputs=True)
    e_bar = 2.0 * bars[0] * jnp.asarray(alpha)
    return slopes.kernel, jnp.asarray(slopes.noise), jnp.asarray(slopes.X), e_bar


_terms.defvjp(_terms_forward, _terms_backward)
