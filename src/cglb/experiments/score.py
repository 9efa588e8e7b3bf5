"""Scores of a trained model: on the test part, by Cholesky, and by every bound.

Cholesky and the bounds use the learned hyperparameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cglb import bounds, methods
from cglb.data import metrics
from cglb.data.datasets import Split
from cglb.experiments.kinds import Method
from cglb.linalg import inducing
from cglb.linalg.cg import PREDICTION_NATS
from cglb.linalg.system import solve
from cglb.methods import Exact
from cglb.model import GP
from cglb.posteriors import ExactPosterior, variance
from cglb.posteriors import exact as exact_posterior
from cglb.training.history import Fit

__all__ = ["at_interval", "final"]

Scores = dict[str, float]


def at_interval(method: Method, fit: Fit, split: Split, exact: bool) -> dict[str, Any]:
    """Scores of a model in training; with `exact` also its exact log marginal likelihood."""
    dense_gp = _factored(fit.gp, split) if exact or _is_exact(method) else None
    lml = float(dense_gp.lml) if isinstance(dense_gp, ExactPosterior) else None
    return {**_scores(method, fit, split, dense_gp)[0], "exact_lml": lml}


def final(method: Method, fit: Fit, split: Split, cholesky: bool) -> dict[str, Any]:
    """All scores of a finished run.

    Args:
        method: what was trained.
        fit: the trained model.
        split: the data.
        cholesky: also compute the exact log marginal likelihood and predictions.

    Returns:
        Scores by name; `cholesky` with the exact ones at the learned hyperparameters (None without
        `cholesky`, a dictionary with "error" if K̂ cannot be factored); and for sparse methods `order`:
        sgpr ≤ cglb ≤ chain ≤ exact at the same hyperparameters, inducing points and v.
    """
    dense_gp = _factored(fit.gp, split) if cholesky or _is_exact(method) else None
    scores, v = _scores(method, fit, split, dense_gp)
    result: dict[str, Any] = {**scores, "cholesky": None}
    if isinstance(dense_gp, ExactPosterior):
        exact = scores
        if not _is_exact(method):
            exact = _exact_scores(dense_gp, split)
        result["cholesky"] = {"lml": float(dense_gp.lml), **exact}
    elif dense_gp is not None:
        result["cholesky"] = {"error": dense_gp}
    if method.sparse:
        result["order"] = _order(fit, v, split, dense_gp)
    return result


def _is_exact(method: Method) -> bool:
    """Whether the method predicts with the exact posterior."""
    return isinstance(method.trained, Exact)


def _factored(gp: GP, split: Split) -> ExactPosterior | str:
    """The exact posterior, or the error message if K̂ cannot be factored."""
    try:
        return exact_posterior(gp, split.X_train, split.y_train)
    except np.linalg.LinAlgError as error:
        return str(error)


def _scores(
    method: Method, fit: Fit, split: Split, dense_gp: ExactPosterior | str | None
) -> tuple[Scores, Any]:
    """RMSE, NLPD and coverage of the method's predictions, and v if the method uses CG.

    The chain uses the local variance, which also conditions on neighbours. It stays accurate at noise
    levels for which M inducing points alone are far too few.
    """
    if _is_exact(method):
        if not isinstance(dense_gp, ExactPosterior):
            raise np.linalg.LinAlgError(dense_gp)
        return _exact_scores(dense_gp, split), None
    Z = fit.Z
    if Z is None and method.num_inducing is not None:  # in a stage without inducing points
        Z = inducing.greedy(fit.gp.kernel, split.X_train, method.num_inducing, seed=0)
    data = (fit.gp, split.X_train, split.y_train, Z)
    found = methods.condition(method.trained, *data, fit.v)
    if method.kind == "chain":
        spread = variance.local(fit.gp, split.X_train, split.X_test, Z)
    else:
        spread = found.posterior.variance(split.X_test)
    scores = _target_scores(fit.gp, split, found.posterior.mean(split.X_test), spread)
    return scores, None if found.solution is None else found.solution.v


def _exact_scores(found: ExactPosterior, split: Split) -> Scores:
    """Scores of the exact posterior."""
    return _target_scores(found.gp, split, found.mean(split.X_test), found.variance(split.X_test))


def _target_scores(gp: GP, split: Split, mean: Any, spread: Any) -> Scores:
    """Scores of a latent mean and variance as predictions of the noisy target."""
    y, mean, total = split.y_test, np.asarray(mean), np.asarray(spread) + float(gp.noise)
    return {
        "rmse": metrics.rmse(y, mean),
        "nlpd": metrics.nlpd(y, mean, total),
        "coverage": metrics.coverage(y, mean, total),
    }


def _order(fit: Fit, v: Any, split: Split, dense_gp: ExactPosterior | str | None) -> dict[str, Any]:
    data = (fit.gp, split.X_train, split.y_train, fit.Z)
    if v is None:  # a method without CG
        v = solve(*data, tolerance=PREDICTION_NATS).v
    return {
        "sgpr": float(bounds.sgpr(*data).value),
        "cglb": float(bounds.cglb(*data, v, logdet="amgm").value),
        "chain": float(bounds.cglb(*data, v, logdet="chain").value),
        "exact": float(dense_gp.lml) if isinstance(dense_gp, ExactPosterior) else None,
    }
