"""What an estimator is given becomes float64 arrays: tables through an `Encoding`, arrays directly."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_X_y, validate_data

from cglb.data.encoding import Encoding, missing_columns
from cglb.data.frames import check_target, missing_message
from cglb.data.table import Table

__all__ = ["take_new", "take_training"]


def take_training(estimator: Any, X: Any, y: Any, reset: bool) -> tuple[np.ndarray, np.ndarray, Any]:
    """X [n, d] and y [n] as checked float64 arrays, and which of the given rows they are.

    Args:
        estimator: has the settings `drop_missing` and `impute`, and takes names and number of columns
            and, as `encoding_`, how a table became X; None for plain arrays.
        X: inputs, as the user gave them.
        y: targets, as the user gave them.
        reset: learn the columns from this X, instead of comparing with those known.
    """
    X, y, kept = check_target(X, y, estimator.drop_missing)
    if reset:
        estimator.encoding_ = None
        by_table = is_table(X, estimator.impute or estimator.drop_missing)
    else:
        by_table = estimator.encoding_ is not None
    if not by_table:
        missing_message(X)
        X, y = validate_data(estimator, X, y, reset=reset, dtype=np.float64, order="C", y_numeric=True)
        return X, np.asarray(y, dtype=np.float64), kept
    X = _as_table(estimator, X, reset)
    check_consistent_length(X, y)
    known: Any = estimator.encoding_
    table = _learned_from(X) if reset else known.read(X)
    if estimator.drop_missing and not estimator.impute and missing_columns(table):
        keep = ~np.any([column.missing for column in table.columns], axis=0)
        table, y = table.rows(keep), np.asarray(y)[keep]
        kept = np.flatnonzero(keep) if isinstance(kept, slice) else kept[keep]
    if reset:
        known = estimator.encoding_ = Encoding.learn(table, estimator.impute)
    inputs, notes = known.encode(table)
    _warn(notes)
    inputs, y = check_X_y(inputs, y, order="C", y_numeric=True, estimator=estimator)
    return inputs, np.asarray(y, dtype=np.float64), kept


def take_new(estimator: Any, X: Any) -> np.ndarray:
    """New inputs as a float64 array [rows, d]."""
    if estimator.encoding_ is None:
        missing_message(X)
        return np.asarray(validate_data(estimator, X, reset=False, dtype=np.float64, order="C"))
    X = _as_table(estimator, X, reset=False)
    inputs, notes = estimator.encoding_.encode(estimator.encoding_.read(X))
    _warn(notes)
    return inputs


def is_table(X: Any, gaps: bool) -> bool:
    """Whether X needs an encoding: it has named columns, holds text, or has gaps that may be filled.

    Args:
        X: what the user gave.
        gaps: whether missing entries may be dropped or filled.
    """
    if hasattr(X, "columns") or type(X) is dict:  # a `Table` too
        return True
    if not isinstance(X, np.ndarray | list | tuple):
        return False
    try:
        array = np.asarray(X)
    except ValueError:  # rows of different lengths: scikit-learn says it better
        return False
    if array.ndim != 2 or array.dtype.kind == "c":
        return False
    try:
        values = array.astype(np.float64)
    except ValueError:
        return array.dtype.kind in "OU"  # text
    except TypeError:
        return False
    return gaps and bool(np.isnan(values).any())


def _as_table(estimator: Any, X: Any, reset: bool) -> Any:
    """X with its names and number of columns checked, or learned if `reset`."""
    if type(X) is dict:  # not SciPy's sparse arrays of that kind
        X = Table.of(X)
    if isinstance(X, Table):
        if reset:
            estimator.n_features_in_ = len(X.columns)
            estimator.feature_names_in_ = np.array(X.names, dtype=object)
        return X
    if isinstance(X, list | tuple):
        X = np.asarray(X, dtype=object)
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    return X


def _learned_from(X: Any) -> Table:
    return X if isinstance(X, Table) else Table.of(X)


def _warn(notes: list[str]) -> None:
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=4)
