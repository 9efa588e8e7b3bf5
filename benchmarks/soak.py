"""Random problems through every bound, certificate and variance, against 50 decimal digits.

    make soak                                # an hour
    python benchmarks/soak.py --seconds 60   # or so many seconds

Each problem has hyperparameters over many orders of magnitude, from sane ones to those where float64
says nothing, and inputs with outliers, close pairs, duplicates and offsets. The run stops at the first
violation and prints the seed that makes it again (`--seed N --seconds 0`). At the end it prints how many
checks there were and the largest margins for rounding.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import precise

import cglb
from cglb import bounds
from cglb.core.cache import use_compilation_cache
from cglb.posteriors import variance

ROWS, POINTS = 16, 5
ABOVE = ("trace", "amgm", "hadamard", "waterfill", "chain")
BELOW = ("nystrom", "spectral", "moments")
KERNELS = (cglb.RBF, cglb.Matern12, cglb.Matern32, cglb.Matern52)


def problem(seed: int):
    """(gp, X, y, v) of a seed."""
    rng = np.random.default_rng(seed)
    d = (2, 6)[rng.integers(2)]
    X = rng.normal(size=(ROWS, d))
    for change in range(4):
        if rng.random() < 0.25:
            if change == 0:
                X[rng.integers(ROWS)] = 10.0 ** rng.uniform(2, 8)
            elif change == 1:
                X[1::2] = X[::2] + 10.0 ** rng.uniform(-12, 0) * rng.normal(size=X[::2].shape)
            elif change == 2:
                X = X * 10.0 ** rng.uniform(0, 6)
            else:
                X = X + 10.0 ** rng.uniform(0, 8)
    if rng.random() < 0.1:
        kernel = cglb.Linear(10.0 ** rng.uniform(-2, 2, size=d))
    else:
        kind = KERNELS[rng.integers(len(KERNELS))]
        kernel = kind(10.0 ** rng.uniform(-1, 1.5, size=d), 10.0 ** rng.uniform(-3, 4))
    gp = cglb.GP(kernel, 10.0 ** rng.uniform(-8, 1), rng.normal())
    y = rng.normal(size=ROWS) + 10.0 ** rng.uniform(-2, 2) * np.tanh(X[:, 0])
    return gp, X, y, 10.0 ** rng.uniform(-3, 2) * rng.normal(size=ROWS)


def check(seed: int, counts: Counter, margins: dict[str, list[float]]) -> None:
    gp, X, y, v = problem(seed)
    L = precise.factor(gp, X)
    truth = precise.log_likelihood(gp, X, y, L)
    Z = np.unique(X[:POINTS], axis=0)

    def ask(what: str, holds: bool, margin: float = np.inf) -> None:
        counts[what] += 1
        if np.isfinite(margin):
            margins.setdefault(what, []).append(margin)
        if not holds:
            raise SystemExit(f"VIOLATION: {what} of seed {seed}: log p(y) = {truth!r}. {gp}")

    for what, options in (("certificate", {"Z": Z}), ("exact certificate", {"exact": True})):
        try:
            found = cglb.certify(gp, X, y, **options)
        except np.linalg.LinAlgError:  # it says that there is no factor
            counts["no factor"] += 1
            continue
        ask(what, found.lower <= truth <= found.upper, found.rounding)
    for name in ABOVE:
        terms = bounds.cglb(gp, X, y, Z, v, logdet=name)
        ask(f"lower bound {name}", terms.lower <= truth, float(terms.rounding))
    for name in BELOW:
        terms = bounds.upper(gp, X, y, Z, v, logdet=name)
        ask(f"upper bound {name}", terms.upper >= truth, float(terms.rounding))
    X_star = np.concatenate([X[:1], X[:1] + 0.1])
    exact = precise.variances(gp, X, X_star, L)
    found = variance.bracket(gp, X, Z, X_star)
    ask("variance bracket", bool((found.lower <= exact).all() and (exact <= found.upper).all()))
    ask("local variance", bool((exact <= variance.local(gp, X, X_star, Z, neighbours=ROWS)).all()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first problem")
    options = parser.parse_args()
    use_compilation_cache()
    counts, margins = Counter(), {}
    started, seed = time.perf_counter(), options.seed
    while True:
        check(seed, counts, margins)
        seed += 1
        if time.perf_counter() - started >= options.seconds:
            break
    print(f"{seed - options.seed} problems, {sum(counts.values())} checks, no violation")
    print(f"{'check':24s} {'count':>7s} {'useful':>7s} {'median margin':>14s} {'largest':>10s}  (nats)")
    for what, count in sorted(counts.items()):
        known = margins.get(what, [])
        numbers = f"{len(known):7d} {np.median(known):14.2g} {max(known):10.2g}" if known else ""
        print(f"{what:24s} {count:7d} {numbers}")


if __name__ == "__main__":
    main()
