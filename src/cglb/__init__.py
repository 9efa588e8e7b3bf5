"""Gaussian process regression with bounds you can trust.

Models and kernels, training, evidence, and what they rest on; more is in the sub-packages:
`kernels`, `linalg`, `bounds`, `posteriors`, `methods`, `optimisers`, `training`, `data`.
"""

from cglb import bounds, distributed, kernels, methods, posteriors
from cglb.bounds.comparison import Comparison, compare
from cglb.bounds.interval import Evidence, certify
from cglb.core.precision import float64
from cglb.data import datasets, metrics
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
from cglb.linalg import inducing
from cglb.linalg.system import Solver, System, solve
from cglb.methods import CGLB, SGPR, Exact, Iterative, Stage
from cglb.model import GP
from cglb.regressor import GPRegressor
from cglb.training.history import Fit
from cglb.training.trainer import train

# grouped as a reader would look for them, not by the alphabet
__all__ = [  # noqa: RUF022
    # models
    "GPRegressor",
    "GP",
    # kernels
    "Kernel",
    "RBF",
    "Matern12",
    "Matern32",
    "Matern52",
    "RationalQuadratic",
    "Periodic",
    "Linear",
    "Constant",
    # training
    "train",
    "Fit",
    "Stage",
    "CGLB",
    "SGPR",
    "Exact",
    "Iterative",
    # evidence
    "certify",
    "Evidence",
    "compare",
    "Comparison",
    # linear algebra
    "System",
    "Solver",
    "solve",
    "float64",
    # sub-packages and modules for research and for data
    "bounds",
    "datasets",
    "distributed",
    "inducing",
    "kernels",
    "methods",
    "metrics",
    "posteriors",
]
__version__ = "0.1.0"
