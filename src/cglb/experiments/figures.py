"""The paper's figures from a store of runs, as SVG and PNG.

They are readable without colour: every method has its own line style and marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, StrMethodFormatter

from cglb.experiments.runs import Run
from cglb.experiments.series import Series, series_of

__all__ = ["draw"]

CG_TICKS = (0, 1, 3, 10, 30, 100, 300, 1000)
WHISKERS = (5, 95)
RC: dict[Any, Any] = {
    "svg.hashsalt": "cglb",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.titlesize": 10,
}


def draw(runs: Iterable[Run], folder: Path, formats: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Draw every figure for which the runs hold results.

    Returns:
        The files written, one per figure and format.
    """
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        if run.history():  # a run without a step has nothing to show and does not count as a split
            by_data.setdefault(run.spec.data, []).append(run)
    written: list[Path] = []
    with matplotlib.rc_context(RC):
        for data, of_data in by_data.items():
            series = series_of(of_data)
            grid = [one for one in series if one.kind == "iterative"]
            usual = [one for one in series if not one.label.startswith("iterative-")]
            for name, figure in (
                ("rmse-nlpd", _over_time(data, usual)),
                ("cg-steps", _cg_steps(data, usual)),
                ("bound", _bounds(data, usual)),
                ("iterative-grid", _over_time(data, grid) if grid else None),
            ):
                if figure is not None:
                    written += _save(figure, folder / f"{data}-{name}", formats)
    return written


def _title(data: str, series: list[Series]) -> str:
    splits = {run.spec.split for one in series for run in one.runs}
    return f"{data}, {len(splits)} split{'s' if len(splits) > 1 else ''}"


# ---- test scores over time ----


