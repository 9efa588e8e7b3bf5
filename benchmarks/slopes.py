"""How far slopes are from those of the exact quadratic form, at v of a few certified tolerances.

    python benchmarks/slopes.py

At the hyperparameters that `learn.py large` has learned (split 0) on a part of the rows, CG solves
K̂v = e from 0 to each tolerance. Printed: steps, the certified slack ½rᵀQ̂⁻¹r, the true loss ½rᵀK̂⁻¹r by
Cholesky, and the largest error of a slope in a logarithm of a kernel parameter: at fixed v, and at the
solution (see `cglb.bounds.evidence.cglb_at_solution`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import learn_data
import numpy as np
from common import RESULTS, machine, write
from learn import known, model_of
from scipy import linalg

import cglb
from cglb.linalg.cg import Limits
from cglb.training.problem import random_rows

TOLERANCES = (1.0, 0.1, 0.01, 0.001)


def measure(name: str, n: int, m: int) -> list[dict[str, Any]]:
    """One row per tolerance."""
    X, y, *_ = learn_data.load("large", name, 0)
    part = random_rows(len(X), n, 0)
    gp = model_of(known("large")[f"{name} 0 cglb"]["parameters"])
    Z = cglb.inducing.greedy(gp.kernel, X[part], m)
    with cglb.float64():
        gp, X, y, Z = jax.tree.map(jnp.asarray, (gp, X[part], y[part], Z))
        system = cglb.System(gp, X, Z)
        e = system.residual(y)
        K_hat = np.asarray(gp.kernel(X, X)) + float(gp.noise) * np.eye(n)
        factor = linalg.cho_factor(K_hat, lower=True, overwrite_a=True)

        def solved(b: Any) -> jax.Array:
            return jnp.asarray(linalg.cho_solve(factor, np.asarray(b)))

        def slopes(a: jax.Array, b: jax.Array) -> np.ndarray:
            """aᵀ(dK)b in the logarithms of the kernel's parameters."""
            kernel_bar = system.operator.bilinear_gradient(a, b).kernel
            scaled = jax.tree.map(jnp.multiply, kernel_bar, gp.kernel)
            return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(scaled)])

        exact = solved(e)
        wanted, rows = 0.5 * slopes(exact, exact), []
        for tolerance in TOLERANCES:
            found = system.solve(e, None, Limits(tolerance))
            r = e - found.K_hat_v
            at_solution = 0.5 * slopes(found.v, found.v)
            at_fixed = at_solution + slopes(system.nystrom.solve(r), found.v)
            rows.append(
                {
                    "tolerance": tolerance,
                    "steps": found.steps,
                    "slack": float(found.slack),
                    "loss": float(0.5 * r @ solved(r)),
                    "fixed": float(np.abs(at_fixed - wanted).max()),
                    "solution": float(np.abs(at_solution - wanted).max()),
                }
            )
            print(name, rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="elevators,bike,pol,kin40k,protein")
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--json", type=Path, default=RESULTS / "slopes.json")
    options = parser.parse_args()
    results = {name: measure(name, options.rows, options.inducing) for name in options.sets.split(",")}
    settings = {"rows": options.rows, "inducing": options.inducing}
    write(options.json, {"settings": settings, "results": results, "machine": machine()})


if __name__ == "__main__":
    main()
