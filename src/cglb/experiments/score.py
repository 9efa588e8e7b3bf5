"""Scores of a trained model: on the test part, by Cholesky, and by every bound.

Cholesky and the bounds use the learned hyperparameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cglb import bounds
from cglb.core.precision import float64
from cglb.data import metrics
from cglb.data.datasets import Split
from cglb.experiments.kinds import Method
from cglb.linalg import inducing
from cglb.linalg.cg import PREDICTION_NATS
from cglb.linalg.row_noise import Rows
from cglb.linalg.system import solve
from cglb.methods import Exact
from cglb.model import GP
from cglb.posteriors import ExactPosterior, variance
from cglb.posteriors import exact as exact_posterior
from cglb.training.conditioned import conditioned
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
    scores, trained = _scores(method, fit, split, dense_gp)
    result: dict[str, Any] = {**scores, "cholesky": None}
    if isinstance(dense_gp, ExactPosterior):
        exact = scores
        if not _is_exact(method):
            exact = _exact_scores(dense_gp, split)
        result["cholesky"] = {"lml": float(dense_gp.lml), **exact}
    elif dense_gp is not None:
        result["cholesky"] = {"error": dense_gp}
    if trained is not None and method.sparse:
        result["order"] = _order(trained, dense_gp)
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


@dataclass(frozen=True)
class _Trained:
    """A trained model on rows of a size for which training has compiled programs.

    Attributes:
        data: the model, X, y and Z there.
        v: of CG there; None for a method without CG.
    """

    data: tuple[GP, Any, Any, Any]
    v: Any


def _scores(
    method: Method, fit: Fit, split: Split, dense_gp: ExactPosterior | str | None
) -> tuple[Scores, _Trained | None]:
    """RMSE, NLPD and coverage of the method's predictions, and its model unless it is exact.

    The chain uses the local variance, which also conditions on neighbours. It stays accurate at noise
    levels for which M inducing points alone are far too few.
    """
    if _is_exact(method):
        if not isinstance(dense_gp, ExactPosterior):
            raise np.linalg.LinAlgError(dense_gp)
        return _exact_scores(dense_gp, split), None
    if fit.Z is None and method.num_inducing is not None:  # in a stage without inducing points
        Z = inducing.greedy(fit.gp.kernel, split.X_train, method.num_inducing, seed=0)
        fit = replace(fit, Z=Z, system=None)
    with float64():
        rows = Rows.of(split.X_train, split.y_train, padded=method.trained.padded)
        system, found = conditioned(method.trained, fit, rows)
        data = (system.gp, rows.X, rows.y, rows.at(fit.Z))
        mean = found.posterior.mean(split.X_test)
        if method.kind == "chain":
            spread = variance.local(*data[:2], rows.at(split.X_test), data[3])
        else:
            spread = found.posterior.variance(split.X_test)
        scores = _target_scores(fit.gp, split, mean, spread)
    return scores, _Trained(data, None if found.solution is None else found.solution.v)


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


def _order(trained: _Trained, dense_gp: ExactPosterior | str | None) -> dict[str, Any]:
    data, v = trained.data, trained.v
    with float64():
        if v is None:  # a method without CG
            v = solve(*data, tolerance=PREDICTION_NATS).v
        return {
            "sgpr": float(bounds.sgpr(*data).value),
            "cglb": float(bounds.cglb(*data, v, logdet="amgm").value),
            "chain": float(bounds.cglb(*data, v, logdet="chain").value),
            "exact": float(dense_gp.lml) if isinstance(dense_gp, ExactPosterior) else None,
        }
