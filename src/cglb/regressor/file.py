"""Saved estimators: one file with settings, hyperparameters, data and the posterior's arrays.

Methods, posteriors and kernels are written by their registered names, with their settings and fields,
so those of a user can be saved too. To load such a file the classes must have been defined.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cglb import methods
from cglb.bounds.logdet import LogdetBound, Side
from cglb.bounds.logdet import find as find_bound
from cglb.core.errors import StoreError
from cglb.core.precision import float64
from cglb.data.encoding import Encoding
from cglb.io import tensorfile
from cglb.io.kernel_json import kernel_from_json, kernel_to_json
from cglb.kernels.base import Kernel
from cglb.kernels.foreign import from_scikit_learn, is_from_scikit_learn
from cglb.linalg import preconditioners
from cglb.linalg.preconditioners import Preconditioning
from cglb.methods import Method
from cglb.model import GP
from cglb.posteriors import base as posteriors
from cglb.posteriors.base import Posterior
from cglb.regressor.check import check_arrays, check_fitted, check_posterior
from cglb.regressor.report import FitReport

__all__ = ["load", "save"]

KIND, VERSION = "model", 4
# fitted attributes that are arrays (or None), and those that JSON knows
ARRAYS = ("X_shift_", "X_scale_", "_X", "_y", "_Z", "_v", "_weight", "_known")
PLAIN = ("y_shift_", "y_scale_", "n_features_in_", "n_iter_", "history_", "target_name_")


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted `GPRegressor`.

    Raises:
        StoreError: if its kernel, method or posterior holds something that cannot be written.
    """
    held = {name: getattr(estimator, name) for name in ARRAYS}
    arrays = {name: np.asarray(array) for name, array in held.items() if array is not None}
    posterior = _posterior_to_json(estimator._posterior, arrays)
    names = getattr(estimator, "feature_names_in_", None)
    document = {
        "settings": _settings(estimator),
        "method": _to_json(estimator.method_),
        "model": _gp_to_json(estimator.gp_),
        "posterior": posterior,
        "fit_report_": asdict(estimator.fit_report_),
        "feature_names_in_": None if names is None else list(map(str, names)),
        "encoding_": None if estimator.encoding_ is None else estimator.encoding_.to_json(),
        **{name: getattr(estimator, name) for name in PLAIN},
    }
    tensorfile.write(path, KIND, VERSION, document, arrays)


def load(cls: type, path: str | os.PathLike[str]) -> tuple[Any, dict[str, Any]]:
    """The estimator with the settings that `save` wrote, and its fitted attributes.

    Raises:
        FileNotFoundError: if there is no such file.
        StoreError: if the file is damaged, of another kind, or holds anything but a fitted model.
    """
    document, arrays = tensorfile.read(path, KIND, VERSION)
    try:
        estimator, fitted = _read(cls, document, arrays)
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from None
    except Exception as error:  # whatever a document may lead to that `save` did not write
        raise StoreError(
            f"{path} does not hold a fitted model ({type(error).__name__}: {error}). Save it again."
        ) from error
    return estimator, fitted


