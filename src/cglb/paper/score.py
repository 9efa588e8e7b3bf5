"""What a trained model is worth: on the test part, by Cholesky at the same hyperparameters, and by every
bound at the same point."""

from __future__ import annotations

from typing import Any

import numpy as np

from cglb import bounds, dense, love, metrics, posterior, variance
from cglb.cg import PREDICTION_TOLERANCE, solve
from cglb.datasets import Split
from cglb.dense import DenseGP
from cglb.model import GP
from cglb.paper.spec import Method
from cglb.train import Fit

__all__ = ["at_interval", "final"]

Scores = dict[str, float]


def at_interval(method: Method, fit: Fit, split: Split, exact: bool) -> dict[str, Any]:
    """Scores of a model in training; with `exact` its log marginal likelihood too."""
    conditioned = _condition(fit.gp, split) if exact or method.kind == "exact" else None
    v = _prediction_v(fit, split) if method.kind in ("cglb", "chain") else None
    lml = conditioned.lml if isinstance(conditioned, DenseGP) else None
    return {**_scores(method, fit, v, split, conditioned), "exact_lml": lml}


def final(method: Method, fit: Fit, split: Split, cholesky: bool) -> dict[str, Any]:
    """Everything that is reported of a run beside how it was trained.

    cholesky: the exact log marginal likelihood and predictions at the learned hyperparameters. None if
              not asked for, a dictionary with "error" where K̂ cannot be factored.
    order:    sgpr ≤ cglb ≤ chain ≤ exact at the same hyperparameters, inducing points and v.
    """
    conditioned = _condition(fit.gp, split) if cholesky or method.kind == "exact" else None
    v = _prediction_v(fit, split) if method.sparse else None
    scores = _scores(method, fit, v, split, conditioned)
    result: dict[str, Any] = {**scores, "cholesky": None}
    if isinstance(conditioned, DenseGP):
        exact = scores
        if method.kind != "exact":
            exact = _target_scores(fit.gp, split, *conditioned.predict(split.X_test))
        result["cholesky"] = {"lml": conditioned.lml, **exact}
    elif conditioned is not None:
        result["cholesky"] = {"error": conditioned}
    if method.sparse:
        result["order"] = _order(fit, v, split, conditioned)
    return result


def _condition(gp: GP, split: Split) -> DenseGP | str:
    """The exact posterior, or why there is none."""
    try:
        return dense.condition(gp, split.X_train, split.y_train)
    except np.linalg.LinAlgError as error:
        return str(error)


def _prediction_v(fit: Fit, split: Split) -> Any:
    found = solve(fit.gp, split.X_train, split.y_train, fit.Z, v0=fit.v, tolerance=PREDICTION_TOLERANCE)
    return found.v


def _scores(method: Method, fit: Fit, v: Any, split: Split, conditioned: DenseGP | str | None) -> Scores:
    """RMSE, NLPD and coverage of the method's own predictions.

    The chain's variance is the local one: it too conditions on neighbours, and so keeps up with a
    noise for which M inducing points alone are far too few.
    """
    if method.kind == "exact":
        if not isinstance(conditioned, DenseGP):
            raise np.linalg.LinAlgError(conditioned)
        return _target_scores(fit.gp, split, *conditioned.predict(split.X_test))
    data = (fit.gp, split.X_train, split.y_train, fit.Z)
    if method.kind == "iterative":
        _, found = love.condition(*data)
    elif method.kind == "sgpr":
        found = posterior.sgpr(*data)
    else:
        found = posterior.cglb(*data, v)
    if method.kind == "chain":
        spread = variance.local(fit.gp, split.X_train, split.X_test, fit.Z)
    else:
        spread = found.variance(split.X_test)
    return _target_scores(fit.gp, split, found.mean(split.X_test), spread)


def _target_scores(gp: GP, split: Split, mean: Any, spread: Any) -> Scores:
    """Scores of a latent mean and variance as predictions of the noisy target."""
    y, mean, total = split.y_test, np.asarray(mean), np.asarray(spread) + float(gp.noise)
    return {
        "rmse": metrics.rmse(y, mean),
        "nlpd": metrics.nlpd(y, mean, total),
        "coverage": metrics.coverage(y, mean, total),
    }


def _order(fit: Fit, v: Any, split: Split, conditioned: DenseGP | str | None) -> dict[str, Any]:
    data = (fit.gp, split.X_train, split.y_train, fit.Z)
    return {
        "sgpr": float(bounds.sgpr(*data).value),
        "cglb": float(bounds.cglb(*data, v, logdet="amgm").value),
        "chain": float(bounds.cglb(*data, v, logdet="chain").value),
        "exact": conditioned.lml if isinstance(conditioned, DenseGP) else None,
    }
