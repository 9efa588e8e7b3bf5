"""What BLAS does better than XLA on a CPU: solves in place, products with half a symmetric matrix.

Only for concrete arrays (not while JAX traces). A row-major array is, to BLAS, its own transpose: Aᵀ
[n, m] in NumPy's order is A [m, n] in BLAS's, so nothing is copied.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import get_blas_funcs

from cglb.compute.cpu.routines import call, leading

__all__ = ["SymmetricHalf", "add_gram", "empty", "empty_in_small_pages", "solve_rows", "to_jax", "whole"]

LEAF = 128  # columns that a triangular solve takes at once
ALIGNMENT = 64  # bytes; JAX takes a NumPy array over without a copy only where it begins at a multiple


def empty(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """An array that `to_jax` need not copy."""
    itemsize = np.dtype(dtype).itemsize
    size, spare = int(np.prod(shape)), ALIGNMENT // itemsize
    buffer = np.empty(size + spare, dtype=dtype)
    first = (-buffer.ctypes.data % ALIGNMENT) // itemsize
    return buffer[first : first + size].reshape(shape)


def empty_in_small_pages(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """An array whose parts that are never written take no memory.

    NumPy asks Linux for pages of 2 MB, which hold parts of several rows: half a matrix would touch all.
    """
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux
        return empty(shape, dtype)
    count = int(np.prod(shape))
    size = max(1, count * np.dtype(dtype).itemsize)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=dtype, count=count).reshape(shape)


def to_jax(array: np.ndarray) -> jax.Array:
    """The same memory as a JAX array on the CPU; the caller gives `array` up."""
    return jax.device_put(array, jax.local_devices(backend="cpu")[0], may_alias=True)


def solve_rows(L: np.ndarray, rows: np.ndarray, scale: float) -> None:
    """rows ← scale · rows L⁻ᵀ in place, by substitution: n·m² flops.

    By halves, so that most of it is a matrix product: BLAS's own solve is half as fast for few columns.

    Args:
        L: [m, m] lower triangular, in NumPy's order.
        rows: [n, m], in NumPy's order.
        scale: a factor.
    """
    (n, m), across, down = rows.shape, leading(rows), leading(L)
    if m <= LEAF:
        call("trsm", "L", "U", "T", "N", m, n, scale, L, down, rows, across)
        return
    h = (m // 2 + LEAF - 1) // LEAF * LEAF
    left, right = rows[:, :h], rows[:, h:]
    solve_rows(L[:h, :h], left, scale)
    call("gemm", "T", "N", m - h, n, h, -1.0, L[h:, :h], down, left, across, scale, right, across)
    solve_rows(L[h:, h:], right, 1.0)


def add_gram(half: np.ndarray, rows: np.ndarray) -> None:
    """half ← half + rowsᵀ rows in place, in one of the two triangles of half [m, m]: n·m² flops."""
    (n, m), across = rows.shape, leading(rows)
    call("syrk", "L", "N", m, n, 1.0, rows, across, 1.0, half, leading(half))


def whole(half: np.ndarray) -> np.ndarray:
    """The symmetric matrix whose half `add_gram` made."""
    return np.triu(half) + np.triu(half, 1).T


class SymmetricHalf:
    """A symmetric matrix of which only the upper triangle is stored, for products with one vector.

    With several columns BLAS's `symm` is no faster than two products with a whole matrix.

    Args:
        upper: [n, n] in NumPy's order; what is below the diagonal is never read.
    """

    def __init__(self, upper: np.ndarray):
        self.upper = upper

    def serves(self, columns: int) -> bool:
        """Whether it takes products with so many columns."""
        return columns == 1

    def __matmul__(self, V: Float[Array, "n *one"]) -> Float[Array, "n *one"]:
        """The product in the dtype of the matrix, given in that of V ([n] or [n, 1])."""
        (symv,) = get_blas_funcs(("symv",), (self.upper,))
        vector = np.asarray(V, dtype=self.upper.dtype).reshape(-1)
        # the transpose of a row-major array is what BLAS calls an array
        found = symv(1.0, self.upper.T, vector, lower=1)
        return jnp.asarray(found.reshape(V.shape), dtype=V.dtype)
