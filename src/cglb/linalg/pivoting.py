"""The loop of a pivoted Cholesky factorisation, whose factor grows in stages."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

__all__ = ["in_stages"]

FIRST_STAGE = 64  # columns of the factor in the first stage

# the factor [k, n] and the conditional variances [n], before and after a pivot
State = tuple[Array, Array]


def in_stages(
    m: int,
    diag: Float[Array, " n"],
    step: Callable[[State, Array], tuple[State, tuple[Array, Array]]],
) -> tuple[Array, Array]:
    """Pivots [m] and their conditional variances [m]; inside `jit`.

    The width of the factor doubles in stages, so that a step reads few columns that are still empty.

    Args:
        m: the number of pivots.
        diag: the variances to begin with.
        step: takes the number of the pivot, and gives the pivot and its variance.
    """
    C = jnp.zeros((0, diag.shape[0]), dtype=diag.dtype)
    chosen, variances = [], []
    start = 0
    while start < m:
        stop = min(m, max(FIRST_STAGE, 2 * start))
        C = jnp.concatenate([C, jnp.zeros((stop - start, diag.shape[0]), dtype=diag.dtype)])
        (C, diag), (p, s) = lax.scan(step, (C, diag), jnp.arange(start, stop))
        chosen.append(p)
        variances.append(s)
        start = stop
    return jnp.concatenate(chosen), jnp.concatenate(variances)
