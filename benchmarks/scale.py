"""Time and memory of one CGLB value and gradient against n and m, with fitted exponents.

    python benchmarks/scale.py

The data are from the robot arm; v is given and CG takes no step. Each point runs in a separate process,
so that its peak memory is measured separately. Writes JSON and a plot.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from common import RESULTS, machine, write
from sides import run_side

import cglb

matplotlib.use("agg")
import matplotlib.pyplot as plt


def point(n: int, m: int, repeats: int, folder: Path) -> dict[str, Any]:
    data = cglb.datasets.robot_arm(n, noise=0.1, seed=0)
    X = (data.X - data.X.mean(0)) / data.X.std(0)
    y = (data.y - data.y.mean()) / data.y.std()
    rng = np.random.default_rng(0)
    d = X.shape[1]
    inputs = folder / "in.npz"
    np.savez(
        inputs, X=X, y=y, Z=X[rng.choice(n, m, replace=False)], v=0.01 * rng.normal(size=n),
        lengthscale=np.full(d, 3.0), variance=1.0, noise=0.05, mean=0.0,
    )  # fmt: skip
    found = run_side(f"n = {n}, m = {m}", None, "run_cglb.py", "cglb", inputs, repeats, ["--no-cg"])
    assert found is not None
    return {"n": n, "m": m, **{k: found[k] for k in ("median", "best", "first", "memory_gb")}}


def exponent(points: list[dict[str, Any]], x: str, y: str) -> float:
    """The slope of log y over log x by least squares."""
    return float(np.polyfit(np.log([p[x] for p in points]), np.log([p[y] for p in points]), 1)[0])


def plot(path: Path, by_n: list[dict], by_m: list[dict], fitted: dict[str, float]) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axis, points, x, y, label in (
        (axes[0], by_n, "n", "best", "seconds"),
        (axes[1], by_n, "n", "memory_gb", "GB above start-up"),
        (axes[2], by_m, "m", "best", "seconds"),
    ):
        axis.loglog([p[x] for p in points], [p[y] for p in points], "ko-", markersize=4)
        fixed = f"m = {by_n[0]['m']}" if x == "n" else f"n = {by_m[0]['n']}"
        axis.set(xlabel=x, ylabel=label, title=f"{fixed}: exponent {fitted[f'{y} in {x}']:.2f}")
        axis.set_xticks([p[x] for p in points], [f"{p[x]:,}" for p in points], rotation=45)
        axis.set_yticks([p[y] for p in points], [f"{p[y]:.2g}" for p in points])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="2000,5000,10000,20000,50000,100000")
    parser.add_argument("--inducing", default="128,256,512,1024,2048")
    parser.add_argument("--fixed-rows", type=int, default=10_000)
    parser.add_argument("--fixed-inducing", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=RESULTS / "scale.json")
    parser.add_argument("--plot", type=Path, default=RESULTS / "scale.png")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_n = [
            point(int(n), options.fixed_inducing, options.repeats, folder)
            for n in options.rows.split(",")
        ]
        by_m = [
            point(options.fixed_rows, int(m), options.repeats, folder)
            for m in options.inducing.split(",")
        ]
    fitted = {
        "best in n": exponent(by_n, "n", "best"),
        "memory_gb in n": exponent(by_n, "n", "memory_gb"),
        "best in m": exponent(by_m, "m", "best"),
    }
    print("exponents:", {name: round(value, 2) for name, value in fitted.items()})
    write(options.json, {"by_n": by_n, "by_m": by_m, "exponents": fitted, "machine": machine()})
    plot(options.plot, by_n, by_m, fitted)


if __name__ == "__main__":
    main()
