"""The pictures of the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from cglb.bounds.interval import Evidence
from cglb.data.table import Kind
from cglb.diagnostics import Climb, Dependence, Held, calibration
from cglb.page.svg import Chart, bars, number

__all__ = [
    "calibrated",
    "depends",
    "evidence",
    "observed",
    "relevance",
    "residuals",
    "solves",
    "surprise",
    "training",
]

MOST_DOTS, MOST_SPANS, MOST_INPUTS = 800, 120, 24


def observed(held: Held, name: str) -> str:
    """Predicted against observed."""
    chosen = np.random.default_rng(0).permutation(len(held.y))
    few, many = chosen[:MOST_SPANS], chosen[:MOST_DOTS]
    ends = [float(held.y.min()), float(held.y.max())]
    chart = Chart.around(
        held.y, np.concatenate([held.mean, ends]), "Predicted against observed",
        labels=(f"observed {name}", f"predicted {name}"),
    )  # fmt: skip
    low, high = (np.clip(held.mean[few] + s * 1.96 * held.std[few], *chart.y) for s in (-1, 1))
    chart.spans(held.y[few], low, high).line(ends, ends, "dash")
    return chart.dots(held.y[many], held.mean[many]).svg()


def residuals(held: Held, name: str) -> str:
    """Observed minus predicted, against predicted."""
    many = np.random.default_rng(0).permutation(len(held.y))[:MOST_DOTS]
    rest = held.y - held.mean
    chart = Chart.around(
        held.mean, rest, "Residuals", labels=(f"predicted {name}", "observed minus predicted")
    )
    return chart.line(chart.x, [0.0, 0.0], "dash").dots(held.mean[many], rest[many]).svg()


def surprise(held: Held) -> str:
    """Residuals in standard deviations, as a histogram with the normal density."""
    z = np.clip((held.y - held.mean) / held.std, -5, 5)
    count = int(np.clip(np.sqrt(len(z)), 8, 40))
    height, edges = np.histogram(z, bins=count, range=(-5, 5), density=True)
    grid = np.linspace(-5, 5, 101)
    top = max(float(height.max()), 0.42)
    chart = Chart((-5.0, 5.0), (0.0, top * 1.05), "Residuals in standard deviations",
                  labels=("residual in standard deviations", "density"))  # fmt: skip
    chart.columns((edges[:-1] + edges[1:]) / 2, height, edges[1] - edges[0])
    return chart.line(grid, np.exp(-0.5 * grid**2) / np.sqrt(2.0 * np.pi)).svg()


def calibrated(held: Held) -> str:
    """The share of targets inside intervals of each probability."""
    levels, covered = calibration(held)
    chart = Chart((0.0, 1.0), (0.0, 1.0), "Calibration",
                  labels=("probability of the interval", "share of targets inside"))  # fmt: skip
    return chart.line([0, 1], [0, 1], "dash").line(levels, covered).dots(levels, covered, size=3).svg()


def relevance(values: dict[str, float]) -> str:
    """Relevance of the strongest inputs."""
    strongest = sorted(values.items(), key=lambda pair: -pair[1])[:MOST_INPUTS]
    return bars(dict(strongest), "Relevance of the inputs")


def depends(found: Dependence, target: str) -> str:
    """The average prediction as one input moves."""
    low, high = found.mean - 1.96 * found.std, found.mean + 1.96 * found.std
    named = found.kind in (Kind.TEXT, Kind.BOOLEAN)
    x = np.arange(len(found.values), dtype=float) if named else found.values.astype(float)
    chart = Chart.around(
        x, np.concatenate([low, high]), f"Dependence on {found.name}",
        labels=(found.name, f"average {target}"), dates=found.kind is Kind.DATE,
    )  # fmt: skip
    if not named:
        return chart.band(x, low, high).line(x, found.mean).svg()
    names = ["no" if v == 0 else "yes" for v in found.values] if found.kind is Kind.BOOLEAN else None
    chart.x = (-0.6, len(x) - 0.4)
    chart.spans(x, low, high).dots(x, found.mean, size=5)
    return chart.svg(names or [str(value) for value in found.values])


def training(stages: list[Climb], what: str) -> str:
    """What was maximised, such as the bound, over the steps of each stage, per row."""
    steps = np.concatenate([stage.steps for stage in stages])
    bounds = np.concatenate([stage.bounds for stage in stages])
    # the first steps may be far below: they would flatten the rest
    middle, high = float(np.median(bounds)), float(bounds.max())
    low = max(float(bounds.min()), middle - 4 * (high - middle) - 0.01)
    chart = Chart.around(steps, [low, high], f"Training: {what}",
                         labels=("step", f"{what} per row [nats]"))  # fmt: skip
    for stage in stages:
        shown = stage.bounds >= chart.y[0]
        chart.line(stage.steps[shown], stage.bounds[shown])
        chart.dots(stage.steps[shown][-1:], stage.bounds[shown][-1:], size=4)
    return chart.svg()


def solves(history: list[Any]) -> str | None:
    """The steps of CG at each step; None if there were none."""
    steps = [float(row["step"]) for row in history]
    counts = [row["cg_steps"] or 0 for row in history]
    if all(row["cg_steps"] is None for row in history):
        return None
    ends, top = (steps[0] - 1, steps[-1] + 1), max(max(counts) * 1.1, 5.0)
    chart = Chart(ends, (0.0, top), "Steps of CG", labels=("step", "steps of CG"), height=200)
    return chart.columns(steps, counts, 0.8).svg()


def evidence(found: Evidence, bound: float, what: str) -> str:
    """The interval for log p(y) on a line, with what training ended with, such as a bound."""
    # an end that rounding leaves open has no place in the picture
    ends = [end for end in (found.lower, found.upper) if np.isfinite(end)]
    middle = float(np.mean([*ends] or [bound]))
    chart = Chart.around([*ends, bound, middle - 1, middle + 1], [-1.0, 1.0],
                         "Evidence", labels=("log p(y) in nats", ""), height=150)  # fmt: skip
    chart.line([bound, bound], [-0.5, 0.4], "dash")
    low, high = chart.x
    chart.line(np.clip([found.lower, found.upper], low, high), [0, 0], "thick")
    chart.dots(ends, [0] * len(ends), size=5)
    lower, upper = f"{found.lower:,.2f}", f"{found.upper:,.2f}"
    words = lower if lower == upper else f"between {lower} and {upper}"
    chart.text((low + high) / 2, 0.55, words)
    # the words stay inside the picture
    place = float(np.clip(bound, low + 0.3 * (high - low), high - 0.3 * (high - low)))
    return chart.text(place, -0.95, f"dashed: {what} in training, {number(bound)}", "small").svg(
        vertical=False
    )
