"""Cholesky factors of large matrices, in the memory of the matrix itself.

Up to WHOLE rows LAPACK does all on one thread. Above, everything is made of products of blocks, which
run on threads of this package with one thread of BLAS each: the threaded routines of OpenBLAS wait for
each other in a loop, and on two cores write outside their buffers somewhere above 14,000 rows and crash
the process (its issues 352 and 2562 are of that kind). Blocks do not depend on the number of threads.
Arrays are column-major; only the lower triangle is read, and what is above it is undefined afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from cglb.compute.cpu.routines import call, leading
from cglb.compute.parallel import Threads, one_blas_thread

__all__ = ["cholesky", "inverse", "solve_lower", "solve_upper"]

WHOLE = 1500  # rows that LAPACK sees in one call
BLOCK = 256  # rows and columns of a block above that


def cholesky(A: np.ndarray, threads: Threads) -> int:
    """Replace A [n, n] by L, A = LLᵀ: n³/3 flops.

    Returns:
        0, or the number (from 1) of the pivot that is not positive; A is then undefined.
    """
    with one_blas_thread():
        return _factor(A, threads)


def _factor(A: np.ndarray, threads: Threads) -> int:
    (potrf,) = get_lapack_funcs(("potrf",), (A,))
    if len(A) <= WHOLE:
        return potrf(A, lower=1, clean=0, overwrite_a=1)[1]
    for rows in _blocks(len(A)):

        def update(below: slice, rows: slice = rows) -> None:
            A[below, rows] -= _product(A[below, : rows.start], A[rows, : rows.start].T)

        _each(threads, update, rows.start, len(A))
        L, info = potrf(A[rows, rows], lower=1)
        if info != 0:
            return rows.start + info
        A[rows, rows] = L

        def solve(below: slice, rows: slice = rows, L: np.ndarray = L) -> None:
            panel = A[below, rows]
            call("trsm", "R", "L", "T", "N", *panel.shape, 1.0, L, leading(L), panel, leading(A))

        _each(threads, solve, rows.stop, len(A))
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


def inverse(L: np.ndarray, threads: Threads) -> None:
    """Replace L [n, n] by the lower triangle of (LLᵀ)⁻¹ = VᵀV, V = L⁻¹: 2n³/3 flops."""
    with one_blas_thread():
        if len(L) <= WHOLE:
            (potri,) = get_lapack_funcs(("potri",), (L,))
            potri(L, lower=1, overwrite_c=1)
        else:
            _invert_triangle(L, threads)
            _multiply_triangle(L, threads)


def _invert_triangle(L: np.ndarray, threads: Threads) -> None:
    """Replace L by V = L⁻¹, from the last block column to the first: below the diagonal a column of V is
    −(V of what is below) (that of L) L_jj⁻¹. n³/3 flops."""
    (trtri,), (trmm,) = get_lapack_funcs(("trtri",), (L,)), get_blas_funcs(("trmm",), (L,))
    for rows in reversed(list(_blocks(len(L)))):
        corner = trtri(L[rows, rows], lower=1)[0]
        below = trmm(-1.0, corner, L[rows.stop :, rows], side=1, lower=1)

        def column(part: slice, rows: slice = rows, below: np.ndarray = below) -> None:
            done, found = part.start - rows.stop, L[part, rows]
            found[:] = below[done : part.stop - rows.stop]
            V = L[part, part]
            call("trmm", "L", "L", "N", "N", *found.shape, 1.0, V, leading(L), found, leading(L))
            found += _product(L[part, rows.stop : part.start], below[:done])

        _each(threads, column, rows.stop, len(L))
        L[rows, rows] = corner


def _multiply_triangle(V: np.ndarray, threads: Threads) -> None:
    """Replace V by the lower triangle of VᵀV, from the first block row to the last: a block row depends
    on those of V from its own on. n³/3 flops."""
    for rows in _blocks(len(V)):
        left = V[rows.start :, rows].copy(order="F")
        corner = left[: rows.stop - rows.start]
        corner[:] = np.tril(corner)
        V[rows, rows] = corner

        def row(part: slice, rows: slice = rows, left: np.ndarray = left) -> None:
            V[rows, part] = _product(left.T, V[rows.start :, part])

        _each(threads, row, 0, rows.stop)


def _product(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """AB, column-major: NumPy's own is row-major, and slow to subtract from a column-major array."""
    return (B.T @ A.T).T


def _each(threads: Threads, work: Callable[[slice], None], start: int, stop: int) -> None:
    """`work` on each block of rows (or columns) in a range, on threads."""
    blocks = [slice(begin, min(stop, begin + BLOCK)) for begin in range(start, stop, BLOCK)]
    threads.for_each(work, [(block,) for block in blocks])


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, min(n, start + BLOCK)) for start in range(0, n, BLOCK))
