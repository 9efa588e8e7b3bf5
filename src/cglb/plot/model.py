"""Pictures of the model itself: its training, its inputs, its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cglb.bounds.interval import Evidence
from cglb.diagnostics import Climb, climbs
from cglb.plot.base import BLUE, GREY, Display
from cglb.regressor import GPRegressor

__all__ = ["EvidenceDisplay", "RelevanceDisplay", "TrainingDisplay"]


@dataclass
class TrainingDisplay(Display):
    """The bound over the steps of training, one line per stage, and the steps of CG.

    Attributes:
        stages: the bound per row in each stage, in standardised units.
        cg_steps: steps of CG at each step; None without CG.
        what: what was maximised: a bound, log p(y) or an estimate of it.
    """

    stages: list[Climb]
    cg_steps: list[int | None]
    what: str = "bound"

    @classmethod
    def from_estimator(cls, model: GPRegressor, *, ax: Any = None) -> TrainingDisplay:
        """Draw the training of a fitted model."""
        steps = [row["cg_steps"] for row in model.history_]
        return cls(climbs(model), steps, model.fit_report_.maximised).plot(ax)

    def plot(self, ax: Any = None) -> TrainingDisplay:
        """Draw on the axes, or on new ones; steps of CG on a second scale."""
        axes = self._axes(ax, xlabel="step", ylabel=f"{self.what} per row [nats]")
        if any(steps is not None for steps in self.cg_steps):
            second = axes.twinx()
            numbers = range(1, len(self.cg_steps) + 1)
            second.bar(numbers, [steps or 0 for steps in self.cg_steps], color=GREY, alpha=0.35)
            second.set_ylabel("steps of CG")
            second.spines[["top"]].set_visible(False)
            axes.set_zorder(second.get_zorder() + 1)  # the line in front of the bars
            axes.patch.set_visible(False)
        for stage in self.stages:
            axes.plot(stage.steps, stage.bounds, color=BLUE, marker="o", markevery=[-1], ms=4)
        return self


@dataclass
class RelevanceDisplay(Display):
    """The relevance of each input, the largest 1.

    Attributes:
        relevance: by name.
    """

    relevance: dict[str, float]

    @classmethod
    def from_estimator(cls, model: GPRegressor, *, ax: Any = None) -> RelevanceDisplay:
        """Draw the relevance of the inputs of a fitted model."""
        return cls(model.relevance_).plot(ax)

    def plot(self, ax: Any = None) -> RelevanceDisplay:
        """Draw on the axes, or on new ones."""
        axes = self._axes(ax, xlabel="relevance (inverse lengthscale, largest 1)")
        pairs = sorted(self.relevance.items(), key=lambda pair: pair[1])
        axes.barh([name for name, _ in pairs], [value for _, value in pairs], color=BLUE)
        return self


@dataclass
class EvidenceDisplay(Display):
    """The interval that contains the log marginal likelihood.

    Attributes:
        evidence: the interval.
        bound: the value that training ended with.
        what: what that is: a bound, log p(y) or an estimate of it.
    """

    evidence: Evidence
    bound: float
    what: str = "bound"

    @classmethod
    def from_estimator(
        cls, model: GPRegressor, *, tolerance: float | None = None, ax: Any = None
    ) -> EvidenceDisplay:
        """Draw the evidence of a fitted model, refined to `tolerance` nats if that is given."""
        report = model.fit_report_
        return cls(model.evidence(tolerance), report.bound, report.maximised).plot(ax)

    def plot(self, ax: Any = None) -> EvidenceDisplay:
        """Draw on the axes, or on new ones."""
        axes = self._axes(ax, xlabel="log p(y) [nats]")
        found = self.evidence
        axes.plot([found.lower, found.upper], [0, 0], "|-", color=BLUE, lw=6, ms=18, mew=2)
        axes.annotate(
            f"between {found.lower:.2f} and {found.upper:.2f}",
            ((found.lower + found.upper) / 2, 0), (0, 18), textcoords="offset points", ha="center",
        )  # fmt: skip
        axes.axvline(self.bound, color=GREY, ls="--", lw=1, label=f"{self.what} in training")
        axes.set(ylim=(-1, 1), yticks=[])
        axes.legend(frameon=False, loc="lower right")
        return self
