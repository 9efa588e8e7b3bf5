"""Pictures of fitted models with matplotlib, in scikit-learn's style.

Each display has `from_estimator`, which computes and draws, and `plot`, which draws again:

    from cglb.plot import CalibrationDisplay
    CalibrationDisplay.from_estimator(model, X_test, y_test)

Without X and y, displays of predictions leave out one training row at a time. Only drawing imports
matplotlib.
"""

from cglb.plot.model import EvidenceDisplay, RelevanceDisplay, TrainingDisplay
from cglb.plot.predictions import CalibrationDisplay, PartialDependenceDisplay, PredictionDisplay

__all__ = [
    "CalibrationDisplay",
    "EvidenceDisplay",
    "PartialDependenceDisplay",
    "PredictionDisplay",
    "RelevanceDisplay",
    "TrainingDisplay",
]
