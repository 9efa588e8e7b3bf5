"""Lemma 3 of the paper: bounds on the quadratic form eᵀK̂⁻¹e that hold for every v."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["QuadraticInterval", "quadratic_interval"]


class QuadraticInterval(eqx.Module):
    """lower ≤ eᵀK̂⁻¹e ≤ upper for every column of e; half the width is CG's slack in nats.

    Attributes:
        lower: the lower ends, one per column.
        upper: the upper ends, one per column.
    """

    lower: Float[Array, "*t"]
    upper: Float[Array, "*t"]


@jax.jit
def quadratic_interval(
    e: Float[Array, "n *t"],
    v: Float[Array, "n *t"],
    K_hat_v: Float[Array, "n *t"],
    residual_form: Float[Array, "*t"],
) -> QuadraticInterval:
    """2eᵀv − vᵀK̂v ≤ eᵀK̂⁻¹e ≤ 2eᵀv − vᵀK̂v + rᵀQ̂⁻¹r for every v, column by column.

    The difference between the form and its lower end is rᵀK̂⁻¹r, r = e − K̂v, and 0 ⪯ K̂⁻¹ ⪯ Q̂⁻¹.

    Args:
        e: the vectors of the quadratic form.
        v: anything; the interval is narrow if K̂v ≈ e.
        K_hat_v: K̂v.
        residual_form: rᵀQ̂⁻¹r.
    """
    lower = jnp.sum(2.0 * e * v - v * K_hat_v, axis=0)
    return QuadraticInterval(lower, lower + residual_form)
