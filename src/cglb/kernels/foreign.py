"""scikit-learn's kernels as cglb's, so that `GPRegressor(kernel=...)` takes those too.

What has no counterpart is an error that says what to use. A `WhiteKernel` in a sum is left out: every
model here learns a noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cglb.kernels.base import Kernel
from cglb.kernels.linear import Constant, Linear
from cglb.kernels.periodic import Periodic
from cglb.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic

__all__ = ["from_scikit_learn", "is_from_scikit_learn"]

MATERN = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52, np.inf: RBF}


def is_from_scikit_learn(kernel: Any) -> bool:
    """Whether this is one of scikit-learn's Gaussian process kernels."""
    return type(kernel).__module__ == "sklearn.gaussian_process.kernels"


def from_scikit_learn(kernel: Any, d: int) -> Kernel:
    """The same function as a kernel of cglb.

    Args:
        kernel: one of `sklearn.gaussian_process.kernels`.
        d: columns of the inputs.

    Raises:
        ValueError: if cglb has no such kernel.
    """
    name = type(kernel).__name__
    if name not in TRANSLATIONS:
        raise ValueError(
            f"scikit-learn's {name} has no counterpart here. Those that have one: "
            f"{', '.join(TRANSLATIONS)}."
        )
    return TRANSLATIONS[name](kernel, d)


def _sum(kernel: Any, d: int) -> Kernel:
    parts = [part for part in (kernel.k1, kernel.k2) if type(part).__name__ != "WhiteKernel"]
    if not parts:
        raise ValueError("A sum of two WhiteKernels is noise only: add a kernel for the function.")
    found = [from_scikit_learn(part, d) for part in parts]
    return found[0] if len(found) == 1 else found[0] + found[1]


def _product(kernel: Any, d: int) -> Kernel:
    parts = (kernel.k1, kernel.k2)
    constant = next((part for part in parts if type(part).__name__ == "ConstantKernel"), None)
    if constant is None:
        return from_scikit_learn(kernel.k1, d) * from_scikit_learn(kernel.k2, d)
    other = parts[1] if constant is parts[0] else parts[0]
    return float(constant.constant_value) * from_scikit_learn(other, d)


def _matern(kernel: Any, d: int) -> Kernel:
    if kernel.nu not in MATERN:
        raise ValueError(f"Matern(nu={kernel.nu}): nu must be one of {', '.join(map(str, MATERN))}.")
    return MATERN[kernel.nu](kernel.length_scale)


def _periodic(kernel: Any, d: int) -> Kernel:
    if d > 1:
        raise ValueError(
            f"ExpSineSquared on {d} columns repeats in the distance of rows, which is not a covariance. "
            "Use cglb.Periodic, which repeats in each column, with .on(…) for one of them."
        )
    return Periodic(kernel.length_scale, kernel.periodicity)


def _white(kernel: Any, d: int) -> Kernel:
    raise ValueError("A WhiteKernel is noise, which every model here learns: leave it out.")


TRANSLATIONS: dict[str, Callable[[Any, int], Kernel]] = {
    "RBF": lambda kernel, d: RBF(kernel.length_scale),
    "Matern": _matern,
    "RationalQuadratic": lambda kernel, d: RationalQuadratic(kernel.length_scale, alpha=kernel.alpha),
    "ExpSineSquared": _periodic,
    "DotProduct": lambda kernel, d: Linear(np.ones(d)) + float(kernel.sigma_0) ** 2,
    "ConstantKernel": lambda kernel, d: Constant(kernel.constant_value),
    "Sum": _sum,
    "Product": _product,
    "Exponentiation": lambda kernel, d: from_scikit_learn(kernel.kernel, d) ** int(kernel.exponent),
    "WhiteKernel": _white,
}
