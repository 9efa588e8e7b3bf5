"""Small matrices, one per thread at a time: each call lets other threads of Python run."""

from __future__ import annotations

import ctypes

import numpy as np
from jaxtyping import Float

from cglb.compute.cpu.routines import call

__all__ = ["cholesky_solve", "solve_rows", "subtract_gram"]

# all arrays are row-major, and so their own transposes to BLAS


def subtract_gram(K: Float[np.ndarray, "k k"], B: Float[np.ndarray, "k m"]) -> None:
    """K ← K − BBᵀ on and above the diagonal, in place: k²m flops."""
    if not B.size:
        return
    k, m = B.shape
    call("syrk", "L", "T", k, m, -1.0, B, m, 1.0, K, k)


def cholesky_solve(K: Float[np.ndarray, "k k"], c: Float[np.ndarray, " k"]) -> bool:
    """c ← K⁻¹c in place, of a K given on and above its diagonal, which is lost: k³/3 flops.

    Returns:
        whether K has a factor in float64; c is undefined if not.
    """
    k, info = len(c), ctypes.c_int(0)
    call("potrf", "L", k, K, k, info)
    for transpose in ("N", "T"):
        call("trsv", "L", transpose, "N", k, K, k, c, 1)
    return info.value == 0


def solve_rows(L: Float[np.ndarray, "m m"], R: Float[np.ndarray, "g m"], transposed: bool) -> None:
    """R ← RL⁻ᵀ, or RL⁻¹ if `transposed`, in place, by substitution with a lower L: g·m² flops."""
    if not R.size:
        return
    (g, m), transpose = R.shape, "N" if transposed else "T"
    if g == 1:  # a third of the time
        call("trsv", "U", transpose, "N", m, L, m, R, 1)
        return
    call("trsm", "L", "U", transpose, "N", m, g, 1.0, L, m, R, m)
