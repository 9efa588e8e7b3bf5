"""The report of a fit, in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape

import numpy as np

from cglb.linalg.cg import Solution, Stop
from cglb.methods import Choice
from cglb.optimisers.base import Ending
from cglb.regressor.beginning import AUTO, Beginning
from cglb.training.history import Fit
from cglb.training.options import ENOUGH

__all__ = ["FitReport"]

# a positive parameter within this factor of its floor is "at" it
AT_FLOOR = 1.5
STOPPED_EARLY = (Ending.STEP_LIMIT, Ending.TIME_LIMIT, Ending.NO_IMPROVEMENT, Ending.NOT_FINITE)
MOST_INPUTS = 5


@dataclass(frozen=True)
class FitReport:
    """How a fit went. `str(report)` is the same in plain words.

    Attributes:
        stop: why training stopped.
        message: the reason in a sentence.
        steps: accepted steps.
        evaluations: how often the bound and its gradient were computed.
        seconds: the training time.
        bound: on the log marginal likelihood of the targets in their original units, in nats; with an
            exact method the log marginal likelihood itself.
        products: how many products with K̂ were computed, including those for predictions.
        slack: a certified bound on the nats that CG costs the final model; None without CG.
        cg_trouble: the number of steps at which CG stopped before its tolerance.
        jitter: the largest relative jitter that Kuu needed.
        at_floor: names of the parameters at their lower limit.
        rows: training rows.
        prediction_stop: why CG stopped for predictions; None without CG.
        method: the name of what was maximised.
        reason: why, if it was chosen automatically.
        exact: whether `bound` is the log marginal likelihood itself.
        spread: the standard error, if `bound` is an estimate and not a bound; otherwise None.
        remarks: sentences about odd data (see `cglb.data.remarks`).
        points: inducing points of the final model; 0 if there are none.
        points_reason: why so many, if their number was left open.
        rankings: after kernel="auto", the kernels that were compared: on how many rows, and the log p(y)
            of these in nats by the name of the kernel, the best first. The last one decided.
    """

    stop: str
    message: str
    steps: int
    evaluations: int
    seconds: float
    bound: float
    products: int
    slack: float | None
    cg_trouble: int
    jitter: float
    at_floor: tuple[str, ...]
    rows: int
    prediction_stop: str | None
    method: str = ""
    reason: str = ""
    exact: bool = False
    spread: float | None = None
    remarks: tuple[str, ...] = ()
    points: int = 0
    points_reason: str = ""
    rankings: tuple[tuple[int, dict[str, float]], ...] = ()

    @classmethod
    def of(
        cls,
        fit: Fit,
        solution: Solution | None,
        rows: int,
        floors: Mapping[str, float],
        y_scale: float,
        choice: Choice,
        start: Beginning,
        remarks: tuple[str, ...] = (),
    ) -> FitReport:
        """The report of a fit.

        Args:
            fit: the trained model.
            solution: CG's result for predictions; None without CG.
            rows: training rows.
            floors: the lower limit of each parameter by name.
            y_scale: the unit of the target, in which the bound is reported.
            choice: the method and why it was chosen.
            start: where training began.
            remarks: sentences about odd data.
        """
        last = fit.history[-1] if fit.history else None
        parameters = last["parameters"] if last else {}
        return cls(
            stop=fit.stop.value,
            message=fit.message,
            steps=len(fit.history),
            evaluations=fit.evaluations,
            seconds=fit.seconds + start.seconds,
            bound=fit.bound - rows * float(np.log(y_scale)),
            products=fit.products + (solution.products if solution else 0),
            slack=float(solution.slack) if solution else None,
            cg_trouble=sum(row["cg_stop"] not in (None, Stop.TOLERANCE.value) for row in fit.history),
            jitter=max((row["jitter"] for row in fit.history), default=0.0),
            at_floor=tuple(n for n, value in parameters.items() if value <= AT_FLOOR * floors[n]),
            rows=rows,
            prediction_stop=solution.stop.value if solution else None,
            method=choice.method.name,
            reason=choice.reason,
            exact=choice.method.is_exact,
            spread=last["spread"] if last else None,
            remarks=remarks,
            points=0 if fit.Z is None else len(fit.Z),
            rankings=tuple((rows, dict(ranking)) for rows, ranking in start.rankings),
        )

    @property
    def maximised(self) -> str:
        """What the values of training are called."""
        if self.spread is not None:
            return "estimate of log p(y)"
        return "log p(y)" if self.exact else "bound"

    def with_points(self, asked: int | str, most: int) -> FitReport:
        """The report that says why there are so many inducing points.

        Args:
            asked: what the user asked for.
            most: how many training could select.
        """
        if asked != AUTO or not self.points:
            return self
        reason = f"the most that {AUTO!r} takes for {self.rows} rows and this memory"
        if self.points < most:
            reason = f"more could raise the bound by at most {ENOUGH} nats"
        return replace(self, points_reason=reason)

    @property
    def concerns(self) -> tuple[str, ...]:
        """What a user should know before trusting the model, in sentences; empty if there is nothing."""
        found = []
        if self.stop in STOPPED_EARLY:
            found.append(f"Training has not converged: {self.message}")
        if self.cg_trouble:
            loss = "bounds are valid but looser" if self.spread is None else "estimates are biased"
            found.append(
                f"In {self.cg_trouble} steps conjugate gradients stopped before their tolerance: those "
                f"{loss}. More inducing points or a higher noise_floor help."
            )
        if self.prediction_stop not in (None, Stop.TOLERANCE.value):
            found.append(f"For predictions conjugate gradients stopped at: {self.prediction_stop}.")
        if self.at_floor:
            found.append(
                f"At the lower limit: {', '.join(self.at_floor)}. The data may be free of noise, or the "
                "kernel too rough for them."
            )
        return tuple(found)

    def summary(self, relevance: Mapping[str, float]) -> str:
        """The report as a piece of HTML, for notebooks.

        Args:
            relevance: of each input by name.
        """
        strongest = sorted(relevance.items(), key=lambda pair: -pair[1])[:MOST_INPUTS]
        inputs = ", ".join(f"{escape(name)} {value:.2f}" for name, value in strongest)
        words = "".join(f"<li>{escape(line)}</li>" for line in str(self).splitlines())
        return (
            f"<div><b>Gaussian process on {self.rows:,} rows</b><ul>{words}"
            f"<li>Most relevant inputs, the largest 1: {inputs}.</li></ul></div>"
        )

    @property
    def _evidence(self) -> str:
        """What training maximised, and its value."""
        if self.spread is not None:
            return (
                f"The log marginal likelihood is estimated as {self.bound:.2f} ± {self.spread:.2g} nats "
                "(standard error over probes). This is not a bound, and inexact solves bias it: "
                "evidence() gives an interval that contains the exact value."
            )
        what = "log marginal likelihood" if self.exact else "bound on the log marginal likelihood"
        return f"The {what} is {self.bound:.2f} nats."

    def _choices(self) -> list[str]:
        """What else was chosen automatically."""
        found = []
        if self.points_reason:
            found.append(f"Inducing points: {self.points} ({self.points_reason}).")
        for rows, ranking in self.rankings:
            values = ", ".join(f"{name} {value:.1f}" for name, value in ranking.items())
            found.append(f"Kernels by log p(y) of {rows} rows, in nats: {values}.")
        return found

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        lines = [
            f"Method: {self.method}{reason}.",
            *self._choices(),
            f"Training stopped after {self.steps} steps ({self.evaluations} evaluations, "
            f"{self.seconds:.1f} s): {self.stop}."
            # an early stop is explained among the concerns
            + ("" if self.stop in STOPPED_EARLY else f" {self.message}"),
            self._evidence,
        ]
        if self.slack is not None:
            lines.append(
                f"Conjugate gradients cost the final model at most {self.slack:.2g} nats; "
                f"{self.products} products with the {self.rows} x {self.rows} matrix were computed."
            )
        lines.extend(self.concerns)
        if self.jitter > 1e-8:
            lines.append(
                f"Jitter of up to {self.jitter:.1g} (relative) was needed to factor Kuu: inducing "
                "points nearly coincide in the scaled inputs."
            )
        return "\n".join([*lines, *self.remarks])
