"""Figures of benchmarks/iterative.py, from its JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np

TITLES = ("log p(y): estimate (lines), exact (marks)", "noise σ²", "test RMSE")


def draw_cg_steps(result: dict, path: Path) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    sides = {"CGLB": "#0b6e99", "Iterative GP": "#c8501e"}
    ticks = [0, 1, 3, 10, 30, 100, 300, 1000]
    for side, colour in sides.items():
        steps = np.array(result[side]["steps"])
        x = np.arange(1, len(steps) + 1)
        axes.plot(x, steps, "o", color=colour, alpha=0.35, markersize=2.5, markeredgewidth=0)
        axes.plot(x, running_median(steps), color=colour, label=side)
    inset = axes.inset_axes((0.55, 0.72, 0.43, 0.26))  # the axis leaves room for it above the data
    boxes = inset.boxplot(
        [result[side]["steps"] for side in sides],
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        widths=0.6,
        patch_artist=True,
        medianprops={"color": "black", "linewidth": 1.5},
    )
    for box, colour in zip(boxes["boxes"], sides.values(), strict=True):
        box.set_facecolor(colour)
    inset.set_yticks([1, 2], list(sides), fontsize=8)
    inset.set_xscale("function", functions=(np.log1p, np.expm1))
    axes.set_yscale("function", functions=(np.log1p, np.expm1))
    highest = max(max(result[side]["steps"]) for side in sides)
    shown = [tick for tick in ticks if tick <= 1.5 * highest + 1]
    axes.set_yticks(shown, [str(tick) for tick in shown])
    inset.set_xticks(shown, [str(tick) for tick in shown], fontsize=7)
    axes.set_ylim(-0.1, (highest + 1.0) ** 1.6)
    inset.set_xlim(-0.1, 1.3 * highest + 1)
    axes.set_xlabel("evaluation")
    axes.set_ylabel("CG steps, log(x + 1)")
    axes.set_title(f"CG steps per evaluation on {result['settings']['data']}, n = {result['n']}")
    axes.legend(frameon=False, loc="upper left")
    save(figure, path)


def running_median(values: np.ndarray, width: int = 15) -> np.ndarray:
    half = width // 2
    return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])


def draw_instability(result: dict, path: Path) -> None:
    plt = pyplot()
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    rates = sorted({run["rate"] for run in result["runs"].values()}, reverse=True)
    floors = sorted({run["floor"] for run in result["runs"].values()}, reverse=True)
    colours = dict(zip(rates, ("#c8501e", "#0b6e99", "#5b8c2a", "#7a4fa3"), strict=False))
    styles = dict(zip(floors, ("-", "--", ":"), strict=False))
    for name, run in result["runs"].items():
        look = {"color": colours[run["rate"]], "linestyle": styles[run["floor"]], "linewidth": 1.2}
        whole = [row for row in run["history"] if row["rows"] == result["n"]]
        step = [row["step"] for row in whole]
        panels[0].plot(step, [row["bound"] for row in whole], label=name, **look)
        exact = [(point["step"], point["exact"]) for point in run["points"] if "exact" in point]
        if exact:
            mark = {"-": "o", "--": "x", ":": "+"}[look["linestyle"]]
            panels[0].plot(*zip(*exact, strict=True), mark, color=look["color"], markersize=4)
        panels[1].plot(step, [row["noise"] for row in whole], **look)
        steps, rmse = ([point[key] for point in run["points"]] for key in ("step", "rmse"))
        panels[2].plot(steps, rmse, **look)
    for panel, title in zip(panels, TITLES, strict=True):
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("step")
    panels[1].set_yscale("log")
    panels[2].set_yscale("log")
    panels[0].legend(frameon=False, fontsize=7)
    figure.suptitle(f"Iterative GP on {result['settings']['data']}, n = {result['n']}")
    save(figure, path)


def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"drew {path}")
