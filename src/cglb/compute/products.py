"""Matrix products written the way XLA's CPU compiler runs them fast.

XLA fuses whatever produces an operand into the loop of a product, or reads a transposed operand in
strides, where a copy first would be several times faster. These functions say what is meant; how it is
written is decided here.
"""

from __future__ import annotations

from typing import TypeVar

from jax import lax
from jaxtyping import Array, Float, Int

__all__ = ["materialised", "rows_at", "transposed_product"]

T = TypeVar("T")


def transposed_product(A: Float[Array, "n m"], B: Float[Array, "n *t"]) -> Float[Array, "m *t"]:
    """AᵀB for tall A and B."""
    if (
        B.ndim == 1 or B.shape[1] < A.shape[1]
    ):  # reading the wide A in strides would be many times slower
        return (B.T @ A).T
    return materialised(A.T) @ B


def rows_at(index: Int[Array, " k"], *arrays: Array) -> tuple[Array, ...]:
    """The given rows of each array: gathered before, not inside, the products that use them."""
    return materialised(tuple(array[index] for array in arrays))


def materialised(tree: T) -> T:
    """The same arrays, computed before they are used rather than inside the loops of their users."""
    return lax.optimization_barrier(tree)
