"""BLAS and LAPACK for many small matrices, one per thread at a time.

SciPy's own wrappers hold Python's lock while they compute, so that a second thread would wait. These
functions call the same routines, by the addresses that SciPy publishes for Cython and that JAX uses too,
and let other threads run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import cython_blas, cython_lapack  # pyright: ignore[reportAttributeAccessIssue]

__all__ = ["cholesky_solve", "solve_rows", "subtract_gram"]

_python = ctypes.pythonapi
_signature = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _python))
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _python)
)


def subtract_gram(K: Float[np.ndarray, "k k"], B: Float[np.ndarray, "k m"]) -> None:
    """K ← K − BBᵀ on and above the diagonal, in place: k²m flops."""
    if not B.size:
        return
    k, m = _integer(B.shape[0]), _integer(B.shape[1])
    # a row-major array is its own transpose to BLAS
    _routine(cython_blas, "dsyrk")(b"L", b"T", k, m, _MINUS_ONE, _at(B), m, _ONE, _at(K), k)


def cholesky_solve(K: Float[np.ndarray, "k k"], c: Float[np.ndarray, " k"]) -> bool:
    """c ← K⁻¹c in place, of a K given on and above its diagonal, which is lost: k³/3 flops.

    Returns:
        whether K has a factor in float64; c is undefined if not.
    """
    k, one, info = _integer(len(c)), _integer(1), ctypes.c_int(0)
    _routine(cython_lapack, "dpotrf")(b"L", k, _at(K), k, ctypes.byref(info))
    for transpose in (b"N", b"T"):
        _routine(cython_blas, "dtrsv")(b"L", transpose, b"N", k, _at(K), k, _at(c), one)
    return info.value == 0


def solve_rows(L: Float[np.ndarray, "m m"], R: Float[np.ndarray, "g m"], transposed: bool) -> None:
    """R ← RL⁻ᵀ, or RL⁻¹ if `transposed`, in place, by substitution with a lower L: g·m² flops."""
    if not R.size:
        return
    g, m = _integer(R.shape[0]), _integer(R.shape[1])
    transpose = b"N" if transposed else b"T"
    if len(R) == 1:  # a third of the time
        _routine(cython_blas, "dtrsv")(b"U", transpose, b"N", m, _at(L), m, _at(R), _integer(1))
        return
    _routine(cython_blas, "dtrsm")(b"L", b"U", transpose, b"N", m, g, _ONE, _at(L), m, _at(R), m)


_ONE, _MINUS_ONE = (ctypes.byref(ctypes.c_double(value)) for value in (1.0, -1.0))


@cache
def _routine(module: Any, name: str) -> Callable[..., None]:
    """A routine, all of whose arguments are addresses."""
    capsule = module.__pyx_capi__[name]
    signature = _signature(capsule)
    arguments = [ctypes.c_void_p] * (signature.count(b",") + 1)
    return ctypes.CFUNCTYPE(None, *arguments)(_address(capsule, signature))


def _integer(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def _at(array: np.ndarray) -> int:
    """Where a row-major float64 array begins."""
    assert array.dtype == np.float64
    assert array.flags.c_contiguous
    return array.ctypes.data
