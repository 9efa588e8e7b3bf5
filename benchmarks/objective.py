"""Value and gradient of one objective in cglb and its peers: same data, θ, Z and v, in one run.

    make peers
    python benchmarks/objective.py --data pol --rows 10000 --inducing 512 --json objective.json
    OPENBLAS_CORETYPE=SkylakeX python benchmarks/objective.py --sides 'cglb sgpr,GPflow SGPR'

The sides run one after the other, each in a separate process, so that memory is measured separately.
GPyTorch's value is an estimate; the others must agree or the run fails.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from common import RESULTS, bars, machine, standardised, write
from sides import run_side

import cglb

SIDES = {  # name: (environment, script, task, extra options, comparable value)
    "cglb sgpr": (None, "run_cglb.py", "sgpr", [], "sgpr"),
    "GPflow SGPR": ("gpflow", "run_gpflow.py", "sgpr", ["--jitter", "1e-12"], "sgpr"),
    "cglb cglb": (None, "run_cglb.py", "cglb", [], "cglb"),
    "cglb chain": (None, "run_cglb.py", "chain", [], None),
    "GPflow CGLB": ("gpflow", "run_gpflow.py", "cglb", ["--jitter", "1e-12"], "cglb"),
    "GPflow CGLB compiled": ("gpflow", "run_gpflow.py", "cglb_fixed", ["--jitter", "1e-12"], "cglb"),
    "GPyTorch iterative": ("torch", "run_torch.py", "iterative", [], None),
}


def problem(data: str, rows: int, inducing: int, path: Path) -> None:
    """Hyperparameters near those of a trained model, greedy Z, and a v solved to 0.1 nats."""
    X, y, _, _ = standardised(data, rows)
    lengthscale = 4.0 * np.linspace(0.8, 1.2, X.shape[1])
    gp = cglb.GP(cglb.Matern32(lengthscale, 1.2), 0.05, 0.1)
    Z = np.asarray(cglb.inducing.greedy(gp.kernel, X, inducing))
    v = cglb.solve(gp, X, y, Z, tolerance=0.1).v
    np.savez(path, X=X, y=y, Z=Z, v=v, lengthscale=lengthscale, variance=1.2, noise=0.05, mean=0.1)


def check_values(results: dict[str, dict]) -> None:
    for group in ("sgpr", "cglb"):
        values = [r["value"] for side, r in results.items() if SIDES[side][4] == group]
        if values and max(values) - min(values) > 1e-3 * max(1.0, abs(values[0]) * 1e-3):
            raise SystemExit(f"the sides disagree on {group}: {values}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="pol")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--plot", type=Path, default=None)
    options = parser.parse_args()
    results: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "in.npz"
        problem(options.data, options.rows, options.inducing, inputs)
        for side in options.sides.split(","):
            environment, script, task, extra, _ = SIDES[side]
            found = run_side(side, environment, script, task, inputs, options.repeats, extra)
            if found is not None:
                results[side] = found
    check_values(results)
    ratios = {}
    for ours, peer in (
        ("cglb sgpr", "GPflow SGPR"),
        ("cglb cglb", "GPflow CGLB"),
        ("cglb cglb", "GPflow CGLB compiled"),
        ("cglb cglb", "GPyTorch iterative"),
        ("cglb cglb", "cglb chain"),
    ):
        if ours in results and peer in results:
            time = results[peer]["median"] / results[ours]["median"]
            memory = results[peer]["memory_gb"] / results[ours]["memory_gb"]
            first = results[peer]["first"] / results[ours]["median"]
            ratios[f"{peer} / {ours}"] = {
                "time": round(time, 2),
                "first call": round(first, 2),
                "memory": round(memory, 2),
            }
            print(f"{peer} takes {time:.1f} times the time and {memory:.1f} times the memory of {ours}")
    settings = {k: v for k, v in vars(options).items() if k not in ("json", "plot")}
    # which kernels BLAS was told to use, if it was: see docs/performance.md
    settings["coretype"] = os.environ.get("OPENBLAS_CORETYPE")
    name = f"objective-{options.data}-{options.inducing}" + ("-wide" if settings["coretype"] else "")
    content = {"settings": settings, "results": results, "ratios": ratios, "machine": machine()}
    write(options.json or RESULTS / f"{name}.json", content)
    title = f"One value and gradient: {options.data}, n = {options.rows}, m = {options.inducing}"
    seconds = {side: found["median"] for side, found in results.items()}
    bars(options.plot or RESULTS / f"{name}.png", seconds, "seconds", title)


if __name__ == "__main__":
    main()
