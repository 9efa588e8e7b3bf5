"""K̂ in memory, as one array; `stored_mesh` splits it among devices."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float

__all__ = ["StoredMatrix", "StoredWhole"]


@runtime_checkable
class StoredMatrix(Protocol):
    """K̂ in memory."""

    def serves(self, columns: int) -> bool:
        """Whether it takes products with so many columns."""
        ...

    def __matmul__(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """K̂V in the dtype of V."""
        ...


class StoredWhole:
    """All of K̂ on the device."""

    def __init__(self, K_hat: Float[Array, "n n"]):
        self.K_hat = K_hat

    def serves(self, columns: int) -> bool:
        return True

    def __matmul__(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        return _product(self.K_hat, V)


@jax.jit
def _product(K_hat: Array, V: Array) -> Array:
    return (K_hat @ V.astype(K_hat.dtype)).astype(V.dtype)
