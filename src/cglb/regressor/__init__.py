"""`GPRegressor`: a Gaussian process with scikit-learn's conventions and the user's own units."""

from cglb.regressor.estimator import GPRegressor
from cglb.regressor.report import FitReport

__all__ = ["FitReport", "GPRegressor"]
