"""Inputs and a target as plain NumPy arrays, and their parts for training and test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Dataset", "Split"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Split:
    """A training and a test part, with shifts and scales to return to the original units.

    In original units the data are `X_shift + X_scale * X_train` and `y_shift + y_scale * y_train`, and
    likewise for the test part. Multiply a predicted variance by `y_scale**2`.

    Attributes:
        X_train: [n, d].
        y_train: [n].
        X_test: [t, d].
        y_test: [t].
        X_shift: [d], 0 in a new split.
        X_scale: [d], 1 in a new split.
        y_shift: 0 in a new split.
        y_scale: 1 in a new split.
    """

    X_train: Array
    y_train: Array
    X_test: Array
    y_test: Array
    X_shift: Array
    X_scale: Array
    y_shift: float = 0.0
    y_scale: float = 1.0

    def standardised(self) -> Split:
        """This split with mean 0 and standard deviation 1 in every column of the training part.

        The test part is shifted and scaled by the same numbers, so it does not leak into training. A
        column that is constant in training is centred and keeps its scale.
        """
        X_mean, X_std = self.X_train.mean(axis=0), _scale(self.X_train)
        y_mean, y_std = float(self.y_train.mean()), float(_scale(self.y_train))
        return Split(
            X_train=(self.X_train - X_mean) / X_std,
            y_train=(self.y_train - y_mean) / y_std,
            X_test=(self.X_test - X_mean) / X_std,
            y_test=(self.y_test - y_mean) / y_std,
            X_shift=self.X_shift + self.X_scale * X_mean,
            X_scale=self.X_scale * X_std,
            y_shift=self.y_shift + self.y_scale * y_mean,
            y_scale=self.y_scale * y_std,
        )


def _scale(columns: Array) -> Array:
    """Standard deviation of each column, or 1 for a constant column."""
    std = columns.std(axis=0)
    # Test the range: rounding can give a constant column a standard deviation just above 0.
    return np.where((np.ptp(columns, axis=0) > 0) & (std > 0), std, 1.0)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs and one target, finite float64.

    Attributes:
        name: what messages call the set.
        X: inputs [n, d].
        y: targets [n].
        feature_names: d names; by default x1, x2, ...
        target_name: the name of y.
    """

    name: str
    X: Array
    y: Array
    feature_names: tuple[str, ...] = ()
    target_name: str = "y"

    def __post_init__(self) -> None:
        X, y = np.asarray(self.X, dtype=np.float64), np.asarray(self.y, dtype=np.float64)
        d = X.shape[1] if X.ndim == 2 else None
        columns = tuple(self.feature_names) or tuple(f"x{j + 1}" for j in range(d or 0))
        if y.shape != X.shape[:1] or len(columns) != d:
            raise ValueError(
                f"{self.name}: X must be [n, d], y [n], and feature_names d names or none; found "
                f"{X.shape}, {y.shape} and {len(columns)} names. One input column needs "
                "X.reshape(-1, 1), a target column y.ravel()."
            )
        if bad := np.flatnonzero(~np.isfinite(np.column_stack([X, y])).all(axis=1)).tolist():
            raise ValueError(
                f"{self.name}: {len(bad)} rows of X and y have values that are missing or not "
                f"finite; the first is row {bad[0]}. Fill in these values or drop the rows."
            )
        for field, value in (("X", X), ("y", y), ("feature_names", columns)):
            object.__setattr__(self, field, value)  # the only way to set a field of a frozen dataclass

    def split(self, fraction: float = 2 / 3, seed: int = 0) -> Split:
        """A random split with `round(fraction * n)` training rows, the same for the same seed.

        Raises:
            ValueError: if one of the parts would be empty.
        """
        n, d = self.X.shape
        n_train = round(fraction * n) if 0 < fraction < 1 else 0
        if not 0 < n_train < n:
            problem = f"fraction={fraction} of {n} rows leaves no training rows or no test rows"
            raise ValueError(f"{problem}. Choose a number between 0 and 1 that leaves some of both.")
        train, test = np.split(np.random.default_rng(seed).permutation(n), [n_train])
        X, y = self.X, self.y
        return Split(X[train], y[train], X[test], y[test], np.zeros(d), np.ones(d))
