"""How often `evidence(confidence=…)` contains log p(y), how narrow it gets, and what it costs.

    python benchmarks/confidence.py                      # elevators, pol and bike
    python benchmarks/confidence.py --data pol --repetitions 50
    python benchmarks/confidence.py --part coverage      # or scale, whose times want a quiet machine

For each data set: a model is trained on the first 2,000 rows. There log p(y) is known by Cholesky, and
the interval is computed again and again with other probes; the share that contains log p(y) is the
coverage. The same model on 10,000 rows: the width of the certain and of the likely interval, and their
time next to one evaluation of the bound with its gradient.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import RESULTS, machine, standardised, write

import cglb
from cglb import inducing
from cglb.bounds.certificate import Certificate
from cglb.core.cache import use_compilation_cache
from cglb.linalg.system import Solver, System

FOLDER = Path(__file__).parent / ".checkpoints"
CONFIDENCE, POINTS = 0.99, 512


def trained(data: str, X: np.ndarray, y: np.ndarray) -> cglb.GP:
    """Exact training on these rows; its checkpoint is kept."""
    FOLDER.mkdir(exist_ok=True)
    start = cglb.GP(cglb.Matern32(np.ones(X.shape[1])))
    path = FOLDER / f"confidence-{data}-{len(y)}"
    return cglb.train(start, X, y, "exact", max_steps=20, checkpoint=path).gp


def system_of(gp: cglb.GP, X: np.ndarray) -> System:
    gp, X = jax.tree.map(jnp.asarray, (gp, X))
    Z = inducing.greedy(gp.kernel, X, min(POINTS, len(X) // 4), seed=0)
    return System(gp, X, jnp.asarray(Z), Solver(memory_gb=4.0))


def coverage(gp: cglb.GP, X: np.ndarray, y: np.ndarray, repetitions: int) -> dict[str, Any]:
    """The share of likely intervals that contain log p(y), and their widths."""
    with cglb.float64():
        system, targets = system_of(gp, X), jnp.asarray(y)
        truth = float(cglb.bounds.exact(gp, X, y).value)
        found = Certificate(system, targets, memory_gb=4.0)
        found.refine()
        inside, widths, probes = 0, [], []
        for seed in range(repetitions):
            (low, high), count = found.likely(CONFIDENCE, max(1.0, len(y) / 1000.0), None, seed)
            inside += bool(low <= truth <= high)
            widths.append(high - low)
            probes.append(count)
            if seed % 20 == 0:
                print(f"{seed + 1} repetitions: {inside} contain log p(y)", flush=True)
    return {
        "rows": len(y),
        "repetitions": repetitions,
        "contain": inside,
        "certain_width": found.width,
        "median_width": float(np.median(widths)),
        "largest_width": float(np.max(widths)),
        "median_probes": float(np.median(probes)),
    }


def scale(gp: cglb.GP, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Widths and times on many rows, and whether the interval contains log p(y)."""
    method = cglb.CGLB(logdet="auto")
    with cglb.float64():
        system, targets = system_of(gp, X), jnp.asarray(y)
        prepared = method.prepare(system)
        v, times = None, []
        for _ in range(3):  # the first one compiles, and finds v
            started = time.perf_counter()
            value = method.evaluate(
                prepared, method.system(system.gp, system.X, system.Z, prepared), targets, v
            )
            assert value is not None
            v = value.v
            times.append(time.perf_counter() - started)
        system = system_of(gp, X)
        certificate = Certificate(system, targets, memory_gb=4.0)
        started = time.perf_counter()
        certificate.refine()
        certain_seconds = time.perf_counter() - started
        started = time.perf_counter()
        wanted = len(y) / 1000.0
        (low, high), probes = certificate.likely(CONFIDENCE, wanted, None)
        seconds = time.perf_counter() - started
        system.release()
        known = float(cglb.bounds.exact(gp, X, y).value)
    return {
        "rows": len(y),
        "noise": float(gp.noise),
        "evaluation_seconds": times[-1],
        "first_evaluation_seconds": times[0],
        "certain_width": certificate.width,
        "certain_seconds": certain_seconds,
        "likely_width": high - low,
        "likely_seconds": seconds,
        "probes": probes,
        "contains": bool(low <= known <= high),
        "wanted": wanted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="elevators,pol,bike")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--part", choices=["coverage", "scale"], help="only this; the other is kept")
    parser.add_argument("--json", type=Path, default=RESULTS / "confidence.json")
    options = parser.parse_args()
    use_compilation_cache()
    stored = options.json.exists() and options.part is not None
    results = json.loads(options.json.read_text())["results"] if stored else {}
    for data in options.data.split(","):
        X, y, _, _ = standardised(data, options.many)
        few = X[: options.rows], y[: options.rows]
        gp = trained(data, *few)
        found = results.setdefault(data, {})
        if options.part != "scale":
            found["few"] = coverage(gp, *few, options.repetitions)
        if options.part != "coverage":
            found["many"] = scale(gp, X, y)
        print(data, found, flush=True)
        settings = {"confidence": CONFIDENCE, "points": POINTS, "repetitions": options.repetitions}
        write(options.json, {"settings": settings, "results": results, "machine": machine()})


if __name__ == "__main__":
    main()
