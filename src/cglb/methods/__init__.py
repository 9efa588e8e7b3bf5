"""What training maximises: one file per method, found by name through `methods.find`."""

from cglb.methods.base import (
    Conditioned,
    Evaluation,
    Method,
    Prepared,
    condition,
    find,
    finite_or_none,
    names,
)
from cglb.methods.cglb import CGLB
from cglb.methods.exact import Exact
from cglb.methods.iterative import Iterative
from cglb.methods.sgpr import SGPR
from cglb.methods.stages import Stage, Start

__all__ = [
    "CGLB",
    "SGPR",
    "Conditioned",
    "Evaluation",
    "Exact",
    "Iterative",
    "Method",
    "Prepared",
    "Stage",
    "Start",
    "condition",
    "find",
    "finite_or_none",
    "names",
]
