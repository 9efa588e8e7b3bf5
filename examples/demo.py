"""A demo on simulated data: learn a robot arm with eight joints, compare with simple methods, and draw.

make demo            (or: python examples/demo.py --output demo)
"""

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cglb import GPRegressor
from cglb.data import datasets, metrics


def compare(split, model: GPRegressor) -> Table:
    """Errors on held-out rows of the GP and of two simple methods."""
    table = Table(title="Held-out rows", title_justify="left")
    for column in ("model", "RMSE", "R²", "NLPD", "coverage of 95 % intervals"):
        table.add_column(column, justify="left" if column == "model" else "right")
    mean, std = model.predict(split.X_test, return_std=True)
    y = split.y_test
    table.add_row(
        "cglb",
        f"{metrics.rmse(y, mean):.4f}",
        f"{metrics.r2(y, mean):.4f}",
        f"{metrics.nlpd(y, mean, std**2):.3f}",
        f"{100 * metrics.coverage(y, mean, std**2):.1f} %",
    )
    others = {
        "10 nearest neighbours": make_pipeline(
            StandardScaler(), KNeighborsRegressor(10, weights="distance")
        ),
        "linear": LinearRegression(),
    }
    for name, other in others.items():
        mean = other.fit(split.X_train, split.y_train).predict(split.X_test)
        table.add_row(name, f"{metrics.rmse(y, mean):.4f}", f"{metrics.r2(y, mean):.4f}", "–", "–")
    return table


def draw_predictions(split, model: GPRegressor, path: Path) -> None:
    """Predicted against observed, with intervals for some rows, and the relevance of the inputs."""
    mean, std = model.predict(split.X_test, return_std=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), width_ratios=[3, 2])
    few = np.random.default_rng(0).choice(len(mean), size=min(150, len(mean)), replace=False)
    left.errorbar(
        split.y_test[few], mean[few], yerr=1.96 * std[few], fmt="o", ms=3, lw=0.8, color="C0",
        ecolor="0.7", label="mean and 95 % interval",
    )  # fmt: skip
    ends = [split.y_test.min(), split.y_test.max()]
    left.plot(ends, ends, color="k", lw=1, ls="--", label="perfect")
    left.set(xlabel="observed distance", ylabel="predicted distance", title="150 held-out rows")
    left.legend(frameon=False)
    names, values = zip(*model.relevance_.items(), strict=True)
    right.barh(names, values, color="0.5")
    right.invert_yaxis()
    right.set(xlabel="relevance (inverse lengthscale, largest 1)", title="which joints matter")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_training(model: GPRegressor, path: Path) -> None:
    """The bound and the number of CG steps over the steps of training."""
    # the searches on few rows come first, and their bounds do not compare
    history = [row for row in model.history_ if row["stage"] == model.history_[-1]["stage"]]
    steps = [row["step"] for row in history]
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 4.6), sharex=True, height_ratios=[2, 1])
    top.plot(steps, [row["bound"] for row in history], color="C0")
    top.set(ylabel="bound [nats]", title="The bound during the last stage of training")
    bottom.bar(steps, [row["cg_steps"] for row in history], color="0.5")
    bottom.set(xlabel="optimiser step", ylabel="CG steps")
    for axis in (top, bottom):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3000, help="number of rows, two thirds for training")
    parser.add_argument("--inducing", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the pictures")
    options = parser.parse_args()

    console = Console()
    split = datasets.robot_arm(options.rows).split()
    console.print(f"Robot arm: {len(split.y_train)} training rows, {len(split.y_test)} held out.")
    started = time.perf_counter()
    model = GPRegressor(
        method="cglb",  # the default would be exact for so few rows, with nothing to certify
        kernel="rbf",
        num_inducing=options.inducing,
        max_steps=options.steps,
        random_state=0,
        progress=console.is_terminal,
    ).fit(split.X_train, split.y_train)
    console.print(f"\nFitted in {time.perf_counter() - started:.0f} s, including compilation.")
    console.print(str(model.fit_report_), highlight=False)
    console.print(f"Proven: {model.evidence()}.\n", highlight=False)
    console.print(compare(split, model))
    options.output.mkdir(parents=True, exist_ok=True)
    draw_predictions(split, model, options.output / "predictions.png")
    draw_training(model, options.output / "training.png")
    console.print(f"\nPictures: {options.output / 'predictions.png'}, {options.output / 'training.png'}")


if __name__ == "__main__":
    main()
