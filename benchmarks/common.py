"""Shared by the benchmarks: data, timing, results as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np

import cglb
from cglb.data import datasets

matplotlib.use("agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results"


def standardised(name: str, rows: int | None = None, seed: int = 0):
    """The paper's split (2/3 for training, standardised by the training part) of a named set.

    Args:
        name: of the data set.
        rows: use only the first training rows; None for all.
        seed: of the split.

    Returns:
        X_train, y_train, X_test and y_test.
    """
    split = datasets.load(name).split(seed=seed).standardised()
    if rows is None:
        return split.X_train, split.y_train, split.X_test, split.y_test
    return split.X_train[:rows], split.y_train[:rows], split.X_test, split.y_test


def timed(function: Callable[[], Any], repeats: int = 5) -> dict[str, Any]:
    """Seconds of the first call (with compilation) and of the repeats."""
    started = time.perf_counter()
    jax.block_until_ready(function())
    first = time.perf_counter() - started
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - started)
    return {"first": first, "times": times, "median": statistics.median(times), "best": min(times)}


def gemm_rate(n: int = 2000) -> float:
    """The current float64 GFLOP/s of this machine, for comparing times between machines."""
    with cglb.float64():
        a = jax.numpy.asarray(np.random.default_rng(0).normal(size=(n, n)))
        return 2e-9 * n**3 / timed(lambda: a @ a, 3)["best"]


def machine() -> dict[str, Any]:
    """The machine and the versions behind the numbers."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.machine(),
        "jax": jax.__version__,
        "cglb": cglb.__version__,
        "gemm_gflops": round(gemm_rate(), 1),
    }


def write(path: Path | None, content: dict[str, Any]) -> None:
    """Write JSON to `path`; do nothing if it is None."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def bars(path: Path | None, values: dict[str, float], label: str, title: str) -> None:
    """One bar per name on a logarithmic axis, each with its number."""
    if path is None:
        return
    figure, axis = plt.subplots(figsize=(7, 0.6 + 0.42 * len(values)), layout="constrained")
    found = axis.barh(list(values), list(values.values()), color="0.55", edgecolor="black")
    axis.bar_label(found, fmt=" %.3g")
    axis.set(xscale="log", xlabel=label, title=title)
    axis.margins(x=0.15)
    axis.invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
