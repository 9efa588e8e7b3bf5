"""Gaussian process regression with bounds you can trust."""

from cglb import (
    bounds,
    constraints,
    datasets,
    inducing,
    iterative,
    logdet,
    love,
    metrics,
    posterior,
    variance,
)
from cglb.auto import Auto
from cglb.bounds import BoundTerms
from cglb.certificate import Evidence, certify
from cglb.cg import Solution, Stop, solve
from cglb.chain import Chain
from cglb.compare import Comparison, compare
from cglb.constraints import Parameters
from cglb.estimator import GPRegressor
from cglb.fitting import Fit
from cglb.iterative import Iterative
from cglb.iterative_training import train_iterative
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
from cglb.objective import Objective
from cglb.operator import DenseOperator, KernelOperator, kernel_operator
from cglb.precision import float64
from cglb.train import train

__all__ = [
    "GP",
    "RBF",
    "Auto",
    "BoundTerms",
    "Chain",
    "Comparison",
    "Constant",
    "DenseOperator",
    "Evidence",
    "Fit",
    "GPRegressor",
    "Iterative",
    "Kernel",
    "KernelOperator",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "NystromError",
    "Objective",
    "Parameters",
    "Periodic",
    "RationalQuadratic",
    "Solution",
    "Stop",
    "bounds",
    "certify",
    "compare",
    "constraints",
    "datasets",
    "float64",
    "inducing",
    "iterative",
    "kernel_operator",
    "logdet",
    "love",
    "metrics",
    "posterior",
    "solve",
    "train",
    "train_iterative",
    "variance",
]
__version__ = "0.1.0"
