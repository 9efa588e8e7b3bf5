"""How tight each bound is and what it costs, for one trained model: same θ, same Z, same v.

    python benchmarks/tightness.py --data pol --inducing 512

Trains with the paper's bound (checkpointed; --steps), factors K̂ exactly, and prints

- for every log-det bound: half its gap to the exact log-determinant, the gap of the evidence bound to
  the exact log marginal likelihood, and the time of a value and gradient relative to `amgm`;
- CG steps to one nat from v = 0 with each preconditioner and the automatic choice, at the learned noise
  and at smaller noise;
- for some test rows: whether the `cg` bracket contains the exact variance, how wide it is, and the
  errors of SGPR's and the local variance.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import RESULTS, machine, standardised, write

import cglb
from cglb import posteriors
from cglb.bounds.logdet import Chain, Side, by_cost
from cglb.linalg.system import System
from cglb.posteriors import ExactPosterior, variance

CHECKPOINTS = Path(__file__).parent / ".checkpoints"
BOUNDS = ["trace", "amgm", "waterfill", "hadamard", "chain", "chain, half", "vecchia", "auto"]


def trained(options: argparse.Namespace, X: np.ndarray, y: np.ndarray) -> Any:
    CHECKPOINTS.mkdir(exist_ok=True)
    name = f"{options.data}-{options.inducing}-{options.steps}-{len(y)}-{options.seed}"
    return cglb.train(
        cglb.GP(cglb.Matern32(np.ones(X.shape[1]))),
        X,
        y,
        cglb.CGLB(logdet="amgm"),
        num_inducing=options.inducing,
        max_steps=options.steps,
        schedule="direct",
        checkpoint=CHECKPOINTS / name,
        callback=lambda row, _: print(f"\rstep {row['step']}: {row['bound']:.1f}", end="", flush=True),
    )


def logdet_settings(name: str, m: int) -> Any:
    special = {"chain, half": Chain(inner=m // 2), "vecchia": Chain(inner=0)}
    return special.get(name, name)


def gaps(fit: Any, X: np.ndarray, y: np.ndarray, exact: ExactPosterior, repeats: int) -> list[dict]:
    """One row per bound: gaps in nats, and seconds for a value and gradient."""
    half_logdet = float(np.sum(np.log(np.diagonal(exact.L))))
    rows = []
    with cglb.float64():
        data = tuple(jnp.asarray(a) for a in (X, y, fit.Z))
        gp = jax.tree.map(jnp.asarray, fit.gp)
        v = cglb.solve(fit.gp, X, y, fit.Z, v0=fit.v, tolerance=1e-3).v
        methods = {name: cglb.CGLB(logdet=logdet_settings(name, len(fit.Z))) for name in BOUNDS}
        x, targets, z = data

        def system(name: str, prepared: Any = None) -> System:
            return methods[name].system(gp, x, z, prepared)

        prepared = {name: methods[name].prepare(system(name)) for name in BOUNDS}

        def evaluate(name: str) -> Any:
            own = system(name, prepared[name])
            return methods[name].evaluate(prepared[name], own, targets, jnp.asarray(v))

        found = {name: evaluate(name) for name in BOUNDS}
        times: dict[str, list[float]] = {name: [] for name in BOUNDS}
        for _ in range(repeats):  # alternate, so that other load on the machine affects all of them
            for name in BOUNDS:
                started = time.perf_counter()
                jax.block_until_ready(evaluate(name).gp_bar)
                times[name].append(time.perf_counter() - started)
        for name in BOUNDS:
            rows.append(
                {
                    "bound": name if name != "auto" else f"auto: {prepared[name].logdet.name}",
                    "logdet_gap": -float(found[name].terms.logdet) - half_logdet,
                    "lml_gap": float(exact.lml) - found[name].value,
                    "seconds": statistics.median(times[name]),
                    "products": found[name].products,
                }
            )
        view = System(gp, x, z).view
        for bound in by_cost(Side.BELOW):
            started = time.perf_counter()
            value = 0.5 * float(bound(view))
            rows.append(
                {"bound": f"{bound.name} (from below)", "logdet_gap": value - half_logdet,
                 "seconds_of_value": time.perf_counter() - started}
            )  # fmt: skip
    amgm = next(row["seconds"] for row in rows if row["bound"] == "amgm")
    reference = next(row["logdet_gap"] for row in rows if row["bound"] == "amgm")
    for row in rows:
        row["gap_to_amgm"] = row["logdet_gap"] / reference
        if "seconds" in row:
            row["time_to_amgm"] = row["seconds"] / amgm
    return rows


def cg_steps(fit: Any, X: np.ndarray, y: np.ndarray) -> list[dict]:
    """CG steps to one nat from v = 0, at decreasing noise."""
    rows = []
    for factor in (1.0, 0.1, 0.01):
        gp = cglb.GP(fit.gp.kernel, float(fit.gp.noise) * factor, fit.gp.mean)
        row: dict[str, Any] = {"noise": float(gp.noise)}
        for name in ("nystrom", "chain", "auto"):
            solution = cglb.solve(gp, X, y, fit.Z, precondition=name, max_steps=2000)
            row[name] = solution.steps
            row[f"{name}_stop"] = solution.stop.value
        row["auto_to_better"] = row["auto"] / max(min(row["nystrom"], row["chain"]), 1)
        rows.append(row)
    return rows


def variances(
    fit: Any, X: np.ndarray, y: np.ndarray, X_star: np.ndarray, exact: ExactPosterior
) -> dict[str, Any]:
    truth = exact.variance(X_star)
    started = time.perf_counter()
    found = variance.bracket(fit.gp, X, fit.Z, X_star, tolerance=0.009)
    seconds = time.perf_counter() - started
    local = variance.local(fit.gp, X, X_star, fit.Z)
    sgpr = posteriors.sgpr(fit.gp, X, y, fit.Z).variance(X_star)
    room = 1e-9 * float(fit.gp.kernel.variance)
    width = (found.upper - found.lower) / truth
    return {
        "rows": len(X_star),
        "contained": int(np.sum((found.lower - room <= truth) & (truth <= found.upper + room))),
        "widest": float(width.max()),
        "products": found.products,
        "seconds": seconds,
        "local_below": int(np.sum(local < truth - room)),
        "local_median_ratio": float(np.median(local / truth)),
        "sgpr_below": int(np.sum(sgpr < truth - room)),
        "sgpr_median_ratio": float(np.median(sgpr / truth)),
    }


def show(result: dict[str, Any]) -> None:
    heads = [("½ log-det gap", 14), ("LML gap", 10), ("× amgm", 7), ("s", 7), ("× time", 7)]
    print(f"\n{'bound':42s} " + " ".join(f"{head:>{width}s}" for head, width in heads))
    for row in result["gaps"]:
        lml, seconds = row.get("lml_gap", float("nan")), row.get("seconds", float("nan"))
        print(
            f"{row['bound']:42s} {row['logdet_gap']:14.1f} {lml:10.1f} {row['gap_to_amgm']:7.2f} "
            f"{seconds:7.2f} {row.get('time_to_amgm', float('nan')):7.2f}"
        )
    print(f"\n{'noise':>10s} {'nystrom':>8s} {'chain':>8s} {'auto':>8s}  CG steps to one nat")
    for row in result["cg_steps"]:
        print(f"{row['noise']:10.1e} {row['nystrom']:8d} {row['chain']:8d} {row['auto']:8d}")
    print("\nvariances:", result["variances"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=None, help="use only so many training rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--test-rows", type=int, default=200)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()

    X, y, X_test, _ = standardised(options.data, options.rows, options.seed)
    fit = trained(options, X, y)
    exact = posteriors.exact(fit.gp, X, y)
    result = {
        "settings": {name: value for name, value in vars(options).items() if name != "json"},
        "rows": len(y),
        "parameters": fit.history[-1]["parameters"],
        "training_seconds": fit.seconds,
        "exact_lml": float(exact.lml),
        "gaps": gaps(fit, X, y, exact, options.repeats),
        "cg_steps": cg_steps(fit, X, y),
        "variances": variances(fit, X, y, X_test[: options.test_rows], exact),
        "machine": machine(),
    }
    show(result)
    write(options.json or RESULTS / f"tightness-{options.data}-{options.inducing}.json", result)


if __name__ == "__main__":
    main()
