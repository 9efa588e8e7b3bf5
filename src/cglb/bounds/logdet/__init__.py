"""Bounds on log|K̂|, one family per file. `find` takes a bound's key or the bound itself."""

from cglb.bounds.logdet.auto import Auto
from cglb.bounds.logdet.base import LogdetBound, Side, by_cost, find, names
from cglb.bounds.logdet.chain import Chain
from cglb.bounds.logdet.moments import Moments
from cglb.bounds.logdet.nystrom import AMGM, Hadamard, Nystrom, Spectral, Trace, Waterfill

__all__ = [
    "AMGM",
    "Auto",
    "Chain",
    "Hadamard",
    "LogdetBound",
    "Moments",
    "Nystrom",
    "Side",
    "Spectral",
    "Trace",
    "Waterfill",
    "by_cost",
    "find",
    "names",
]
