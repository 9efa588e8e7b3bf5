"""Time to a given bound and a given test NLPD: training in cglb and GPflow, same data, same start.

    make peers
    python benchmarks/fit.py --data elevators --inducing 512 --max-seconds 300

Each side trains for at most --max-seconds, including compilation but not scoring. The marks to reach are
the best NLPD and the best bound of GPflow's SGPR and CGLB. Writes JSON and a plot.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from common import RESULTS, machine, standardised, write
from peers import protocol
from sides import HERE, python_of

import cglb
from cglb import methods, posteriors

matplotlib.use("agg")
import matplotlib.pyplot as plt

OURS = {"cglb sgpr": ("sgpr", "trace"), "cglb cglb": ("cglb", "amgm"), "cglb chain": ("cglb", "chain")}
PEERS = {"GPflow SGPR": "fit_sgpr", "GPflow CGLB": "fit_cglb"}
TICKS = [10, 20, 50, 100, 200, 500, 1000]
STYLES = ["k-", "k--", "k:", "r-", "r--"]


def ours(name: str, data: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    X, y, X_test, y_test = data
    method, logdet = OURS[name]
    history = []

    def on_step(row: dict[str, Any], current: Any) -> None:
        if row["step"] % options.every:
            return
        fit = current()
        if method == "sgpr":
            found = posteriors.sgpr(fit.gp, X, y, fit.Z)
        else:
            v = cglb.solve(fit.gp, X, y, fit.Z, v0=fit.v, tolerance=1e-3).v
            found = posteriors.cglb(fit.gp, X, y, fit.Z, v)
        variance = found.variance(X_test) + float(fit.gp.noise)
        scores = protocol.scores(y_test, found.mean(X_test), variance)
        history.append({name: row[name] for name in ("step", "seconds", "bound")} | scores)

    cglb.train(
        cglb.GP(cglb.Matern32(np.ones(X.shape[1]))), X, y, methods.find(method, {"logdet": logdet}),
        num_inducing=options.inducing, max_steps=options.steps, max_seconds=options.max_seconds,
        callback=on_step,
    )  # fmt: skip
    return history


def peer(name: str, data: Any, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    python = python_of("gpflow")
    if python is None:
        print(f"{name}: no environment, run `make peers` first")
        return []
    X, y, X_test, y_test = data
    kernel = cglb.Matern32(np.ones(X.shape[1]))
    Z = np.asarray(cglb.inducing.greedy(kernel, X, options.inducing, seed=0))
    np.savez(folder / "in.npz", X=X, y=y, Z=Z, X_test=X_test, y_test=y_test)
    output = folder / "out.json"
    command = [python, str(HERE / "peers" / "run_gpflow.py"), "--task", PEERS[name]]
    command += ["--input", str(folder / "in.npz"), "--output", str(output)]
    command += ["--max-seconds", str(options.max_seconds), "--every", str(options.every)]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads(output.read_text())["history"]


def time_to(history: list[dict[str, Any]], key: str, mark: float, sign: float) -> float | None:
    """Seconds until sign·key first reaches sign·mark; None if it never does."""
    return next((row["seconds"] for row in history if sign * row[key] >= sign * mark), None)


def marks(histories: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for peer_name, key, sign, rivals in (
        ("GPflow SGPR", "nlpd", -1.0, list(OURS)),
        ("GPflow CGLB", "nlpd", -1.0, list(OURS)),
        ("GPflow SGPR", "bound", 1.0, ["cglb sgpr"]),
        ("GPflow CGLB", "bound", 1.0, ["cglb cglb", "cglb chain"]),
    ):
        if not histories.get(peer_name):
            continue
        mark = max((row[key] for row in histories[peer_name]), key=lambda value: sign * value)
        seconds = {peer_name: time_to(histories[peer_name], key, mark, sign)}
        seconds |= {name: time_to(histories[name], key, mark, sign) for name in rivals}
        found[f"{key} of {peer_name}"] = {"mark": mark, "seconds": seconds}
        print(f"{key} {mark:.3f} (best of {peer_name}):", seconds)
    return found


def plot(path: Path, histories: dict[str, list[dict[str, Any]]], title: str) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for (name, history), style in zip(histories.items(), STYLES, strict=True):
        for axis, key in zip(axes, ("bound", "nlpd"), strict=True):
            axis.plot(
                [row["seconds"] for row in history],
                [row[key] for row in history],
                style,
                marker=".",  # a side may have only one point
                label=name,
            )
    for axis, key in zip(axes, ("bound [nats]", "test NLPD"), strict=True):
        axis.set(xscale="log", xlabel="seconds of training", ylabel=key)
        axis.set_xticks(TICKS, [str(tick) for tick in TICKS])
        axis.set_xlim(
            right=1.2 * max(history[-1]["seconds"] for history in histories.values() if history)
        )
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    last = [row["bound"] for history in histories.values() for row in history[len(history) // 3 :]]
    if last:
        axes[0].set_ylim(min(last), max(last) + 0.05 * (max(last) - min(last)))
    axes[1].legend()
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="elevators")
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--max-seconds", type=float, default=300.0)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--plot", type=Path, default=None)
    options = parser.parse_args()
    data = standardised(options.data, options.rows)
    histories: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in OURS:
            histories[name] = ours(name, data, options)
        for name in PEERS:
            histories[name] = peer(name, data, options, Path(folder))
    for name, history in histories.items():
        if history:
            print(f"{name}: {history[-1]}")
    settings = {k: v for k, v in vars(options).items() if k not in ("json", "plot")}
    stem = f"fit-{options.data}-{options.inducing}"
    content = {"settings": settings, "marks": marks(histories), "histories": histories}
    write(options.json or RESULTS / f"{stem}.json", {**content, "machine": machine()})
    title = f"{options.data}, n = {len(data[1])}, m = {options.inducing}"
    plot(options.plot or RESULTS / f"{stem}.png", histories, title)


if __name__ == "__main__":
    main()