def _read(
    cls: type, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> tuple[Any, dict[str, Any]]:
    settings = {name: _from_json(value) for name, value in document["settings"].items()}
    gp = _gp_from_json(document["model"])
    report = document["fit_report_"]
    names, encoding = document["feature_names_in_"], document["encoding_"]
    fitted = {name: arrays.get(name) for name in ARRAYS}
    sizes = check_arrays(fitted)
    fitted |= {name: document[name] for name in PLAIN}
    fitted |= {
        "method_": _from_json(document["method"]),
        "gp_": gp,
        "fit_report_": FitReport(**{name: _frozen(value) for name, value in report.items()}),
        "feature_names_in_": None if names is None else np.array(names, dtype=object),
        "encoding_": None if encoding is None else Encoding.from_json(encoding),
        "_posterior": _posterior_from_json(document["posterior"], gp, arrays, sizes),
    }
    check_fitted(fitted, sizes)
    return cls(**settings), fitted


def _settings(estimator: Any) -> dict[str, Any]:
    """Constructor arguments as JSON. A random generator cannot be written; the fit it made can."""
    settings = estimator.get_params(deep=False)
    if not isinstance(settings["random_state"], int | None):
        settings["random_state"] = None
    if is_from_scikit_learn(settings["kernel"]):
        settings["kernel"] = from_scikit_learn(settings["kernel"], estimator.n_features_in_)
    return {name: _to_json(value) for name, value in settings.items()}


# ---- posteriors: a model, arrays, and what JSON knows ----


def _posterior_to_json(posterior: Posterior, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The class and its fields. Arrays go to `arrays`, unless they are there under another name."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(posterior):
        value = getattr(posterior, field.name)
        if isinstance(value, GP):
            fields[field.name] = {"model": None}
        elif isinstance(value, np.ndarray | jax.Array):
            array = np.asarray(value)
            name = next((k for k, a in arrays.items() if _same(a, array)), f"posterior.{field.name}")
            arrays[name] = array
            fields[field.name] = {"array": name}
        else:
            fields[field.name] = {"value": _to_json(value)}
    name = type(posterior).__name__
    if _find_posterior(name) is not type(posterior):
        raise StoreError(f"There are two posteriors called {name}: give yours another name.")
    return {"class": name, "fields": fields}


def _posterior_from_json(
    document: Mapping[str, Any], gp: GP, arrays: Mapping[str, Any], sizes: Mapping[str, int]
) -> Posterior:
    """The posterior with JAX arrays, as a fit leaves it."""

    def field(entry: Mapping[str, Any]) -> Any:
        if "model" in entry:
            return jax.tree.map(jnp.asarray, gp)
        return jnp.asarray(arrays[entry["array"]]) if "array" in entry else _from_json(entry["value"])

    with float64():
        fields = {name: field(entry) for name, entry in document["fields"].items()}
        kind = _find_posterior(document["class"])
        check_posterior(kind, fields, sizes)
        return kind(**fields)


def _find_posterior(name: str) -> type[Posterior]:
    try:
        return posteriors.find(name)
    except ValueError as error:
        raise StoreError(f"{error} Import the module that defines it first.") from None


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# ---- models, methods and settings ----


def _gp_to_json(gp: GP) -> dict[str, Any]:
    kernel = kernel_to_json(gp.kernel)
    return {"kernel": kernel, "noise": float(gp.noise), "mean": float(gp.mean)}


def _gp_from_json(document: Mapping[str, Any]) -> GP:
    kernel = kernel_from_json(document["kernel"])
    numbers = {name: document[name] for name in ("noise", "mean")}
    for name, value in numbers.items():
        if not tensorfile.is_number(value):
            raise StoreError(f"the {name} must be a number, found {value!r}. Save the model again.")
    return GP(kernel, **numbers)


def _to_json(value: Any) -> Any:
    """A setting as JSON; objects as their kind, registered name and settings."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Kernel):
        return {"kind": "kernel", "kernel": kernel_to_json(value)}
    if isinstance(value, Method):
        return {"kind": "method", "name": value.name, "settings": _fields(value)}
    if isinstance(value, LogdetBound):  # its settings: what it prepared belongs to the data
        return {"kind": "logdet", "name": value.key, "settings": _fields(value)}
    if isinstance(value, Preconditioning):
        return {"kind": "preconditioning", "name": value.name, "settings": _fields(value)}
    if isinstance(value, Mapping):
        return {"kind": "mapping", "items": {str(key): _to_json(item) for key, item in value.items()}}
    if isinstance(value, tuple | list):
        return {"kind": "tuple", "items": [_to_json(item) for item in value]}
    raise StoreError(f"{value!r} cannot be written to a file: give a registered name in its place.")


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _frozen(value: Any) -> Any:
    """A field of the report: JSON has turned its tuples into lists."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _from_json(value: Any) -> Any:
    """The inverse of `_to_json`."""
    if not isinstance(value, dict):
        return value
    if value["kind"] == "kernel":
        return kernel_from_json(value["kernel"])
    if value["kind"] == "mapping":
        return {key: _from_json(item) for key, item in value["items"].items()}
    if value["kind"] == "tuple":
        return tuple(_from_json(item) for item in value["items"])
    settings = {name: _from_json(setting) for name, setting in value["settings"].items()}
    try:
        if value["kind"] == "logdet":
            return dataclasses.replace(find_bound(value["name"], Side.ABOVE), **settings)
        if value["kind"] == "preconditioning":
            return dataclasses.replace(preconditioners.find(value["name"]), **settings)
        return methods.find(value["name"], settings)
    except ValueError as error:
        raise StoreError(f"{error} Import the module that defines it first.") from None
