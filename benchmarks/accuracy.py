"""Held-out accuracy of a fit on one data set, on the standardised scale.

    python benchmarks/accuracy.py --data elevators --inducing 512 --steps 100
    python benchmarks/accuracy.py --data pol --inducing 1024 --steps 300

With --exact the log marginal likelihood, RMSE and NLPD are also computed by Cholesky at the learned
hyperparameters.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from common import RESULTS, machine, standardised, write

import cglb
from cglb import metrics, posterior


def scores(y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> dict[str, float]:
    return {
        "rmse": metrics.rmse(y, mean),
        "nlpd": metrics.nlpd(y, mean, variance),
        "coverage": metrics.coverage(y, mean, variance),
    }


def show(row: dict, _: object) -> None:
    noise = row["parameters"]["noise"]
    print(
        f"{row['step']:4d} {row['logdet_bound'][:8]:8s} {row['bound']:12.2f} "
        f"{row['cg_steps'] or 0:4d} CG {row['seconds']:8.1f} s noise {noise:.2e}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--method", default="cglb")
    parser.add_argument("--logdet", default="amgm")
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--steps-per-round", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-seconds", type=float, default=None)
    parser.add_argument("--optimize-inducing", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--checkpoint", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()

    X, y, X_test, y_test = standardised(options.data, seed=options.seed)
    started = time.perf_counter()
    fit = cglb.train(
        cglb.GP(cglb.Matern32(np.ones(X.shape[1]))),
        X,
        y,
        cglb.Objective(options.method, options.logdet),
        num_inducing=options.inducing,
        max_steps=options.steps,
        steps_per_round=options.steps_per_round,
        max_seconds=options.max_seconds,
        optimize_inducing=options.optimize_inducing,
        checkpoint=options.checkpoint,
        callback=show,
    )
    noise = float(fit.gp.noise)
    if options.method == "sgpr":
        found, slack = posterior.sgpr(fit.gp, X, y, fit.Z), 0.0
    else:
        solution = cglb.solve(fit.gp, X, y, fit.Z, v0=fit.v, tolerance=1e-3)
        found, slack = posterior.cglb(fit.gp, X, y, fit.Z, solution.v), float(solution.slack)
    result = {
        "settings": {k: v for k, v in vars(options).items() if k not in ("checkpoint", "json")},
        "rows": len(y),
        "steps": len(fit.history),
        "seconds": time.perf_counter() - started,
        "training_seconds": fit.seconds,
        "stop": fit.stop,
        "bound": fit.bound,
        "slack": slack,
        "parameters": fit.history[-1]["parameters"],
        **scores(y_test, found.mean(X_test), found.variance(X_test) + noise),
    }
    if options.exact:
        by_cholesky = posterior.exact(fit.gp, X, y)
        result["exact"] = {
            "lml": float(cglb.bounds.exact(fit.gp, X, y).value),
            **scores(y_test, by_cholesky.mean(X_test), by_cholesky.variance(X_test) + noise),
        }
    result["machine"] = machine()
    for key, value in result.items():
        print(f"{key}: {value}")
    name = f"accuracy-{options.data}-{options.method}-{options.logdet}-{options.inducing}.json"
    write(options.json or RESULTS / name, result)


if __name__ == "__main__":
    main()
