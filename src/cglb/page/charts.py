"""The pictures of the report."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm

from cglb.bounds.certificate import Evidence
from cglb.data.table import Kind
from cglb.diagnostics import Dependence, Held, calibration
from cglb.page.svg import Chart, bars, number

__all__ = [
    "calibrated",
    "depends",
    "evidence",
    "observed",
    "relevance",
    "residuals",
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
    return chart.line(grid, norm.pdf(grid)).svg()


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


def training(history: list[Any]) -> tuple[str, str | None]:
    """The bound over the steps, and CG's steps if there were any."""
    steps = np.array([float(row["step"]) for row in history])
    bounds = np.array([row["bound"] for row in history])
    # the first steps may be far below: they would flatten the rest
    low = max(bounds.min(), np.quantile(bounds, 0.5) - 4 * (bounds.max() - np.quantile(bounds, 0.5)) - 1)
    chart = Chart.around(steps, [low, bounds.max()], "The bound during training",
                         labels=("step", "bound [nats]"))  # fmt: skip
    shown = bounds >= chart.y[0]
    first = chart.line(steps[shown], bounds[shown])
    if len(steps) == 1:
        first.dots(steps, bounds, size=4)
    counts = [row["cg_steps"] or 0 for row in history]
    if all(row["cg_steps"] is None for row in history):
        return first.svg(), None
    ends, top = (float(steps[0]) - 1, float(steps[-1]) + 1), max(max(counts) * 1.1, 5.0)
    second = Chart(ends, (0.0, top), "Steps of CG", labels=("step", "steps of CG"), height=200)
    return first.svg(), second.columns(steps, counts, 0.8).svg()


def evidence(found: Evidence, bound: float) -> str:
    """The interval for log p(y) on a line, with the bound of training."""
    middle = (found.lower + found.upper) / 2
    chart = Chart.around([found.lower, found.upper, bound, middle - 1, middle + 1], [-1.0, 1.0],
                         "Evidence", labels=("log p(y) in nats", ""), height=150)  # fmt: skip
    chart.line([bound, bound], [-0.8, 0.5], "dash")
    chart.line([found.lower, found.upper], [0, 0], "thick").dots(
        [found.lower, found.upper], [0, 0], size=5
    )
    low, high = chart.x
    words = f"between {found.lower:,.2f} and {found.upper:,.2f}"
    chart.text((low + high) / 2, 0.55, words)
    # the words stay inside the picture
    place = float(np.clip(bound, low + 0.3 * (high - low), high - 0.3 * (high - low)))
    return chart.text(place, -0.95, f"dashed: bound in training, {number(bound)}", "small").svg(
        vertical=False
    )
