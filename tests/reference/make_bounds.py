"""Values and gradients of every bound on three stored problems, as commit 538c948 computed them.

    git worktree add /tmp/before 538c948
    PYTHONPATH=/tmp/before/src python tests/reference/make_bounds.py tests/reference/bounds.json

`tests/test_stored_bounds.py` asks for the same numbers to 1e-12 relative. The file is made by the code
before the package was split into layers, where the chain had these blocks by default and was asked for
by name; do not make it again with later code.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import cglb
from cglb import bounds
from cglb.bounds.logdet import Chain

N, D, M = 230, 3, 16  # two tiles of 200 rows
PROBLEMS = {
    "matern32": (cglb.Matern32([0.8, 1.3, 2.1], 1.4), 0.05),
    "sum": (cglb.RBF(1.1) + 0.5 * cglb.Matern12([0.6, 1.0, 1.7]), 0.01),
    "columns": (
        cglb.Matern52(1.5).on([0, 2]) * cglb.RationalQuadratic(2.0).on([1]) + cglb.Linear(0.3),
        0.2,
    ),
}
# by name, with the blocks of the time when the values were stored
UPPER = {
    **{name: name for name in ("trace", "amgm", "hadamard", "waterfill")},
    "chain": Chain(block=64, neighbours=64),
}
LOWER = ("nystrom", "spectral")


def data():
    rng = np.random.default_rng(42)
    X = rng.normal(size=(N, D))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * X.sum(axis=1) + 0.1 * rng.normal(size=N)
    return X, y, X[rng.permutation(N)[:M]] + 0.05 * rng.normal(size=(M, D)), 0.3 * rng.normal(size=N)


def cases():
    """Name and function (gp, X, y, Z, v) of every bound."""
    yield "exact", lambda gp, X, y, Z, v: bounds.exact(gp, X, y)
    for which, bound in UPPER.items():
        yield f"sgpr {which}", lambda gp, X, y, Z, v, u=bound: bounds.sgpr(gp, X, y, Z, logdet=u)
        yield f"cglb {which}", lambda gp, X, y, Z, v, u=bound: bounds.cglb(gp, X, y, Z, v, logdet=u)
    for which in LOWER:
        yield f"upper {which}", lambda gp, X, y, Z, v, u=which: bounds.upper(gp, X, y, Z, v, logdet=u)


def evaluate(bound, gp, X, y, Z, v):
    def value(gp, Z):
        terms = bound(gp, X, y, Z, v)
        return jnp.asarray(terms.value), terms

    (_, terms), gradient = jax.value_and_grad(value, argnums=(0, 1), has_aux=True)(gp, Z)
    leaves = [np.asarray(leaf).ravel().tolist() for leaf in jax.tree.leaves(gradient)]
    terms = {name: float(getattr(terms, name)) for name in ("constant", "quadratic", "logdet")}
    return {"terms": terms, "gradient": leaves}


def everything(problems=PROBLEMS):
    with cglb.float64():
        arrays = [jnp.asarray(array) for array in data()]
        found = {}
        for name in problems:
            kernel, noise = PROBLEMS[name]
            gp = jax.tree.map(jnp.asarray, cglb.GP(kernel, noise, 0.2))
            found[name] = {case: evaluate(bound, gp, *arrays) for case, bound in cases()}
        return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(everything(), indent=1) + "\n")
