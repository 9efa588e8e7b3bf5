"""Pictures of predictions: against observations, their calibration, and their dependence on inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cglb.data.table import Kind
from cglb.diagnostics import Dependence, Held, calibration, dependence
from cglb.plot.base import BLUE, GREY, Display, held_by, target_name
from cglb.regressor import GPRegressor

__all__ = ["CalibrationDisplay", "PartialDependenceDisplay", "PredictionDisplay"]

MOST_BARS = 150


@dataclass
class PredictionDisplay(Display):
    """Predicted against observed, with 95 % intervals for some rows.

    Attributes:
        held: the predictions.
        name: of the target.
    """

    held: Held
    name: str = "y"

    @classmethod
    def from_estimator(
        cls, model: GPRegressor, X: Any = None, y: Any = None, *, ax: Any = None
    ) -> PredictionDisplay:
        """Draw the predictions of rows X with targets y; without them, of training rows left out."""
        return cls(held_by(model, X, y), target_name(model)).plot(ax)

    def plot(self, ax: Any = None) -> PredictionDisplay:
        """Draw on the axes, or on new ones."""
        axes = self._axes(ax, xlabel=f"observed {self.name}", ylabel=f"predicted {self.name}")
        held = self.held
        few = np.random.default_rng(0).permutation(len(held.y))[:MOST_BARS]
        axes.errorbar(
            held.y[few], held.mean[few], yerr=1.96 * held.std[few], fmt="none", ecolor=GREY, lw=0.7,
            alpha=0.6, label="95 % interval",
        )  # fmt: skip
        axes.plot(held.y, held.mean, "o", ms=3, color=BLUE, alpha=0.7, label="prediction")
        ends = [held.y.min(), held.y.max()]
        axes.plot(ends, ends, "--", color="k", lw=1, label="perfect")
        axes.legend(frameon=False)
        return self


@dataclass
class CalibrationDisplay(Display):
    """The share of targets inside their intervals, for every probability.

    Attributes:
        levels: probabilities of intervals.
        covered: shares of targets inside.
    """

    levels: np.ndarray
    covered: np.ndarray

    @classmethod
    def from_estimator(
        cls, model: GPRegressor, X: Any = None, y: Any = None, *, ax: Any = None
    ) -> CalibrationDisplay:
        """Draw the calibration on rows X with targets y; without them, on training rows left out."""
        return cls(*calibration(held_by(model, X, y))).plot(ax)

    def plot(self, ax: Any = None) -> CalibrationDisplay:
        """Draw on the axes, or on new ones."""
        axes = self._axes(ax, xlabel="probability of the interval", ylabel="share of targets inside")
        axes.plot([0, 1], [0, 1], "--", color=GREY, lw=1, label="calibrated")
        axes.plot(self.levels, self.covered, "o-", ms=4, color=BLUE, label="this model")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.legend(frameon=False)
        return self


@dataclass
class PartialDependenceDisplay(Display):
    """The average prediction as one input moves, with a 95 % band.

    Attributes:
        found: the dependence.
        name: of the target.
    """

    found: Dependence
    name: str = "y"

    @classmethod
    def from_estimator(
        cls, model: GPRegressor, feature: str, *, ax: Any = None
    ) -> PartialDependenceDisplay:
        """Draw how the prediction depends on the input `feature`."""
        return cls(dependence(model, feature), target_name(model)).plot(ax)

    def plot(self, ax: Any = None) -> PartialDependenceDisplay:
        """Draw on the axes, or on new ones."""
        found = self.found
        axes = self._axes(ax, xlabel=found.name, ylabel=f"average {self.name}")
        low, high = found.mean - 1.96 * found.std, found.mean + 1.96 * found.std
        if found.kind in (Kind.TEXT, Kind.BOOLEAN):
            places = np.arange(len(found.values))
            axes.errorbar(places, found.mean, yerr=found.mean - low, fmt="o", color=BLUE)
            axes.set_xticks(places, [str(value) for value in found.values])
            return self
        values = found.values
        if found.kind is Kind.DATE:
            values = (values * 86400.0).astype("datetime64[s]")
        axes.fill_between(values, low, high, color=BLUE, alpha=0.2, lw=0)
        axes.plot(values, found.mean, color=BLUE)
        return self
