"""K v without storing K: cglb, KeOps (as shipped, and compiled for this processor), plain PyTorch.

    make peers
    python benchmarks/product.py --rows 20000 --columns 8

All sides run one after the other on the same data and must agree. Times are also given in nanoseconds
per entry of K. Writes JSON and a plot.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from common import RESULTS, bars, machine, write
from sides import run_side

SIDES = {  # name: (environment, script, task, variables)
    "cglb": (None, "run_cglb.py", "product", None),
    "KeOps": ("torch", "run_torch.py", "product_keops", None),
    "KeOps, native flags": (
        "torch",
        "run_torch.py",
        "product_keops",
        # KeOps caches what it compiles; a separate folder keeps the two versions apart
        {"CXXFLAGS": "-march=native -ffast-math", "KEOPS_CACHE_FOLDER": "{folder}/keops"},
    ),
    "PyTorch": ("torch", "run_torch.py", "product_torch", None),
}
TOLERANCE = {"float64": 1e-9, "float32": 1e-3}


def problem(rows: int, columns: int, path: Path) -> None:
    rng = np.random.default_rng(0)
    lengthscale = np.linspace(0.8, 1.2, columns) * np.sqrt(columns)
    X, v = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    np.savez(path, X=X, v=v, lengthscale=lengthscale, variance=1.2, noise=0.05, mean=0.0)


def compare(dtype: str, options: argparse.Namespace, folder: Path) -> dict[str, dict]:
    found, results = {}, {}
    for name in options.sides:
        environment, script, task, variables = SIDES[name]
        result = folder / "result.npz"
        filled = {key: value.format(folder=folder) for key, value in (variables or {}).items()}
        one = run_side(
            f"{name} {dtype}", environment, script, task, folder / "in.npz", options.repeats,
            ["--dtype", dtype, "--result", str(result)], filled,
        )  # fmt: skip
        if one is None:
            continue
        one["ns_an_entry"] = 1e9 * one["median"] / options.rows**2
        found[name] = one
        with np.load(result) as file:
            results[name] = np.asarray(file["result"], dtype=np.float64)[:, 0]
    ours = results["cglb"]
    for name, theirs in results.items():
        error = np.linalg.norm(theirs - ours) / np.linalg.norm(ours)
        found[name]["relative_difference"] = float(error)
        if error > TOLERANCE[dtype]:
            raise SystemExit(f"{name} and cglb disagree in {dtype}: relative difference {error:.1e}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES, help="cglb among them")
    parser.add_argument("--json", type=Path, default=RESULTS / "product.json")
    parser.add_argument("--plot", type=Path, default=RESULTS / "product.png")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problem(options.rows, options.columns, Path(folder) / "in.npz")
        results = {dtype: compare(dtype, options, Path(folder)) for dtype in ("float64", "float32")}
    ratios = {
        dtype: {name: one["median"] / found["cglb"]["median"] for name, one in found.items()}
        for dtype, found in results.items()
    }
    for dtype, row in ratios.items():
        words = ", ".join(f"{name} {ratio:.1f}" for name, ratio in row.items() if name != "cglb")
        print(f"{dtype}: times those of cglb: {words}")
    settings = {"rows": options.rows, "columns": options.columns, "repeats": options.repeats}
    write(
        options.json, {"settings": settings, "results": results, "ratios": ratios, "machine": machine()}
    )
    entries = {
        f"{name}, {dtype}": one["ns_an_entry"]
        for dtype, found in results.items()
        for name, one in found.items()
    }
    title = f"K v, n = {options.rows}, d = {options.columns}, Matérn-3/2"
    bars(options.plot, entries, "nanoseconds per entry of K", title)


if __name__ == "__main__":
    main()
