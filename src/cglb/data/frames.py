"""From the user's tables to arrays: missing values and scales."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from cglb.data.table import Table

__all__ = ["check_target", "feature_scale", "missing_message"]


def check_target(X: Any, y: Any, drop_missing: bool) -> tuple[Any, Any, Any]:
    """X and y without the rows whose target is missing, and the numbers of the rows that are left.

    Args:
        X: inputs, as the user gave them.
        y: targets, as the user gave them.
        drop_missing: whether such rows may be dropped.

    Raises:
        ValueError: if y is None, or if targets are missing and may not be dropped.
    """
    if y is None:
        raise ValueError("GPRegressor requires y to be passed, but the target y is None.")
    if np.asarray(y).dtype.kind not in "fO":
        return X, y, slice(None)
    try:
        values = _numbers(y)
    except (TypeError, ValueError):
        return X, y, slice(None)  # scikit-learn's validation has a better message
    if not np.isnan(values).any():
        return X, y, slice(None)
    missing = np.isnan(values).reshape(len(values), -1).any(axis=1)
    if not drop_missing:
        raise ValueError(
            f"Input y contains NaN: {int(missing.sum())} of {len(values)} targets are missing. Drop "
            "those rows, or pass drop_missing=True (--drop-missing on the command line)."
        )
    keep = np.flatnonzero(~missing)
    return _rows(X, keep), values[keep], keep


def _numbers(table: Any) -> np.ndarray:
    """The table as float64, with NaN for missing entries."""
    if hasattr(table, "isna"):  # pandas, whose NA is not a number
        return table.to_numpy(dtype=np.float64, na_value=np.nan)
    values = np.asarray(table)
    if values.dtype.kind not in "biufO":  # scikit-learn's validation judges complex numbers and text
        raise TypeError(f"{values.dtype} is not a real number.")
    return values.astype(np.float64)


def _rows(X: Any, keep: np.ndarray) -> Any:
    if hasattr(X, "iloc"):  # pandas
        return X.iloc[keep]
    if isinstance(X, Table) or type(X) is dict:
        return (X if isinstance(X, Table) else Table.of(X)).rows(keep)
    if hasattr(X, "take") and hasattr(X, "column_names"):  # Arrow
        return X.take(keep)
    return X[keep] if hasattr(X, "shape") else np.asarray(X)[keep]


def missing_message(X: Any) -> None:
    """Check that X has no missing values, if it is a table.

    Raises:
        ValueError: with the columns that have missing values, and how many.
    """
    columns = getattr(X, "columns", None)
    if columns is None and not (isinstance(X, np.ndarray) and X.ndim == 2):
        return  # not a table: scikit-learn's validation decides
    try:
        values = _numbers(X)
    except (TypeError, ValueError):
        return
    counts = np.isnan(values).sum(axis=0)
    if not counts.any():
        return
    names = list(columns) if columns is not None else [f"column {i}" for i in range(values.shape[1])]
    found = ", ".join(f"{names[i]} ({counts[i]})" for i in np.flatnonzero(counts)[:10])
    raise ValueError(f"Input X contains NaN: {found}. Drop or fill those entries first.")


def feature_scale(
    X: Float[np.ndarray, "n d"], weight: Float[np.ndarray, " n"] | None = None
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Mean and standard deviation of each column, of rows that count by their weight if there is one.

    A column that is constant up to rounding has its magnitude as its scale, so that results do not
    depend on units. Columns are divided by their largest magnitude first, so that huge or tiny units
    neither overflow nor underflow.
    """
    size = np.abs(X).max(axis=0)
    size = np.where(size > 0.0, size, 1.0)
    unit = X / size
    if weight is None:
        shift, scale = unit.mean(axis=0), unit.std(axis=0)
    else:
        shift = np.average(unit, axis=0, weights=weight)
        scale = np.sqrt(np.average((unit - shift) ** 2, axis=0, weights=weight))
    scale = np.where(scale > 1e-14, scale, 1.0)
    return shift * size, scale * size