def _over_time(data: str, series: list[Series]) -> Figure | None:
    """Median and quartiles of RMSE and NLPD over the splits, against seconds of training."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)  # pyright: ignore
    axes = figure.subplots(1, 2)
    for axis, name, title in zip(axes, ("rmse", "nlpd"), ("test RMSE", "test NLPD"), strict=True):
        bands = []
        for one in series:
            curves = [(seconds, values) for _, seconds, values in one.scores(name)]
            if curves:
                bands.append(_median_and_quartiles(axis, curves, one))
        if not bands:
            return None
        _fit_axes(axis, bands)
        axis.set(xlabel="training time [s]", ylabel=title)
    _legend(figure, axes[0])
    figure.suptitle(f"{_title(data, series)}: median, quartiles shaded", fontsize=10)
    return figure


@dataclass(frozen=True)
class Band:
    """Quartiles over the splits.

    Attributes:
        times: seconds of training [k].
        low: first quartile [k].
        middle: median [k].
        high: third quartile [k].
    """

    times: np.ndarray
    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray


def _median_and_quartiles(axis: Axes, curves: list[tuple[np.ndarray, np.ndarray]], one: Series) -> Band:
    """Draw median and quartiles over the splits, interpolated at all times when a split has a value.

    The curves start at the first time when every split has a value. A split that has ended keeps its
    last value.
    """
    grid = np.unique(np.concatenate([times for times, _ in curves]))
    grid = grid[grid >= max(times[0] for times, _ in curves)]
    values = np.array([np.interp(grid, times, value) for times, value in curves])
    band = Band(grid, *np.percentile(values, [25, 50, 75], axis=0))
    every = _every(len(grid))
    axis.plot(grid, band.middle, label=one.label, markevery=every, ms=4, lw=1.4, **one.style)
    if len(curves) > 1:
        axis.fill_between(grid, band.low, band.high, color=one.style["color"], alpha=0.15, lw=0)
    return band


def _fit_axes(axis: Axes, bands: list[Band]) -> None:
    """Set the limits by the later half of the curves; the first steps are far off and would hide it.

    Time is logarithmic if some methods take much longer than others.
    """
    low = min(float(band.low.min()) for band in bands)
    high = max(float(band.high[len(band.high) // 2 :].max()) for band in bands)
    room = max(high - low, 1e-3)
    top = max(float(band.high.max()) for band in bands)
    axis.set_ylim(low - 0.08 * room, min(high + 0.4 * room, top + 0.08 * room))
    ends = [float(band.times[-1]) for band in bands]
    if max(ends) > 8.0 * min(ends):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_xlim(left=0.0)


# ---- CG steps ----


def _cg_steps(data: str, series: list[Series]) -> Figure | None:
    """CG steps per evaluation: the mean over splits (faint) and smoothed, and a box plot of all."""
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axis = figure.subplots()
    boxes = []
    for one in series:
        found = one.cg_steps()
        if not found:
            continue
        count = max(map(len, found))
        padded = np.full((len(found), count), np.nan)
        for row, values in zip(padded, found, strict=True):
            row[: len(values)] = [np.mean(of_step) if of_step else np.nan for of_step in values]
        with_cg = ~np.isnan(padded).all(axis=0)
        steps, mean = 1 + np.flatnonzero(with_cg), np.nanmean(padded[:, with_cg], axis=0)
        style = {**one.style, "marker": None}
        axis.plot(steps, mean, lw=0.7, alpha=0.35, color=one.style["color"])
        axis.plot(steps, _smooth(mean), lw=1.6, **style)
        axis.plot([], [], label=one.label, lw=1.6, ms=4, **one.style)  # for the legend: line and marker
        axis.plot(
            steps, _smooth(mean), ls="", ms=4, marker=one.style["marker"], color=one.style["color"],
            markevery=_every(len(steps)),
        )  # fmt: skip
        boxes.append((one, np.concatenate([of_step for values in found for of_step in values])))
    if not boxes:
        return None
    most = max(float(values.max()) for _, values in boxes)
    _log1p(axis, most)
    # the upper half is left free for the box plot
    axis.set_ylim(-0.05, np.expm1(1.9 * np.log1p(max(most, 1.0))))
    axis.set(xlabel="optimiser step", ylabel="CG steps per evaluation, log(x + 1)")
    axis.set_title(f"{_title(data, [one for one, _ in boxes])}: mean, faint, and smoothed")
    _legend(figure, axis)
    _box(axis, boxes, most)
    return figure


def _box(axis: Axes, boxes: list[tuple[Series, np.ndarray]], most: float) -> None:
    inset = axis.inset_axes((0.45, 0.57, 0.53, 0.36))
    drawn = inset.boxplot(
        [values for _, values in boxes],
        whis=WHISKERS,
        showfliers=False,
        widths=0.6,
        medianprops={"color": "black"},
        tick_labels=[one.label for one, _ in boxes],
    )
    for (one, _), box in zip(boxes, drawn["boxes"], strict=True):
        box.set(color=one.style["color"], linestyle=one.style["linestyle"])
    _log1p(inset, most)
    inset.set_ylim(-0.05, 1.1 * max(most, 1.0))
    inset.tick_params(labelsize=7)
    if len(boxes) > 4:
        inset.tick_params(axis="x", labelrotation=20)
    inset.set_title("all evaluations: quartiles, whiskers at 5 and 95 %", fontsize=7)


def _log1p(axis: Axes, most: float) -> None:
    axis.set_yscale("function", functions=(np.log1p, np.expm1))
    axis.yaxis.set_major_locator(FixedLocator([tick for tick in CG_TICKS if tick <= max(most, 1.0)]))
    axis.yaxis.set_minor_locator(NullLocator())


def _smooth(values: np.ndarray) -> np.ndarray:
    """A moving average; the window is shorter at both ends."""
    width = max(3, len(values) // 15)
    kernel = np.ones(width)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


# ---- the bound and the exact value ----


def _bounds(data: str, series: list[Series]) -> Figure | None:
    """The bound over the steps, and the exact log marginal likelihood at the same hyperparameters."""
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axis = figure.subplots()
    middles, tops = [], []
    for one in series:
        for steps, bound in one.history("bound"):
            axis.plot(steps, bound, lw=1.4, **{**one.style, "marker": None})
            middles.append(float(bound[len(bound) // 2]))
            tops.append(float(bound.max()))
        axis.plot([], [], label=one.label, lw=1.4, ms=5, fillstyle="none", **one.style)
        for steps, _, exact in one.scores("exact_lml"):
            axis.plot(steps, exact, ms=6, fillstyle="none", mew=1.2, **{**one.style, "linestyle": ""})
            tops.append(float(exact.max()))
    if not middles:
        return None
    # from where all lines have half of their steps behind them: the first ones would hide the rest
    low, high = min(middles), max(tops)
    axis.set_ylim(low - 0.1 * (high - low), high + 0.05 * (high - low))
    axis.set(xlabel="optimiser step", ylabel="log marginal likelihood [nats]")
    axis.set_title(f"{_title(data, series)}: lines are bounds, open markers exact values (Cholesky)")
    _legend(figure, axis)
    return figure


# ---- shared ----


def _every(count: int, shown: int = 8) -> int:
    return max(1, count // shown)


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    # as many columns as fit on one line of text
    columns = max(1, min(len(labels), int(11 * figure.get_figwidth()) // (max(map(len, labels)) + 8)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    for one in figure.axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.25, lw=0.5)


def _save(figure: Figure, stem: Path, formats: Sequence[str]) -> list[Path]:
    """Write a file per format, SVG without a date, so that the same data give the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(f"{stem.name}.{one}") for one in formats]
    for path in files:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return files
