"""What `GPRegressor()` learns with nothing set, and in which time; compile time included.

    python benchmarks/learn.py large    # bike, elevators, pol, kin40k and protein, three splits
    python benchmarks/learn.py exact    # log p(y) and predictions by Cholesky of what these learned
    python benchmarks/learn.py kernels  # the large sets with kernel="auto", one split
    python benchmarks/learn.py small    # airfoil, concrete, energy, yacht and wine, five splits
    python benchmarks/learn.py toys     # 200 and 1,000 rows, 20 seeds
    python benchmarks/learn.py before   # the large sets with the default of an earlier commit
    python benchmarks/learn.py curves   # NLPD and RMSE along both fits, and the figures

`small` and `toys` compare with scikit-learn's exact GP of the same kernel family, at its own optimum of
five restarts (`toys`: of one start); `small` also has `kernel="auto"`. Every fit but those of `toys` has
a process of its own. Results go to results/learn-KIND.json after each fit; what is there already is not
run again, so that every command can be interrupted, or be given `--sets` and `--splits`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import learn_data
import numpy as np
from common import RESULTS, machine, plt
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

import cglb

HERE = Path(__file__).parent
EARLIER = "538c948"
SIDES = {
    "large": ("cglb",),
    "kernels": ("auto",),
    "small": ("cglb", "scikit-learn", "auto"),
    "toys": ("cglb", "scikit-learn"),
}
RESTARTS = {"small": 5, "toys": 0}
# points of a curve, evenly spaced in the logarithm of time
POINTS = 7
NOT_SHOWN = ("curve", "warnings", "parameters", "rows")
# training rows up to which `exact` predicts too: above, the variances of the test rows take minutes
SCORED_ROWS = 12_000


# ---- results ----


@contextmanager
def stored(kind: str) -> Iterator[dict[str, Any]]:
    """The results of a kind, to be changed; written at the end."""
    path = RESULTS / f"learn-{kind}.json"
    with (Path(tempfile.gettempdir()) / "cglb-learn.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = json.loads(path.read_text()) if path.exists() else {"runs": {}}
        before = json.dumps(content)
        yield content["runs"]
        if json.dumps(content) != before:
            content["machine"] = content.get("machine") or machine()
            path.write_text(json.dumps(content, indent=1) + "\n")


def known(kind: str) -> dict[str, Any]:
    """The results of a kind, by "set split side"."""
    with stored(kind) as runs:
        return dict(runs)


def keep(kind: str, key: str, found: dict[str, Any]) -> None:
    shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}
    print(kind, key, {k: v for k, v in shown.items() if k not in NOT_SHOWN}, flush=True)
    with stored(kind) as runs:
        runs[key] = found


# ---- one fit ----


def scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    error = (y - mean) / std
    return {
        "nlpd": float(np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * error**2)),
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2))),
        "coverage": float(np.mean(np.abs(error) <= 1.959964)),
    }


def ours(parts: Any, exact: bool, **settings: Any) -> dict[str, Any]:
    X, y, X_test, y_test = parts
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = cglb.GPRegressor(**settings).fit(X, y)
    fitted = time.perf_counter()
    mean, std = model.predict(X_test, return_std=True)
    predicted = time.perf_counter()
    report, history = model.fit_report_, model.history_
    found = {
        "fit_seconds": fitted - started,
        "predict_seconds": predicted - fitted,
        **scores(y_test, mean, std),
        "method": report.method,
        "stop": report.stop,
        "bound": report.bound,
        "noise": float(model.gp_.noise),
        "steps": len(history),
        "evaluations": report.evaluations,
        "kernel": next(iter(report.rankings[-1][1])) if report.rankings else "matern32",
        "warnings": [str(one.message) for one in caught],
    }
    if exact:
        return found | {"exact_lml": float(cglb.posteriors.exact(model.gp_, X, y).lml)}
    return found | {"curve": some_of(history), "parameters": history[-1]["parameters"]}


def some_of(history: list[Any]) -> list[dict[str, Any]]:
    """Some rows, evenly spaced in the logarithm of time, and the last."""
    times = np.array([row["seconds"] for row in history])
    marks = np.geomspace(times[0], times[-1], POINTS)
    chosen = sorted({int(np.argmin(np.abs(times - mark))) for mark in marks} | {len(times) - 1})
    return [{key: history[i][key] for key in ("seconds", "bound", "parameters")} for i in chosen]


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


def one(kind: str, name: str, split: int, side: str) -> dict[str, Any]:
    parts = learn_data.load(kind, name, split)
    if side == "scikit-learn":
        return theirs(*parts, RESTARTS[kind])
    settings = {"kernel": "auto"} if side == "auto" else {}
    return ours(parts, exact=name not in learn_data.LARGE, **settings)


def in_a_process(*arguments: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, "one", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def fits(kind: str, names: list[str], splits: list[int]) -> None:
    """All fits of a kind that are not stored yet."""
    sides = SIDES[kind]
    run = one if kind == "toys" else in_a_process
    for name in names:
        for split in splits:
            for side in sides:
                key = f"{name} {split} {side}"
                if key not in known(kind):
                    keep(kind, key, run(kind, name, split, side))


# ---- the exact log p(y) and predictions at what the large fits learned ----


def model_of(parameters: dict[str, float]) -> cglb.GP:
    """A Matérn-3/2 model from the parameters of a row of a history."""
    lengthscale = [value for name, value in parameters.items() if "lengthscale" in name]
    kernel = cglb.Matern32(np.array(lengthscale), np.asarray(parameters["kernel.variance"]))
    return cglb.GP(kernel, np.asarray(parameters["noise"]), np.asarray(parameters["mean"]))


def exact(names: list[str], splits: list[int]) -> None:
    for key, found in known("large").items():
        name, split, _ = key.split()
        if name not in names or int(split) not in splits:
            continue
        X, y, X_test, y_test = learn_data.load("large", name, int(split))
        if "exact_lml" in found and ("exact" in found or len(X) > SCORED_ROWS):
            continue
        gp = model_of(found["parameters"])
        posterior = cglb.posteriors.exact(gp, X, y)
        found["exact_lml"] = float(posterior.lml)
        if len(X) <= SCORED_ROWS:
            std = np.sqrt(np.asarray(posterior.variance(X_test)) + float(gp.noise))
            found["exact"] = scores(y_test, np.asarray(posterior.mean(X_test)), std)
        keep("large", key, found)


# ---- the default of an earlier commit, and curves ----


def before(names: list[str], commit: str, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree, inputs, output = (Path(folder) / part for part in ("tree", "data.npz", "found.json"))
        command = ["git", "worktree", "add", "-q", "--detach", tree, commit]
        subprocess.run(command, check=True, cwd=HERE)
        try:
            for name in names:
                if f"{name} 0" in known("before"):
                    continue
                X, y, *_ = learn_data.load("large", name, 0)
                np.savez(inputs, X=X, y=y)
                script = [sys.executable, HERE / "peers" / "learn_before.py"]
                script += ["--input", inputs, "--output", output, "--max-seconds", str(seconds)]
                # the earlier side may need what is no longer a dependency (optax): put it on PYTHONPATH
                path = [str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
                variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
                subprocess.run(script, check=True, env=variables)
                found = json.loads(output.read_text())
                kept = {"fit_seconds": found["fit_seconds"], "curve": some_of(found["rows"])}
                keep("before", f"{name} 0", {**kept, "commit": commit, "limit": seconds})
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True, cwd=HERE)


def curves(names: list[str]) -> None:
    """Scores of the models along both fits, each with the variance of its time's default."""
    for name in names:
        for kind, key, variance in (
            ("before", f"{name} 0", "sgpr"),
            ("large", f"{name} 0 cglb", "local"),
        ):
            found = known(kind).get(key)
            if found is None or "nlpd" in found["curve"][-1]:
                continue
            parts = learn_data.load("large", name, 0)
            for row in found["curve"]:
                row |= predicted(model_of(row["parameters"]), parts, variance)
            keep(kind, key, found)
        figure(name)


