"""Covariance functions."""

from cglb.kernels.base import Kernel, find, names, relevance
from cglb.kernels.combinations import Columns, Power, Product, Scaled, Sum
from cglb.kernels.linear import Constant, Linear
from cglb.kernels.periodic import Periodic
from cglb.kernels.stationary import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
    Stationary,
)

__all__ = [
    "RBF",
    "Columns",
    "Constant",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Power",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Stationary",
    "Sum",
    "find",
    "names",
    "relevance",
]
