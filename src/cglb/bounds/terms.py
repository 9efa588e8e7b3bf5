"""The three terms of a log marginal likelihood and of its bounds."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cglb.core.precision import Number

__all__ = ["BoundTerms"]


class BoundTerms(eqx.Module):
    """The three terms of a bound, with their signs.

    Attributes:
        constant: −(n/2) log 2π.
        quadratic: −½·(eᵀK̂⁻¹e, or a bound on it).
        logdet: −½·(log|K̂|, or a bound on it).
        rounding: nats by which floating-point rounding may have moved the sum, as docs/bounds.md proves;
            infinite where float64 says nothing, 0 inside a trace and in training.
    """

    constant: Number
    quadratic: Number
    logdet: Number
    rounding: Any = 0.0

    @property
    def value(self) -> Number:
        """The bound itself, in nats."""
        return _sum(self.constant, self.quadratic, self.logdet)

    @property
    def lower(self) -> Number:
        """The value of a lower bound, certain in floating point: value − rounding."""
        return self.value - self.rounding

    @property
    def upper(self) -> Number:
        """The value of an upper bound, certain in floating point: value + rounding."""
        return self.value + self.rounding

    @classmethod
    def of(
        cls, n: Any, quadratic: Number | float, logdet: Number | float, rounding: float = 0.0
    ) -> BoundTerms:
        """The terms from eᵀK̂⁻¹e and log|K̂|, or from bounds on them."""
        constant = -0.5 * n * np.log(2.0 * np.pi)
        if not isinstance(quadratic, jax.Array) and not isinstance(logdet, jax.Array):
            terms = (np.float64(term) for term in (constant, -0.5 * quadratic, -0.5 * logdet))
            return cls(*terms, rounding=rounding)
        return cls(*_halves(constant, quadratic, logdet), rounding=rounding)


@jax.jit
def _halves(constant: Any, quadratic: Any, logdet: Any) -> tuple[Array, Array, Array]:
    constant, quadratic, logdet = jnp.asarray(constant), jnp.asarray(quadratic), jnp.asarray(logdet)
    return constant.astype(quadratic.dtype), -0.5 * quadratic, -0.5 * logdet


def _sum(*terms: Any) -> Any:
    """The sum: of NumPy's numbers one of NumPy, otherwise one compiled program."""
    return _added(*terms) if any(isinstance(term, jax.Array) for term in terms) else sum(terms)


@jax.jit
def _added(constant: Any, quadratic: Any, logdet: Any) -> Array:
    return constant + quadratic + logdet
