"""Gaussian process regression with bounds you can trust."""

from cglb import bounds, constraints, inducing, posterior
from cglb.bounds import BoundTerms
from cglb.cg import Solution, Stop, solve
from cglb.constraints import Parameters
from cglb.kernels import (
    RBF,
    Constant,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)
from cglb.model import GP
from cglb.nystrom import NystromError
from cglb.operator import DenseOperator, KernelOperator, kernel_operator
from cglb.precision import float64

__all__ = [
    "GP",
    "RBF",
    "BoundTerms",
    "Constant",
    "DenseOperator",
    "Kernel",
    "KernelOperator",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "NystromError",
    "Parameters",
    "Periodic",
    "RationalQuadratic",
    "Solution",
    "Stop",
    "bounds",
    "constraints",
    "float64",
    "inducing",
    "kernel_operator",
    "posterior",
    "solve",
]
__version__ = "0.1.0"
