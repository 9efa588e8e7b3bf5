"""The log marginal likelihood and its bounds, certificates and comparisons."""

from cglb.bounds.evidence import cglb, exact, quadratic_interval, sgpr, upper
from cglb.bounds.terms import BoundTerms

__all__ = ["BoundTerms", "cglb", "exact", "quadratic_interval", "sgpr", "upper"]
