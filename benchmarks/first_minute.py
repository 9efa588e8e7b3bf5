"""The first minute: import, first and second fits, folds, latencies and memory, next to the peers.

    python benchmarks/first_minute.py                # all parts; memory takes some minutes
    python benchmarks/first_minute.py --parts fit --rows 100,200

Every measurement is a process of its own. "Empty" has no compiled code in its cache, "cached" has that
of the process before. Parts that are not run keep their stored results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, machine, write
from sides import HERE, python_of

from cglb.data import datasets

PARTS = ("import", "fit", "folds", "serve", "memory")
ENVIRONMENTS = {"cglb": None, "sklearn": None, "gpflow": "gpflow"}


def run(side: str, task: str, rows: int, folder: Path, cache: Path) -> dict[str, Any] | None:
    """One process of one side; None if its environment is not built."""
    python = python_of(ENVIRONMENTS[side])
    if python is None:
        print(f"{side}: no environment, run `make peers` first", flush=True)
        return None
    output = folder / "answer.json"
    command = [python, str(HERE / "peers" / "run_first.py"), "--side", side, "--task", task]
    command += ["--rows", str(rows), "--input", str(folder / "data.npz"), "--output", str(output)]
    variables = {"CGLB_CACHE": str(cache), "CGLB_COMPILED": str(cache / "compiled")}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode != 0:
        raise SystemExit(f"{side} {task} failed:\n{done.stderr[-2000:]}")
    answer = json.loads(output.read_text()) | {"process": time.perf_counter() - started}
    print(f"{side:8s} {task:7s} {rows:6d}  {json.dumps(answer)[:150]}", flush=True)
    return answer


def imports(repeats: int = 5) -> dict[str, float]:
    """Seconds of `import cglb` and of what it rests on, in new processes that alternate."""
    codes = {"cglb": "import cglb", "jax_sklearn": "import jax, sklearn"}
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(repeats):
        for name, code in codes.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times[name].append(time.perf_counter() - started)
    found = {name: statistics.median(one) for name, one in times.items()}
    return found | {"ratio": found["cglb"] / found["jax_sklearn"]}


def fits(n: int, peers: dict[str, list[int]], folder: Path) -> dict[str, Any]:
    """Fits of n rows by side."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        found["cglb"] = run("cglb", "fit", n, folder, Path(cache))
        found["cglb_cached"] = run("cglb", "fit", n, folder, Path(cache))
    for side, sizes in peers.items():
        if n in sizes:
            found[side] = run(side, "fit", n, folder, folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rows", default="100,200,500,1000,2000")
    parser.add_argument("--gpflow-rows", default="2000")
    parser.add_argument("--fits", type=int, default=300, help="of the part memory")
    parser.add_argument("--json", type=Path, default=RESULTS / "first-minute.json")
    options = parser.parse_args()
    parts, rows = options.parts.split(","), [int(n) for n in options.rows.split(",")]
    results = json.loads(options.json.read_text())["results"] if options.json.exists() else {}
    data = datasets.robot_arm(10_001, seed=0)
    settings = {key: str(value) for key, value in vars(options).items() if key not in ("json", "parts")}

    def keep(part: str, found: Any) -> None:
        """Write after each measurement: this takes long."""
        results[part] = found
        write(options.json, {"settings": settings, "results": results, "machine": machine()})

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "data.npz", X=data.X, y=data.y)
        if "import" in parts:
            keep("import", imports())
            print(results["import"], flush=True)
        if "fit" in parts:
            peers = {"sklearn": rows, "gpflow": [int(n) for n in options.gpflow_rows.split(",") if n]}
            for n in rows:
                by_rows = results.get("fit", {}) | {str(n): fits(n, peers, folder)}
                keep("fit", dict(sorted(by_rows.items(), key=lambda pair: int(pair[0]))))
        for part, size in (("folds", 600), ("serve", 10_000), ("memory", options.fits)):
            if part in parts:
                keep(part, run("cglb", part, size, folder, folder))


if __name__ == "__main__":
    main()
