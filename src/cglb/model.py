"""The model: y = f(X) + noise, f a Gaussian process with constant mean."""

from __future__ import annotations

import equinox as eqx
import numpy as np

from cglb.core.parameters import check_parameter, describe, parameter
from cglb.core.precision import Number, is_traced
from cglb.kernels.base import Kernel

__all__ = ["GP"]


class GP(eqx.Module):
    """y ~ N(mean, K + noise·I), K the kernel's covariances at the inputs.

    All values are natural (not logarithms). A pytree whose leaves are exactly the hyperparameters.

    Args:
        kernel: the covariance function.
        noise: the variance σ² of the observations.
        mean: the constant prior mean μ.
    """

    kernel: Kernel
    noise: Number = parameter(1.0)
    mean: Number = parameter(0.0, real=True)

    def __check_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise ValueError(f"GP: kernel must be a cglb kernel, found {type(self.kernel).__name__}.")
        check_parameter("GP", "noise", self.noise, 0)
        if self.mean.ndim != 0:
            raise ValueError(f"GP: mean must be a number, found shape {self.mean.shape}.")
        if not is_traced(self.mean) and not np.isfinite(self.mean):
            raise ValueError(f"GP: mean must be finite, found {self.mean}.")

    def __repr__(self) -> str:
        return describe(self)
