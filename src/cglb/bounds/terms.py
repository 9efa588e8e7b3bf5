"""The three terms of a log marginal likelihood and of its bounds."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from cglb.core.precision import Number

__all__ = ["BoundTerms"]


class BoundTerms(eqx.Module):
    """The three terms of a bound, with their signs.

    Attributes:
        constant: −(n/2) log 2π.
        quadratic: −½·(eᵀK̂⁻¹e, or a bound on it).
        logdet: −½·(log|K̂|, or a bound on it).
    """

    constant: Number
    quadratic: Number
    logdet: Number

    @property
    def value(self) -> Number:
        """The bound itself, in nats."""
        return self.constant + self.quadratic + self.logdet

    @classmethod
    def of(cls, n: int, quadratic: Number | float, logdet: Number | float) -> BoundTerms:
        """The terms from eᵀK̂⁻¹e and log|K̂|, or from bounds on them."""
        constant = -0.5 * n * np.log(2.0 * np.pi)
        if not isinstance(quadratic, jax.Array) and not isinstance(logdet, jax.Array):
            return cls(*map(np.float64, (constant, -0.5 * quadratic, -0.5 * logdet)))
        quadratic, logdet = jnp.asarray(quadratic), jnp.asarray(logdet)
        return cls(jnp.asarray(constant, dtype=quadratic.dtype), -0.5 * quadratic, -0.5 * logdet)
