"""What the parts of an evaluation cost, next to what their flops and kernel entries allow at best.

    python benchmarks/limits.py --rows 10000 --inducing 512,1024 --exact 2000,4000
    OPENBLAS_CORETYPE=SkylakeX python benchmarks/limits.py --json benchmarks/results/limits-wide.json

A limit is flops at the GEMM rate of this machine, plus kernel entries at the rate of a product K v (for
values) or of the gradient of a bilinear form (for slopes), all measured in the same run. The GEMM rate
is XLA's. That of BLAS, which makes the factors, is printed next to it: OpenBLAS chooses narrow vectors
for some processors (see docs/performance.md). Parts run in turn, so that a busy spell hits all of them;
the best of the repeats counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import RESULTS, machine, write

import cglb
from cglb import CGLB, SGPR
from cglb.linalg import dense, nystrom
from cglb.linalg.operator import KernelOperator

Part = tuple[Callable[[], Any], float]  # what to time, and its limit in seconds


def best(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - started


def measure(parts: dict[str, Part], repeats: int) -> dict[str, dict[str, float]]:
    """The best of the repeats of each part, in turn."""
    seconds = dict.fromkeys(parts, np.inf)
    for turn in range(repeats + 1):
        for name, (function, _) in parts.items():
            took = best(function)
            if turn > 0:  # the first one compiles
                seconds[name] = min(seconds[name], took)
    found = {}
    for name, (_, limit) in parts.items():
        found[name] = {
            "seconds": seconds[name],
            "limit": limit,
            "share_of_limit": limit / seconds[name],
        }
        print(f"{name:44s} {seconds[name]:8.4f} s, limit {limit:8.4f} s", flush=True)
    return found


class Rates:
    """Seconds per flop, per kernel entry and per slope of one."""

    def __init__(self, X: jax.Array, operator: KernelOperator, repeats: int):
        a = jnp.asarray(np.random.default_rng(0).normal(size=(2000, 2000)))
        v = X[:, 0]
        rounded = operator.astype(jnp.float32)
        found = measure(
            {
                "GEMM, 2,000 rows": (lambda: a @ a, 0.0),
                "K v": (lambda: operator @ v, 0.0),
                "K v in float32": (lambda: rounded @ v, 0.0),
                "gradient of v'K v": (lambda: jax.tree.leaves(operator.bilinear_gradient(v, v)), 0.0),
            },
            repeats,
        )
        own = np.asarray(a)
        # apart from the others: the threads of BLAS wait in a loop for a while
        blas = measure({"GEMM, 2,000 rows, by BLAS": (lambda: own @ own, 0.0)}, repeats)
        self.seconds = {name: one["seconds"] for name, one in (found | blas).items()}
        gemm, entry, rounded_entry, slope, _ = self.seconds.values()
        half = 0.5 * operator.n**2  # each entry is made once and used twice
        self.flop, self.entry, self.slope = gemm / (2.0 * 2000**3), entry / half, slope / half
        self.rounded = rounded_entry / half


def sparse_parts(gp: Any, X: Any, y: Any, m: int, rates: Rates) -> dict[str, Part]:
    """SGPR's and CGLB's evaluations, and their Nyström factors."""
    n, Z = X.shape[0], X[:m]
    factor = 2.0 * n * m**2 * rates.flop + n * m * rates.entry
    pull = 2.0 * n * m**2 * rates.flop + n * m * rates.slope
    small = 4.0 * m**3 * rates.flop
    sgpr, bound = SGPR("trace"), CGLB("amgm", precondition="nystrom")
    prepared = {one: one.prepare(one.system(gp, X, Z)) for one in (sgpr, bound)}
    v = bound.evaluate(prepared[bound], bound.system(gp, X, Z), y)
    assert v is not None
    near = v.v * 1.001  # a start as good as that of a step in training
    warm = bound.evaluate(prepared[bound], bound.system(gp, X, Z), y, near)
    assert warm is not None
    inside = warm.products - 1 - warm.products // 50  # first and last residuals are in float64
    tiles = 0.5 * n**2 * (2.0 * rates.entry + rates.slope + max(0, inside - 1) * rates.rounded)

    def evaluate(one: Any, start: Any = None) -> Callable[[], Any]:
        def call() -> Any:
            found = one.evaluate(prepared[one], one.system(gp, X, Z, prepared[one]), y, start)
            return found.gp_bar, found.Z_bar

        return call

    cold = {}
    for dtype, entry in (("float64", rates.entry), ("float32", rates.rounded)):
        one = CGLB("amgm", precondition="nystrom", products=dtype)
        prepared[one] = prepared[bound]
        first = one.evaluate(prepared[one], one.system(gp, X, Z), y)
        assert first is not None
        made = 0.5 * n**2 * (2.0 * rates.entry + rates.slope + (first.products - 2) * entry)
        name = f"CGLB from v = 0, CG in {dtype}, m = {m} ({first.cg_steps} steps)"
        cold[name] = evaluate(one), factor + pull + small + made
    return {
        f"Nyström factors, m = {m}": (lambda: nystrom.factor(gp, X, Z).LB, factor + small / 2.0),
        f"SGPR, value and gradient, m = {m}": (evaluate(sgpr), factor + pull + small),
        f"CGLB, value and gradient, m = {m}": (evaluate(bound, near), factor + pull + small + tiles),
        **cold,
    }


def exact_parts(gp: Any, X: Any, y: Any, n: int, rates: Rates) -> dict[str, Part]:
    """The exact likelihood: n³ flops."""

    def call() -> Any:
        return jax.tree.leaves(dense.value_and_gradient(gp, X[:n], y[:n])[2])

    return {f"exact, value and gradient, n = {n}": (call, n**3 * rates.flop)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--inducing", default="512,1024")
    parser.add_argument("--exact", default="2000,4000")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=RESULTS / "limits.json")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    with cglb.float64():
        X = jnp.asarray(rng.normal(size=(options.rows, options.columns)))
        y = jnp.sin(X @ jnp.asarray(rng.normal(size=options.columns))) + 0.1 * rng.normal(
            size=options.rows
        )
        gp = cglb.GP(cglb.Matern32(np.full(options.columns, 3.0), 1.2), 0.05, 0.0)
        gp = jax.tree.map(jnp.asarray, gp)
        rates = Rates(X, KernelOperator.of(gp, X), options.repeats)
        parts: dict[str, Part] = {}
        for m in map(int, options.inducing.split(",")):
            parts |= sparse_parts(gp, X, y, m, rates)
        for n in map(int, options.exact.split(",")):
            parts |= exact_parts(gp, X, y, n, rates)
        found = measure(parts, options.repeats)
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    content = {"settings": settings, "rates": rates.seconds, "results": found, "machine": machine()}
    write(options.json, content)


if __name__ == "__main__":
    main()
