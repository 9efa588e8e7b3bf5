"""BLAS and LAPACK on parts of arrays, in place, while other threads of Python run.

SciPy's wrappers copy what is not contiguous, and hold Python's lock during the call: threads would take
turns. Here SciPy's routines are called through the pointers that `scipy.linalg.cython_blas` and
`cython_lapack` export. Arguments are passed as BLAS wants them: arrays are column-major, with a leading
dimension.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_blas, cython_lapack  # pyright: ignore[reportAttributeAccessIssue]

__all__ = ["call", "leading"]

PREFIX = {"float64": ("d", ctypes.c_double), "float32": ("s", ctypes.c_float)}


def call(name: str, *arguments: str | int | float | np.ndarray | ctypes.c_int) -> None:
    """The routine of this name, without its prefix; the arrays, all of one dtype, decide that.

    A `ctypes.c_int` is for a number that the routine returns.
    """
    prefix, real = PREFIX[next(one.dtype.name for one in arguments if isinstance(one, np.ndarray))]
    _routine(prefix + name, len(arguments))(*(_pointer(one, real) for one in arguments))


def leading(A: np.ndarray) -> int:
    """How far apart the columns of A are, or the rows of a row-major A, whose transpose BLAS sees."""
    return max(A.strides) // A.itemsize


def _pointer(argument: Any, real: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data
    if isinstance(argument, str):
        return argument.encode()
    if isinstance(argument, ctypes.c_int):
        return ctypes.byref(argument)
    return ctypes.byref(ctypes.c_int(argument) if isinstance(argument, int) else real(argument))


@cache
def _routine(name: str, count: int) -> Any:
    known = cython_blas.__pyx_capi__
    capsule = (known if name in known else cython_lapack.__pyx_capi__)[name]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * count)
    return signature(pointer_of(capsule, name_of(capsule)))
