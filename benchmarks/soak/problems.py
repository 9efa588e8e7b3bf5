"""Random problems through every bound, certificate and variance, against quadruple precision.

A bound must hold for every v, so one reference per problem serves hundreds of them. All problems have
one shape per kernel and number of columns, so that nothing is compiled anew.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from quadruple import Truth, truth
from tally import Tally

import cglb
from cglb import bounds, kernels
from cglb.bounds.certificate import Certificate
from cglb.bounds.logdet import Side, find, names
from cglb.core.errors import NystromError
from cglb.linalg.blocks import Neighbours, find_blocks
from cglb.linalg.cg import Solution, Stop
from cglb.linalg.rounding import Rounding
from cglb.linalg.system import System
from cglb.posteriors import variance

ROWS, POINTS, VECTORS, NEW = 24, 6, 256, 4
BLOCK = 4  # rows per block of the chain, and neighbours of each: far fewer than all
GROUPS = ("sane", "floor", "extreme")
# kernels and numbers of columns: on 2 distances are differences, on 6 they come from a matrix product
SHAPES = (
    ("rbf", 6), ("matern12", 2), ("matern12", 6), ("matern32", 2), ("matern32", 6), ("matern52", 6),
    ("linear", 2), ("sum", 6), ("product", 6),
)  # fmt: skip


def problem(seed: int) -> tuple[str, cglb.GP, np.ndarray, np.ndarray]:
    """The group, the model, X and y of a seed."""
    rng = np.random.default_rng(seed)
    group = GROUPS[seed % len(GROUPS)]
    kind, d = SHAPES[rng.integers(len(SHAPES))]
    X = rng.normal(size=(ROWS, d))
    if group != "sane" and rng.random() < 0.3:  # close pairs, or duplicates
        apart = 0.0 if rng.random() < 0.3 else 10.0 ** rng.uniform(-12, 0)
        X[1::2] = X[::2] + apart * rng.normal(size=X[::2].shape)
    if group == "extreme":
        if rng.random() < 0.3:
            X[rng.integers(ROWS)] = 10.0 ** rng.uniform(2, 8)
        if rng.random() < 0.3:
            X = X * 10.0 ** rng.uniform(0, 6)
        if rng.random() < 0.3:
            X = X + 10.0 ** rng.uniform(0, 8)
    log_variance = {"sane": (-1, 1), "floor": (-1, 4), "extreme": (-4, 8)}[group]
    log_noise = {"sane": (-4, 0), "floor": (-6, -5), "extreme": (-9, 2)}[group]
    kernel = _kernel(kind, d, log_variance, rng)
    gp = cglb.GP(kernel, 10.0 ** rng.uniform(*log_noise), rng.normal())
    clean = rng.random() < 0.5
    signal = 10.0 ** rng.uniform(-2, 2) * np.tanh(X @ rng.normal(size=d))
    return group, gp, X, signal + (0.0 if clean else 1.0) * rng.normal(size=ROWS)


def _kernel(kind: str, d: int, log_variance: tuple[float, float], rng: np.random.Generator):
    size, scale = 10.0 ** rng.uniform(*log_variance), 10.0 ** rng.uniform(-1, 1.5, size=d)
    if kind == "linear":
        return cglb.Linear(size * np.ones(d))
    if kind == "sum":
        return cglb.Matern32(scale, size) + cglb.Linear(10.0 ** rng.uniform(-2, 0, size=d))
    if kind == "product":
        return cglb.RBF(scale, size) * cglb.Matern12(10.0 ** rng.uniform(-1, 1.5, size=d), 1.0)
    return kernels.find(kind)(scale, size)


def check(seed: int, tally: Tally) -> None:
    """All checks of one problem."""
    group, gp, X, y = problem(seed)
    rng = np.random.default_rng([seed, 1])
    where = f"python benchmarks/soak bounds --from {seed} --problems 1"
    near = X[:NEW] * (1.0 + 0.1 * rng.normal(size=(NEW, 1)))
    X_star = np.where(rng.random(size=(NEW, 1)) < 0.5, X[:NEW], near)
    try:
        exact = truth(gp, X, y, X_star)
    except FloatingPointError:
        tally.note(group, "beyond the reference")
        return
    Z = X[np.sort(rng.choice(ROWS, POINTS, replace=False))]
    with cglb.float64():
        gp_, X_, y_, Z_ = jax.tree.map(jnp.asarray, (gp, X, y, Z))
        blocks = Neighbours.given(find_blocks(gp_.kernel, X_, BLOCK, BLOCK))
        system = System(gp_, X_, Z_, neighbours=blocks)
        try:
            system.nystrom  # noqa: B018 (made at first use)
        except NystromError:
            tally.note(group, "no factor: a named error")
            return
        _bounds(system, y_, exact, (tally, group, where), rng)
        _certificates(system, y_, exact, (tally, group, where))
    _variances(gp, X, Z, X_star, exact, (tally, group, where))


def _bounds(system: System, y, exact: Truth, to: tuple, rng: np.random.Generator) -> None:
    """Both sides of the quadratic term at many v, all bounds on log|K̂|, and their sums."""
    tally, group, where = to
    rounding, e = Rounding.of(system), y - system.gp.mean
    V = _vectors(system, e, rng)
    K_hat_V = system.operator @ V
    E = jnp.broadcast_to(e[:, None], V.shape)
    R = E - K_hat_V
    slack = 0.5 * jnp.sum(R * system.nystrom.solve(R), axis=0)
    form = rounding.quadratic(E, Solution(V, K_hat_V, slack, 0, 0, Stop.TOLERANCE))
    low, high = np.asarray(form.lower), np.asarray(form.upper)
    middle = np.asarray(jnp.sum(2.0 * E * V - V * K_hat_V, axis=0))
    bare = middle + 2.0 * np.asarray(slack)
    tally.check(group, "quadratic term from below", where, middle - exact.quadratic, middle - low)
    tally.check(group, "quadratic term from above", where, exact.quadratic - bare, high - bare)
    evidence = -0.5 * (ROWS * np.log(2.0 * np.pi) + exact.quadratic + exact.logdet)
    for side, forms in ((Side.ABOVE, high), (Side.BELOW, low)):
        for name in names(side):
            for bound in find(name, side).prepare(system).variants(system.m):
                value, certain = float(bound(system.view)), bound.certain(system.view, rounding)
                if np.isnan(certain):  # which is left out and named
                    tally.note(group, f"log-det bound {bound.name} is NaN")
                    continue
                sign = 1.0 if side == Side.BELOW else -1.0
                off, margin = sign * (value - exact.logdet), abs(certain - value)
                tally.check(group, f"log|K̂| from {side}: {bound.name}", where, off, margin)
                total = -0.5 * (ROWS * np.log(2.0 * np.pi) + forms + certain)
                kind = f"log p(y) from {'above' if sign > 0 else 'below'}"
                tally.check(group, kind, where, sign * (evidence - total), 0.0)


def _vectors(system: System, e, rng: np.random.Generator):
    """v of all sizes: 0, the solution in float64, that with changes, and anything."""
    K_hat = np.asarray(system.operator @ jnp.eye(system.n))
    best = np.linalg.lstsq(K_hat, np.asarray(e), rcond=None)[0]
    sizes = 10.0 ** rng.uniform(-12, 3, size=VECTORS)
    V = rng.normal(size=(system.n, VECTORS)) * sizes
    V[:, 1 : VECTORS // 2] = best[:, None] * (1.0 + V[:, 1 : VECTORS // 2])
    V[:, 0] = 0.0
    return jnp.asarray(V)


def _certificates(system: System, y, exact: Truth, to: tuple) -> None:
    """Two levels, the factor, and `bounds.exact`; lower ≤ upper always."""
    tally, group, where = to
    evidence = -0.5 * (ROWS * np.log(2.0 * np.pi) + exact.quadratic + exact.logdet)

    def ask(kind: str, lower: float, upper: float, rounding: float) -> None:
        outside = max(lower - evidence, evidence - upper)
        tally.check(group, kind, where, outside, 0.0)
        tally.check(group, f"{kind}: width", where, lower - upper, 0.0)
        if np.isfinite(rounding):
            tally.check(group, f"{kind}: rounding", where, -1.0, rounding)

    found = Certificate(system, y)
    for level in ("certificate", "certificate, second level"):
        found.refine()
        ask(level, found.lower, found.upper, found.rounding)
        if found.settled:
            break
    try:
        known = Certificate(System(system.gp, system.X, None), y)
        known.exact()
        ask("certificate by a factor", known.lower, known.upper, known.rounding)
        terms = bounds.exact(system.gp, system.X, y)
        off = abs(float(terms.value) - evidence)
        tally.check(group, "exact value", where, off, float(terms.rounding))
    except np.linalg.LinAlgError:  # it says that there is no factor
        tally.note(group, "no factor: a named error")


def _variances(gp: cglb.GP, X, Z, X_star, exact: Truth, to: tuple) -> None:
    tally, group, where = to
    found = variance.bracket(gp, X, Z, X_star)
    outside = np.maximum(found.lower - exact.variances, exact.variances - found.upper)
    tally.check(group, "variance bracket", where, outside, 0.0)
    for label, points in (("with Z", Z), ("alone", None)):
        local = variance.local(gp, X, X_star, points, neighbours=ROWS)
        tally.check(group, f"local variance, {label}", where, exact.variances - local, 0.0)
