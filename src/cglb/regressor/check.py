"""What a fitted estimator must satisfy, checked when it comes from a file.

A checksum tells a damaged file from a whole one, but not a whole one from one that something else wrote.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from cglb.core.errors import StoreError
from cglb.methods import Method
from cglb.model import GP
from cglb.posteriors.base import Posterior

__all__ = ["check_arrays", "check_fitted", "check_posterior"]

# attribute -> the letters of its axes, as in the docs
SHAPES = {
    "_X": "n d", "_y": "n", "X_shift_": "d", "X_scale_": "d", "_Z": "m d", "_v": "n", "_weight": "n",
    "_known": "n",
}  # fmt: skip
MAY_BE_MISSING = ("_Z", "_v", "_weight", "_known")
# numbers whose squares overflow make predictions that are not finite
LARGEST = 1e150


def check_arrays(fitted: Mapping[str, Any]) -> dict[str, int]:
    """Check shapes, dtypes, finiteness and ranges of the fitted arrays.

    Args:
        fitted: fitted attributes by name.

    Returns:
        The sizes of their axes, by letter.

    Raises:
        StoreError: that names what does not fit.
    """
    sizes: dict[str, int] = {}
    for name, letters in SHAPES.items():
        if fitted[name] is None and name in MAY_BE_MISSING:
            continue
        _check_array(name, fitted[name], letters, sizes)
    _require(bool(np.all(fitted["X_scale_"] > 0.0)), "X_scale_ must be positive")
    weight, known = fitted["_weight"], fitted["_known"]
    _require(weight is None or bool(np.all(weight > 0.0)), "_weight must be positive")
    _require(known is None or bool(np.all(known >= 0.0)), "_known must not be negative")
    return sizes


def check_fitted(fitted: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Check the other fitted attributes, given the sizes of the arrays.

    Raises:
        StoreError: that names what does not fit.
    """
    for name in ("y_shift_", "y_scale_"):
        number = fitted[name]
        real = isinstance(number, float) and _is_usable(number)
        _require(real, f"{name} must be a finite number, at most {LARGEST:g}")
    _require(fitted["y_scale_"] > 0.0, "y_scale_ must be positive")
    encoding = fitted["encoding_"]  # a table may have other columns than the array it becomes
    columns = sizes["d"] if encoding is None else len(encoding.columns)
    encoded = sizes["d"] if encoding is None else len(encoding.features)
    _require(encoded == sizes["d"], "encoding_ must give every column of X")
    _require(fitted["n_features_in_"] == columns, "n_features_in_ must be the number of columns")
    steps, history = fitted["n_iter_"], fitted["history_"]
    rows = isinstance(history, list) and all(isinstance(row, dict) for row in history)
    _require(rows, "history_ must be a list of rows")
    _require(type(steps) is int and steps == len(history), "n_iter_ must be the length of history_")
    names = fitted["feature_names_in_"]
    _require(names is None or len(names) == columns, "feature_names_in_ must name every column")
    _require(isinstance(fitted["method_"], Method), "method_ must be a method")
    _check_model(fitted["gp_"], sizes["d"])


def _check_model(gp: GP, d: int) -> None:
    for leaf in jax.tree.leaves(gp):
        real = isinstance(leaf, np.ndarray | np.generic | jax.Array) and leaf.dtype.kind == "f"
        usable = real and _is_usable(leaf)
        _require(usable, f"a hyperparameter is not finite, or beyond {LARGEST:g}")
    _require(float(gp.noise) > 0.0, "the noise must be positive")
    gp.kernel.check_columns(d)


def check_posterior(kind: type[Posterior], fields: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Check the arrays of a posterior by the shapes that its class declares.

    Args:
        kind: the class.
        fields: its fields by name.
        sizes: of the axes, by letter.

    Raises:
        StoreError: that names what does not fit.
    """
    hints, known = typing.get_type_hints(kind), dict(sizes)
    for field in dataclasses.fields(kind):
        value = fields[field.name]
        kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
        letters = next((kind.dim_str for kind in kinds if hasattr(kind, "dim_str")), None)
        if letters is None or (value is None and type(None) in kinds):
            continue
        array = np.asarray(value)
        if field.name in ("L", "LB") and array.ndim == 2:
            array = np.tril(array)  # the triangle that is not used may hold anything
        _check_array(f"posterior.{field.name}", array, letters.strip(), known)


def _check_array(name: str, array: Any, letters: str, sizes: dict[str, int]) -> None:
    axes = letters.split()
    real = isinstance(array, np.ndarray) and array.dtype == np.float64
    _require(real and array.ndim == len(axes), f"{name} must be a float64 array [{letters}]")
    _require(array.size > 0, f"{name} is empty")
    for letter, size in zip(axes, array.shape, strict=True):
        known = sizes.setdefault(letter, size)
        _require(known == size, f"{name} must have {known} along {letter}, found {size}")
    _require(_is_usable(array), f"{name} has entries that are not finite, or beyond {LARGEST:g}")


def _is_usable(values: Any) -> bool:
    return bool((np.abs(np.asarray(values)) <= LARGEST).all())  # False for NaN


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise StoreError(f"{problem}. Save the model again.")
