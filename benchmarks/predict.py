"""Memory and speed of `cglb predict` on long CSV files: rows per second and peak memory for each length.

python benchmarks/predict.py --rows 100000 1000000
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from cglb import GPRegressor, datasets

CHUNK = 50_000


def write_rows(path: Path, names: tuple[str, ...], rows: int) -> None:
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join(names) + "\n")
        for start in range(0, rows, CHUNK):
            block = rng.uniform(-1.5, 1.5, size=(min(CHUNK, rows - start), len(names)))
            np.savetxt(file, block, delimiter=",", fmt="%.6f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--train", type=int, default=900, help="training rows")
    options = parser.parse_args()
    arm = datasets.robot_arm(options.train, seed=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = dict(zip(arm.feature_names, arm.X.T, strict=True))
        GPRegressor(kernel="rbf", max_steps=2).fit(table, arm.y).save(folder / "model")
        for rows in options.rows:
            write_rows(folder / "rows.csv", arm.feature_names, rows)
            command = ["predict", str(folder / "model"), str(folder / "rows.csv")]
            command += ["--output", str(folder / "out.csv")]
            started = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "cglb", *command], stderr=subprocess.DEVNULL
            )
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - started
            with (folder / "out.csv").open() as file:
                written = sum(1 for _ in file) - 1
            assert status == 0
            assert written == rows
            size = (folder / "rows.csv").stat().st_size / 1e6
            print(
                f"{rows:9,d} rows, {size:6.1f} MB: {rows / seconds:8,.0f} rows per second, "
                f"peak memory {usage.ru_maxrss / 1024:,.0f} MB"
            )


if __name__ == "__main__":
    main()
