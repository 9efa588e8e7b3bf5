"""Saved estimators: one file with settings, hyperparameters, data and the posterior's arrays."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import jax.numpy as jnp
import numpy as np

from cglb import posterior, store
from cglb.kernels import Kernel
from cglb.model import GP
from cglb.precision import float64, to_numpy
from cglb.report import FitReport

__all__ = ["load", "save"]

KIND, VERSION = "model", 1
SCALES = ("X_shift_", "X_scale_")
# the arrays of each kind of posterior beside the model and the data
POSTERIORS = {
    posterior.ExactPosterior: ("L", "alpha"),
    posterior.SparsePosterior: ("v", "weights", "L", "LB"),
    posterior.IterativePosterior: ("v", "root"),
}


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted `GPRegressor`."""
    gp: GP = estimator.gp_
    arrays = {name: getattr(estimator, name) for name in SCALES}
    arrays |= {"X": estimator._X, "y": estimator._y}
    if estimator._Z is not None:
        arrays["Z"] = estimator._Z
    parts = estimator._posterior
    names = POSTERIORS[type(parts)]
    arrays |= {
        f"posterior.{name}": getattr(parts, name) for name in names if getattr(parts, name) is not None
    }
    names_in = getattr(estimator, "feature_names_in_", None)
    document = {
        "settings": _settings(estimator),
        "kernel": store.kernel_to_json(gp.kernel),
        "noise": float(gp.noise),
        "mean": float(gp.mean),
        "y_shift_": estimator.y_shift_,
        "y_scale_": estimator.y_scale_,
        "n_features_in_": estimator.n_features_in_,
        "feature_names_in_": None if names_in is None else list(map(str, names_in)),
        "history_": estimator.history_,
        "fit_report_": asdict(estimator.fit_report_),
    }
    store.write(path, KIND, VERSION, document, {k: np.asarray(a) for k, a in arrays.items()})


def load(cls: type, path: str | os.PathLike[str]) -> Any:
    """The estimator that `save` wrote."""
    document, arrays = store.read(path, KIND, VERSION)
    settings = dict(document["settings"])
    if isinstance(settings["kernel"], dict):
        settings["kernel"] = store.kernel_from_json(settings["kernel"])
    estimator = cls(**settings)
    gp = GP(store.kernel_from_json(document["kernel"]), document["noise"], document["mean"])
    estimator.gp_ = gp
    for name in SCALES:
        setattr(estimator, name, arrays[name])
    for name in ("y_shift_", "y_scale_", "n_features_in_", "history_"):
        setattr(estimator, name, document[name])
    if document["feature_names_in_"] is not None:
        estimator.feature_names_in_ = np.array(document["feature_names_in_"], dtype=object)
    report = document["fit_report_"]
    estimator.fit_report_ = FitReport(**{**report, "at_floor": tuple(report["at_floor"])})
    estimator.n_iter_ = len(estimator.history_)
    estimator._X, estimator._y, estimator._Z = arrays["X"], arrays["y"], arrays.get("Z")
    parts = {
        name.removeprefix("posterior."): a for name, a in arrays.items() if name.startswith("posterior.")
    }
    with float64():
        estimator._posterior = to_numpy(_posterior(gp, arrays, parts))
    return estimator


def _posterior(gp: GP, arrays: dict[str, np.ndarray], parts: dict[str, np.ndarray]) -> Any:
    X = jnp.asarray(arrays["X"])
    held = {name: jnp.asarray(part) for name, part in parts.items()}
    if "alpha" in held:
        return posterior.ExactPosterior(gp, X, held["L"], held["alpha"])
    if "root" in held:
        return posterior.IterativePosterior(gp, X, held["v"], held["root"])
    v = held.get("v")
    Z = jnp.asarray(arrays["Z"])
    return posterior.SparsePosterior(
        gp, None if v is None else X, v, Z, held["weights"], held["L"], held["LB"]
    )


def _settings(estimator: Any) -> dict[str, Any]:
    """Constructor arguments as JSON. A generator cannot be written; the fit it made can."""
    settings = {}
    for name, value in estimator.get_params(deep=False).items():
        if isinstance(value, Kernel):
            value = store.kernel_to_json(value)
        elif isinstance(value, np.generic):
            value = value.item()
        elif isinstance(value, os.PathLike):
            value = os.fspath(value)
        elif not isinstance(value, str | int | float | bool | None):
            value = None
        settings[name] = value
    return settings
