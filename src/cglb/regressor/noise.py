"""Weights and known noise variances of rows, as a user gives them."""

from __future__ import annotations

from typing import Any

import numpy as np

from cglb.linalg.row_noise import RowNoise

__all__ = ["with_noise"]


def with_noise(
    X: np.ndarray, y: np.ndarray, weight: Any, variance: Any, given: int, kept: Any
) -> tuple[np.ndarray, np.ndarray, RowNoise]:
    """X, y and the noise of their rows, without the rows of weight 0.

    Args:
        X: inputs.
        y: targets.
        weight: weights of the rows as given; None is 1 for all.
        variance: known noise variances of the rows as given; None is 0 for all.
        given: how many rows were given.
        kept: which of them X and y are.

    Raises:
        ValueError: if there is not one finite number per row, one is negative, or all weights are 0.
    """
    weights = _numbers("sample_weight", weight, given)
    known = _numbers("noise_variance", variance, given)
    weights = None if weights is None else weights[kept]
    known = None if known is None else known[kept]
    if weights is not None and not weights.all():
        used = weights > 0.0
        if not used.any():
            raise ValueError("sample_weight is zero for every row.")
        X, y, weights = X[used], y[used], weights[used]
        known = None if known is None else known[used]
    # weights of 1 and variances of 0 say nothing
    weights = None if weights is None or np.all(weights == 1.0) else weights
    known = None if known is None or not known.any() else known
    return X, y, RowNoise(weights, known)


def _numbers(name: str, value: Any, n: int) -> np.ndarray | None:
    if value is None:
        return None
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 0:
        array = np.full(n, float(array))
    if array.shape != (n,):
        raise ValueError(f"{name} must have one number per row ({n}), found shape {array.shape}.")
    if not np.isfinite(array).all() or (array < 0.0).any():
        raise ValueError(f"{name} must be finite and at least 0.")
    return array
