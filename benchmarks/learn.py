"""What `GPRegressor()` learns with nothing set, and in which time; compile time included.

    python benchmarks/learn.py large    # bike, elevators, pol, kin40k and protein, three splits
    python benchmarks/learn.py small    # airfoil, concrete, energy, yacht and wine, five splits
    python benchmarks/learn.py toys     # 200 and 1,000 rows, 20 seeds

Every fit runs in a process of its own. `small` and `toys` compare with scikit-learn's exact GP of the
same kernel family, its own optimum of five restarts (`toys`: of one start). Results go to
results/learn.json after each fit; what is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, machine
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

import cglb
from cglb.data import datasets

STORE = RESULTS / "learn.json"
RESTARTS = {"small": 5, "toys": 0}
SETS = {
    "large": (["bike", "elevators", "pol", "kin40k", "protein"], [0, 1, 2]),
    "small": (["airfoil", "concrete", "energy", "yacht", "wine"], [0, 1, 2, 3, 4]),
}


def toy(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """y = sin 2x₀ + 0.3x₁² + 0.1ε in 8 columns."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 8))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] ** 2 + 0.1 * rng.normal(size=n)


def friedman(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 10))
    clean = (
        10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    )
    return X, clean + rng.normal(size=n)


TOYS = {"toy": toy, "friedman": friedman}
TEST_ROWS = 1000


def data(kind: str, name: str, split: int) -> tuple[np.ndarray, ...]:
    """X, y, X_test, y_test, standardised by the training part."""
    if kind == "toys":
        function, rows = name.split("-")
        X, y = TOYS[function](int(rows) + TEST_ROWS, split)
        n = int(rows)
        parts = X[:n], y[:n], X[n:], y[n:]
    else:
        found = datasets.load(name).split(seed=split)
        parts = found.X_train, found.y_train, found.X_test, found.y_test
    X, y, X_test, y_test = parts
    shift, scale = X.mean(0), np.where(X.std(0) > 0, X.std(0), 1.0)
    return (
        (X - shift) / scale,
        (y - y.mean()) / y.std(),
        (X_test - shift) / scale,
        (y_test - y.mean()) / y.std(),
    )


def scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    error = (y - mean) / std
    return {
        "nlpd": float(np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * error**2)),
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "coverage": float(np.mean(np.abs(error) <= 1.959964)),
    }


def ours(X: Any, y: Any, X_test: Any, y_test: Any, exact: bool) -> dict[str, Any]:
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = cglb.GPRegressor().fit(X, y)
    fitted = time.perf_counter()
    mean, std = model.predict(X_test, return_std=True)
    predicted = time.perf_counter()
    found = {
        "fit_seconds": fitted - started,
        "predict_seconds": predicted - fitted,
        **scores(y_test, mean, std),
        "method": model.fit_report_.method,
        "stop": model.fit_report_.stop,
        "bound": model.fit_report_.bound,
        "noise": float(model.gp_.noise),
        "steps": len(model.history_),
        "evaluations": model.fit_report_.evaluations,
        "warnings": [str(one.message) for one in caught],
        "curve": [
            {key: row[key] for key in ("seconds", "stage", "rows", "bound", "evaluations")}
            for row in model.history_
        ],
    }
    if exact:
        found["exact_lml"] = float(cglb.posteriors.exact(model.gp_, X, y).lml)
    return found


def theirs(X: Any, y: Any, X_test: Any, y_test: Any, restarts: int) -> dict[str, Any]:
    d = X.shape[1]
    kernel = ConstantKernel(1.0, (1e-5, 1e8)) * Matern(np.ones(d), (1e-5, 1e8), nu=1.5)
    kernel = kernel + WhiteKernel(1.0, (1e-6, 1e3))
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=restarts, random_state=0).fit(X, y)
    seconds = time.perf_counter() - started
    mean, std = model.predict(X_test, return_std=True)
    return {
        "fit_seconds": seconds,
        **scores(y_test, mean, std),
        "exact_lml": float(model.log_marginal_likelihood_value_),
        "noise": float(model.kernel_.k2.noise_level),
    }


def one(kind: str, name: str, split: int, side: str, exact: bool) -> dict[str, Any]:
    parts = data(kind, name, split)
    if side == "cglb":
        return ours(*parts, exact or kind != "large")
    return theirs(*parts, RESTARTS[kind])


def run(kind: str, name: str, split: int, side: str, exact: bool) -> dict[str, Any]:
    """One fit in a process of its own."""
    command = [sys.executable, __file__, "one", kind, name, str(split), side, str(int(exact))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        kind, name, split, side, exact = sys.argv[2:]
        print(json.dumps(one(kind, name, int(split), side, bool(int(exact)))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("large", "small", "toys"))
    parser.add_argument("--sets", help="names, by default all of the kind")
    parser.add_argument("--splits", help="numbers, by default 0,1,2 or 0,1,2,3,4")
    parser.add_argument("--rows", default="200,1000")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--exact", action="store_true", help="large: also the exact log p(y)")
    parser.add_argument("--json", type=Path, default=STORE)
    options = parser.parse_args()
    if options.kind == "toys":
        names = [f"{name}-{rows}" for name in TOYS for rows in options.rows.split(",")]
        splits = list(range(options.seeds))
    else:
        names, splits = SETS[options.kind]
        names = options.sets.split(",") if options.sets else names
        splits = list(map(int, options.splits.split(","))) if options.splits else splits
    sides = ("cglb",) if options.kind == "large" else ("cglb", "scikit-learn")
    for name in names:
        for split in splits:
            for side in sides:
                store = json.loads(options.json.read_text()) if options.json.exists() else {}
                key = f"{options.kind} {name} {split} {side}"
                if key in store.get("runs", {}):
                    continue
                found = run(options.kind, name, split, side, options.exact)
                shown = {k: v for k, v in found.items() if k not in ("curve", "warnings")}
                print(
                    key,
                    {k: round(v, 4) if isinstance(v, float) else v for k, v in shown.items()},
                    flush=True,
                )
                store.setdefault("runs", {})[key] = found
                store["machine"] = machine()
                options.json.write_text(json.dumps(store, indent=1))


if __name__ == "__main__":
    main()
