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
from cglb.methods.choice import AUTO, Choice, choose
from cglb.methods.exact import Exact
from cglb.methods.iterative import Iterative
from cglb.methods.sgpr import SGPR
from cglb.methods.stages import Stage, Start

__all__ = [
    "AUTO",
    "CGLB",
    "SGPR",
    "Choice",
    "Conditioned",
    "Evaluation",
    "Exact",
    "Iterative",
    "Method",
    "Prepared",
    "Stage",
    "Start",
    "choose",
    "condition",
    "find",
    "finite_or_none",
    "names",
]
