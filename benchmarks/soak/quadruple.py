"""The reference of the soak: log|K̂|, eᵀK̂⁻¹e and posterior variances in quadruple precision.

`quadruple.c` is compiled when first asked for (gcc and libquadmath). Where there is no compiler, the
same numbers come from `tests/precise.py`: 50 decimal digits, and some thousand times slower.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import cglb
from cglb import kernels
from cglb.kernels import Kernel

HERE = Path(__file__).parent
KINDS = {cglb.RBF: 0, cglb.Matern12: 1, cglb.Matern32: 3, cglb.Matern52: 5, cglb.Linear: 9}
FACTORS = 2
WELL_CONDITIONED = 1e15


class Truth(NamedTuple):
    """What the reference says, each rounded once to float64."""

    logdet: float
    quadratic: float
    variances: np.ndarray


def truth(gp: cglb.GP, X: np.ndarray, y: np.ndarray, X_star: np.ndarray) -> Truth:
    """log|K̂|, eᵀK̂⁻¹e and Var f at the rows of X_star.

    The error of 113 bits is about n·κ(K̂)·2⁻¹¹³. Where that could be seen in float64, 50 digits are used.
    """
    library = compiled()
    with cglb.float64():
        prior = float(np.sum(np.asarray(gp.kernel.diag(jnp.asarray(X)))))
    if library is None or prior / float(gp.noise) > WELL_CONDITIONED:
        return _by_digits(gp, X, y, X_star)
    return _by_library(library, gp, X, y, X_star)


@functools.cache
def compiled() -> ctypes.CDLL | None:
    """The library, or None without a compiler for it."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="cglb-quadruple-"))
    try:
        command = [compiler, "-O2", "-shared", "-fPIC", HERE / "quadruple.c", "-o", folder / "q.so"]
        done = subprocess.run([*map(str, command), "-lquadmath"], capture_output=True)
        return None if done.returncode else ctypes.CDLL(str(folder / "q.so"))
    finally:
        shutil.rmtree(folder)  # what is loaded stays


def _by_library(library: ctypes.CDLL, gp: cglb.GP, X: np.ndarray, y: np.ndarray, X_star: np.ndarray):
    n, d = X.shape
    terms = _terms(gp.kernel)
    kinds = np.full((len(terms), FACTORS), -1, dtype=np.int32)
    scale, variance = np.ones((len(terms), FACTORS, d)), np.ones((len(terms), FACTORS))
    for t, factors in enumerate(terms):
        for f, one in enumerate(factors):
            linear = isinstance(one, cglb.Linear)
            kinds[t, f] = KINDS[type(one)]
            scale[t, f] = one.variance if linear else one.lengthscale
            variance[t, f] = 1.0 if linear else one.variance
    found, work = np.zeros(2 + len(X_star)), np.zeros((n * n + n, 2))  # 16 bytes per number
    place = work.ctypes.data + (-work.ctypes.data) % 16
    arrays = [np.ascontiguousarray(a, dtype=np.float64) for a in (X, y, X_star)]
    failed = library.reference(
        *map(ctypes.c_int, (n, d, len(X_star), len(terms))),
        *(_pointer(a) for a in (kinds, scale, variance)),
        ctypes.c_double(float(gp.noise)), ctypes.c_double(float(gp.mean)),
        *(_pointer(a) for a in arrays),
        ctypes.c_void_p(place), ctypes.c_void_p(place + 16 * n * n), _pointer(found),
    )  # fmt: skip
    if failed:
        raise FloatingPointError("K̂ has no factor in quadruple precision")
    return Truth(float(found[0]), float(found[1]), found[2:])


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _terms(kernel: Kernel) -> list[list[Kernel]]:
    """A kernel as a sum of products."""
    if isinstance(kernel, kernels.Sum):
        return [term for part in (kernel.left, kernel.right) for term in _terms(part)]
    if isinstance(kernel, kernels.Product):
        return [[kernel.left, kernel.right]]
    return [[kernel]]


def _by_digits(gp: cglb.GP, X: np.ndarray, y: np.ndarray, X_star: np.ndarray) -> Truth:
    sys.path.insert(0, str(HERE.parent.parent / "tests"))
    import precise

    L = precise.factor(gp, X)
    z = precise.half_solve(L, precise.exactly(y) - precise.exactly(gp.mean).item())
    logdet = 2 * sum(value.ln() for value in np.diagonal(L))
    return Truth(float(logdet), float(z @ z), precise.variances(gp, X, X_star, L))