def figure(name: str) -> None:
    """NLPD and RMSE against seconds of training, for both fits."""
    sides = {"earlier default": known("before").get(f"{name} 0")}
    sides["default"] = known("large").get(f"{name} 0 cglb")
    if any(found is None or "nlpd" not in found["curve"][-1] for found in sides.values()):
        return
    shown, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axis, score in zip(axes, ("nlpd", "rmse"), strict=True):
        for style, (label, found) in zip(("o--", "o-"), sides.items(), strict=True):
            rows = found["curve"]
            axis.plot([row["seconds"] for row in rows], [row[score] for row in rows], style, label=label)
        axis.set(xscale="log", xlabel="seconds of training", ylabel=score.upper(), title=name)
    axes[1].set_yscale("log")
    axes[0].legend()
    shown.savefig(RESULTS / f"learn-{name}.png", dpi=120)
    plt.close(shown)


def predicted(gp: cglb.GP, parts: Any, variance: str) -> dict[str, float]:
    """Scores of a model with given hyperparameters, with 512 greedy inducing points."""
    X, y, X_test, y_test = parts
    Z = cglb.inducing.greedy(gp.kernel, X, 512)
    posterior = cglb.methods.condition(cglb.CGLB(), gp, X, y, Z).posterior
    if variance == "sgpr":
        spread = posterior.variance(X_test)
    else:
        spread = cglb.posteriors.variance.local(gp, X, X_test, Z)
    std = np.sqrt(np.asarray(spread) + float(gp.noise))
    return scores(y_test, np.asarray(posterior.mean(X_test)), std)


# ---- the command ----


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        kind, name, split, side = sys.argv[2:]
        print(json.dumps(one(kind, name, int(split), side)))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=(*SIDES, "exact", "before", "curves"))
    parser.add_argument("--sets", help="names, separated by commas; by default all")
    parser.add_argument("--splits", help="numbers, separated by commas; by default all")
    parser.add_argument("--commit", default=EARLIER, help="of `before`")
    parser.add_argument("--seconds", type=float, default=180.0, help="of training, of `before`")
    options = parser.parse_args()
    kind = options.kind
    names, splits = learn_data.SETS[kind if kind in learn_data.SETS else "large"]
    names = options.sets.split(",") if options.sets else names
    splits = list(map(int, options.splits.split(","))) if options.splits else splits
    if kind == "exact":
        exact(names, splits)
    elif kind == "before":
        before(names, options.commit, options.seconds)
    elif kind == "curves":
        curves(names)
    else:
        fits(kind, names, splits)


if __name__ == "__main__":
    main()
