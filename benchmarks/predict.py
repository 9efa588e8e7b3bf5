"""Memory and speed of `cglb predict` on long CSV files: rows per second and peak memory for each length.

python benchmarks/predict.py --json benchmarks/results/predict.json
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common
import numpy as np

from cglb import GPRegressor, datasets

CHUNK = 50_000
METHODS = {"exact": {"method": "exact"}, "cglb": {"method": "cglb", "num_inducing": 256}}


def write_rows(path: Path, names: tuple[str, ...], rows: int) -> None:
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join(names) + "\n")
        for start in range(0, rows, CHUNK):
            block = rng.uniform(-1.5, 1.5, size=(min(CHUNK, rows - start), len(names)))
            np.savetxt(file, block, delimiter=",", fmt="%.6f")


def watch(command: list[str]) -> tuple[float, float]:
    """Seconds and peak memory (GB) of a command. A process inherits `ru_maxrss` from its parent, so the
    peak is read from /proc while it runs."""
    started, peak = time.perf_counter(), 0
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        if found := re.search(r"VmHWM:\s+(\d+) kB", status):
            peak = max(peak, int(found[1]))
        time.sleep(0.05)
    assert process.wait() == 0
    return time.perf_counter() - started, peak / 2**20


def measure(
    folder: Path, arm: datasets.Dataset, lengths: list[int], method: str
) -> list[dict[str, Any]]:
    model, table, out = (str(folder / name) for name in ("model", "rows.csv", "out.csv"))
    columns = dict(zip(arm.feature_names, arm.X.T, strict=True))
    settings: dict[str, Any] = {"max_steps": 2, "schedule": "direct", **METHODS[method]}
    GPRegressor(kernel="rbf", **settings).fit(columns, arm.y).save(model)
    found = []
    for rows in lengths:
        write_rows(Path(table), arm.feature_names, rows)
        command = [sys.executable, "-m", "cglb", "predict", model, table, "--output", out]
        seconds, peak = watch(command)
        with Path(out).open() as file:
            assert sum(1 for _ in file) - 1 == rows
        result = {"method": method, "rows": rows, "megabytes": Path(table).stat().st_size / 1e6}
        result |= {"seconds": seconds, "rows_per_second": rows / seconds, "peak_gb": peak}
        print(
            f"{method}: {rows:9,d} rows, {result['megabytes']:6.1f} MB: "
            f"{rows / seconds:8,.0f} rows per second, peak memory {peak:.2f} GB",
            flush=True,
        )
        found.append(result)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--train", type=int, default=1000, help="training rows")
    parser.add_argument("--methods", nargs="+", default=["exact"], choices=METHODS)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    arm = datasets.robot_arm(options.train, seed=0)
    with tempfile.TemporaryDirectory() as name:
        found = [measure(Path(name), arm, options.rows, method) for method in options.methods]
    settings = {"train": options.train, "columns": arm.X.shape[1]}
    common.write(
        options.json,
        {
            "settings": settings,
            "machine": common.machine(),
            "runs": [run for one in found for run in one],
        },
    )


if __name__ == "__main__":
    main()
