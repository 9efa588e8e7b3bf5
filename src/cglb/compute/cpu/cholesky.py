"""Cholesky factors of large matrices, in the memory of the matrix itself.

Matrices are cut into quarters, and these again, so that nearly all is products of large blocks at every
level of the memory. The products run on threads of this package with one thread of BLAS each: the
threaded routines of OpenBLAS wait for each other in a loop, and on two cores write outside their buffers
somewhere above 14,000 rows and crash the process (its issues 352 and 2562 are of that kind).
Arrays are column-major; only the lower triangle is read, and what is above it is undefined afterwards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np
from scipy.linalg import get_blas_funcs

from cglb.compute.cpu.routines import call, leading
from cglb.compute.parallel import Threads, one_blas_thread

__all__ = ["cholesky", "inverse", "solve_lower", "solve_upper"]

LEAF = 128  # rows that LAPACK sees in one call
ALONE = 384  # rows up to which one thread is as fast as several
PART = 128  # rows or columns that a thread takes at once: the fewer, the less the last one is waited for
BLOCK = 256  # rows of a block in solves

Parts = Callable[[Callable[[slice], None], int], None]  # runs a function on the parts of a range


def cholesky(A: np.ndarray, threads: Threads) -> int:
    """Replace A [n, n] by L, A = LLᵀ: n³/3 flops.

    Returns:
        0, or the number (from 1) of the pivot that is not positive; A is then undefined.
    """
    _check(A)
    with one_blas_thread():
        return _factor(A, threads)


def _factor(A: np.ndarray, threads: Threads) -> int:
    if len(A) <= LEAF:
        return _lapack("potrf", A, "L")
    top, corner, low = _quarters(A)
    if (pivot := _factor(top, threads)) != 0:
        return pivot
    each = _over_parts(threads, len(A))

    def solve(rows: slice) -> None:
        """corner ← corner L⁻ᵀ."""
        mine = corner[rows]
        call("trsm", "R", "L", "T", "N", *mine.shape, 1.0, top, leading(top), mine, leading(mine))

    each(solve, len(low))
    each(lambda rows: _add_square(low, rows, -1.0, corner, "N"), len(low))
    pivot = _factor(low, threads)
    return pivot and pivot + len(top)


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
    _check(L)
    with one_blas_thread():
        _invert_triangle(L, threads)
        _square_triangle(L, threads)


def _invert_triangle(L: np.ndarray, threads: Threads) -> None:
    """Replace L by V = L⁻¹, whose corner is −V₂₂L₂₁V₁₁: n³/3 flops."""
    if len(L) <= LEAF:
        _lapack("trtri", L, "L", "N")
        return
    top, corner, low = _quarters(L)
    _invert_triangle(top, threads)
    _invert_triangle(low, threads)
    each = _over_parts(threads, len(L))
    each(lambda columns: _multiply("L", "N", -1.0, low, corner[:, columns]), len(top))
    each(lambda rows: _multiply("R", "N", 1.0, top, corner[rows]), len(low))


def _square_triangle(V: np.ndarray, threads: Threads) -> None:
    """Replace V by the lower triangle of VᵀV, whose corner is V₂₂ᵀV₂₁: n³/3 flops."""
    if len(V) <= LEAF:
        _lapack("lauum", V, "L")
        return
    top, corner, low = _quarters(V)
    _square_triangle(top, threads)
    each = _over_parts(threads, len(V))
    each(lambda rows: _add_square(top, rows, 1.0, corner, "T"), len(top))
    each(lambda columns: _multiply("L", "T", 1.0, low, corner[:, columns]), len(top))
    _square_triangle(low, threads)


# ---- parts, all column-major and in place ----


def _check(A: np.ndarray) -> None:
    """BLAS would read another triangle, or write to memory that is not ours."""
    if not (A.flags.f_contiguous and A.flags.writeable):
        raise ValueError("A matrix that is replaced must be column-major and writeable.")


def _quarters(A: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The upper left, lower left and lower right quarter; the first has a multiple of LEAF rows."""
    h = max(1, (len(A) + LEAF) // (2 * LEAF)) * LEAF
    return A[:h, :h], A[h:, :h], A[h:, h:]


def _over_parts(threads: Threads, n: int) -> Parts:
    """How to run a function on the parts of a range, for a matrix of n rows. The last part, which may
    take longest, comes first. Parts do not depend on the number of threads."""
    if n <= ALONE:
        return lambda work, stop: work(slice(0, stop))

    def each(work: Callable[[slice], None], stop: int) -> None:
        size = PART if stop < 8 * PART else 2 * PART
        parts = [slice(start, min(stop, start + size)) for start in range(0, stop, size)]
        threads.for_each(work, [(part,) for part in reversed(parts)])

    return each


def _add_square(C: np.ndarray, rows: slice, scale: float, B: np.ndarray, form: str) -> None:
    """Some rows of C ← C + scale·BBᵀ ("N") or C + scale·BᵀB ("T"), up to the diagonal."""
    mine, before = (B[rows], B[: rows.start]) if form == "N" else (B[:, rows], B[:, : rows.start])
    k, across, other = B.shape[1 if form == "N" else 0], leading(B), "T" if form == "N" else "N"
    left, corner = C[rows, : rows.start], C[rows, rows]
    if rows.start:
        sizes = (*left.shape, k, scale)
        call("gemm", form, other, *sizes, mine, across, before, across, 1.0, left, leading(C))
    call("syrk", "L", form, len(corner), k, scale, mine, across, 1.0, corner, leading(C))


def _multiply(side: str, form: str, scale: float, V: np.ndarray, B: np.ndarray) -> None:
    """B ← scale·VB (side "L") or scale·BV ("R"), with Vᵀ for form "T", for a lower triangular V."""
    call("trmm", side, "L", form, "N", *B.shape, scale, V, leading(V), B, leading(B))


def _lapack(name: str, A: np.ndarray, *form: str) -> int:
    """A routine for one square matrix, and what it returns: 0 if all is well."""
    info = ctypes.c_int(0)
    call(name, *form, len(A), A, leading(A), info)
    return info.value


def _product(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """AB, column-major: NumPy's own is row-major, and slow to subtract from a column-major array."""
    return (B.T @ A.T).T


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, min(n, start + BLOCK)) for start in range(0, n, BLOCK))
