"""Cholesky factors of large matrices, in the memory of the matrix itself.

LAPACK's own routines would do, but the threaded ones of OpenBLAS write outside their buffers on two
cores somewhere above 14,000 rows and crash the process (its issues 352 and 2562 are of that kind). So
above WHOLE rows LAPACK sees one block at a time, and all other work is products of matrices. Arrays are
column-major; only the lower triangle is read, and what is above it is undefined afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

__all__ = ["cholesky", "inverse", "solve_lower", "solve_upper"]

WHOLE = 12_000  # rows that LAPACK factors in one call
BLOCK = 1024  # rows and columns that it sees at a time above that


def cholesky(A: np.ndarray) -> int:
    """Replace A [n, n] by L, A = LLᵀ: n³/3 flops.

    Returns:
        0, or the number (from 1) of the pivot that is not positive; A is then undefined.
    """
    (potrf,), (trsm,) = get_lapack_funcs(("potrf",), (A,)), get_blas_funcs(("trsm",), (A,))
    if len(A) <= WHOLE:
        return potrf(A, lower=1, clean=0, overwrite_a=1)[1]
    for rows in _blocks(len(A)):
        below = slice(rows.start, None)
        panel = A[below, rows] - _product(A[below, : rows.start], A[rows, : rows.start].T)
        width = panel.shape[1]
        L, info = potrf(panel[:width], lower=1)
        if info != 0:
            return rows.start + info
        A[rows, rows] = L
        A[rows.stop :, rows] = trsm(1.0, L, panel[width:], side=1, lower=1, trans_a=1)
    return 0


def solve_lower(L: np.ndarray, B: np.ndarray) -> np.ndarray:
    """L⁻¹B for B [n, k]: n²k flops."""
    (trsm,) = get_blas_funcs(("trsm",), (L,))
    X = np.array(B, order="F")
    for rows in _blocks(len(L)):
        rest = X[rows] - _product(L[rows, : rows.start], X[: rows.start])
        X[rows] = trsm(1.0, L[rows, rows], rest, lower=1)
    return X


def solve_upper(L: np.ndarray, B: np.ndarray) -> np.ndarray:
    """L⁻ᵀB for B [n, k]: n²k flops."""
    (trsm,) = get_blas_funcs(("trsm",), (L,))
    X = np.array(B, order="F")
    for rows in reversed(list(_blocks(len(L)))):
        rest = X[rows] - _product(L[rows.stop :, rows].T, X[rows.stop :])
        X[rows] = trsm(1.0, L[rows, rows], rest, lower=1, trans_a=1)
    return X


def inverse(L: np.ndarray) -> None:
    """Replace L [n, n] by the lower triangle of (LLᵀ)⁻¹: 2n³/3 flops.

    Below row j, a block of columns j of the inverse depends only on the factor from row and column j on:
    L⁻¹ of unit columns is zero above. So it may take the place of the block of L that is not read later.
    """
    if len(L) <= WHOLE:
        (potri,) = get_lapack_funcs(("potri",), (L,))
        potri(L, lower=1, overwrite_c=1)
        return
    for rows in _blocks(len(L)):
        rest = L[rows.start :, rows.start :]
        unit = np.eye(len(rest), rows.stop - rows.start, order="F")
        L[rows.start :, rows] = solve_upper(rest, solve_lower(rest, unit))


def _product(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """AB, column-major: NumPy's own is row-major, and slow to subtract from a column-major array."""
    return (B.T @ A.T).T


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, min(n, start + BLOCK)) for start in range(0, n, BLOCK))
