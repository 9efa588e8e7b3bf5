"""The data of `learn.py`: large and small sets, and two toys."""

from __future__ import annotations

import numpy as np

from cglb.data import datasets

TEST_ROWS = 1000


def toy(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """y = sin 2x₀ + 0.3x₁² + 0.1ε in 8 columns."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 8))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] ** 2 + 0.1 * rng.normal(size=n)


def friedman(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Friedman's first function: 5 of 10 columns matter, and the noise has variance 1."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 10))
    clean = (
        10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    )
    return X, clean + rng.normal(size=n)


TOYS = {"toy": toy, "friedman": friedman}
LARGE = ["bike", "elevators", "pol", "kin40k", "protein"]
SETS = {
    "large": (LARGE, [0, 1, 2]),
    "kernels": (LARGE, [0]),
    "small": (["airfoil", "concrete", "energy", "yacht", "wine"], [0, 1, 2, 3, 4]),
    "toys": ([f"{name}-{rows}" for name in TOYS for rows in (200, 1000)], list(range(20))),
}


def load(kind: str, name: str, split: int) -> tuple[np.ndarray, ...]:
    """X, y, X_test and y_test, standardised by the training part."""
    if kind == "toys":
        function, rows = name.split("-")
        X, y = TOYS[function](int(rows) + TEST_ROWS, split)
        X, y, X_test, y_test = X[: int(rows)], y[: int(rows)], X[int(rows) :], y[int(rows) :]
    else:
        found = datasets.load(name).split(seed=split)
        X, y, X_test, y_test = found.X_train, found.y_train, found.X_test, found.y_test
    shift, scale = X.mean(0), np.where(X.std(0) > 0, X.std(0), 1.0)
    return (
        (X - shift) / scale,
        (y - y.mean()) / y.std(),
        (X_test - shift) / scale,
        (y_test - y.mean()) / y.std(),
    )
