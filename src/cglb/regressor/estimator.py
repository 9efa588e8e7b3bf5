"""`GPRegressor`: a Gaussian process with scikit-learn's conventions and the user's own units.

Inside, inputs and target are standardised and everything is a `GP`, a trained bound and a posterior;
this file only translates: names to objects, tables to arrays, results back to the units they came in.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cglb import methods
from cglb.bounds.logdet import LogdetBound
from cglb.core.precision import float64
from cglb.data.frames import feature_scale
from cglb.data.intake import take_training
from cglb.data.remarks import remarks
from cglb.kernels.base import Kernel
from cglb.kernels.choice import with_params
from cglb.linalg.preconditioners import Preconditioning
from cglb.linalg.row_noise import RowNoise, Rows
from cglb.methods import Conditioned, Method
from cglb.regressor import file
from cglb.regressor.beginning import AUTO, beginning
from cglb.regressor.fitted import names_of
from cglb.regressor.noise import with_noise
from cglb.regressor.predictions import Predictions
from cglb.regressor.report import FitReport
from cglb.training.conditioned import conditioned, system_of
from cglb.training.free import DEFAULT_FLOOR, Parameters
from cglb.training.options import ENOUGH
from cglb.training.trainer import train

__all__ = ["GPRegressor"]


class GPRegressor(RegressorMixin, Predictions):
    """Gaussian process regression by maximising a bound on the evidence.

    Args:
        method: what is maximised: "auto" (default: "exact" for few rows, "cglb" for more; `fit_report_`
            says which and why), "cglb", "sgpr", "exact" (needs n² memory), "iterative" (the baseline: a
            noisy estimate, no bound), another registered name, or a `Method`. A `Method` brings its own
            settings; `logdet`, `cg_tolerance` and `precondition` are then not looked at.
        kernel: a name: "rbf", "matern12", "matern32" (default), "matern52", "rational_quadratic", with
            one lengthscale per column, or any other of `cglb.kernels.names()`, your own included. Or a
            kernel object, from which training starts, or one of scikit-learn's kernels. None is the
            default. "auto" compares these five, and the best of them plus a linear function, on up to
            500 rows by exact log p(y), of many rows two of them on 2,500 again, and trains the best;
            `fit_report_` has the rankings.
        kernel_units: the units of the lengthscales and periods of a kernel object: "standardised"
            (inputs with mean 0 and standard deviation 1), or "data", those of the columns as they are.
            Variances are relative to that of the target in both.
        num_inducing: inducing points; "auto" is min(n, 512), fewer if `memory_gb` is small or where more
            could raise the bound by at most 0.1 nats. For "iterative" the rank of the preconditioner;
            "auto" is 100.
        logdet: upper bound on log|K̂|: "auto" (default: the tightest that pays), "amgm" (the paper's),
            "chain" (far tighter at low noise), "hadamard", "waterfill" or "trace" (Titsias' own, for
            method="sgpr").
        cg_tolerance: nats that conjugate gradients may cost at each evaluation; for
            "iterative" the relative norm of the residual.
        precondition: CG's preconditioner: "nystrom", "chain" or "auto" (the chain if the inducing
            points leave much to do).
        optimize_inducing: optimise inducing points by gradient, together with the hyperparameters: in a
            last stage of the progressive schedule, throughout in the direct one (the paper's way).
        schedule: "progressive" (default) searches from several starts on few rows, goes on with the best
            on more rows, and ends on all; "direct" trains on all rows from one start, as the paper does.
        max_steps: accepted optimiser steps at most, after the searches of a progressive schedule: up to
            60 each, on up to 500 rows. Training ends earlier when it has converged.
        max_seconds: seconds of training at most; None for no limit. It is looked at before each
            evaluation.
        noise: the noise variance to start from, in the squared units of y; None to search for one.
        fixed: names of hyperparameters that keep their starting value, such as ("noise",) or
            ("kernel.lengthscale",).
        priors: log-normal priors by the names of hyperparameters, as pairs (median, standard deviation
            of the logarithm) in standardised units, such as {"noise": (0.01, 1.0)}; or "dimension":
            lengthscales of about √d. Training then maximises bound + log prior; bounds and
            `fit_report_` are without it. None (default) for none.
        warm_start: start from the model of the last `fit`, if there is one, and search for no other.
        noise_floor: smallest noise variance, in units of the target's variance; None is the method's
            own: 1e-6, and 1e-4 for "iterative", as in the paper.
        drop_missing: drop training rows with a missing target or input instead of raising.
        impute: fill missing inputs of a table, in training and in predictions, with the median of the
            training rows, or the most frequent boolean or text.
        random_state: decides ties in the choice of inducing points, which rows come first, and the
            probes of "iterative". The same seed gives the same fit; None means seed 0, so that
            an interrupted `fit` finds its checkpoint again.
        memory_gb: budget for the n × m arrays; limits `num_inducing="auto"` and refuses what cannot
            fit. Up to 32,000 rows CG may keep half of K̂ in addition to them, at most 4 GB.
        progress: show a progress bar in `fit`, and in predictions of more than 2,048 rows (64 with
            variance="cg").
        checkpoint: file from which an interrupted `fit` resumes.

    Attributes:
        method_: the method that was trained, with its settings.
        gp_: the trained model, in standardised units.
        history_: one row per step (see `HistoryRow`).
        fit_report_: what happened, in plain words.
        kernel_: the learned kernel, with lengthscales and periods in the units of the inputs.
        relevance_: importance of each input by name, the largest 1.
        target_name_: the name of the target, if it had one.
        encoding_: how a table became numbers (see `cglb.data.encoding`); None if X was an array.
    """

    def __init__(
        self,
        method: str | Method = "auto",
        kernel: str | Kernel | Any = "matern32",
        *,
        kernel_units: str = "standardised",
        num_inducing: int | str = "auto",
        logdet: str | LogdetBound = "auto",
        cg_tolerance: float = 1.0,
        precondition: str | Preconditioning = "auto",
        optimize_inducing: bool = False,
        schedule: str = "progressive",
        max_steps: int = 1000,
        max_seconds: float | None = None,
        noise: float | None = None,
        fixed: tuple[str, ...] = (),
        priors: Mapping[str, Any] | str | None = None,
        warm_start: bool = False,
        noise_floor: float | None = None,
        drop_missing: bool = False,
        impute: bool = False,
        random_state: Any = None,
        memory_gb: float | None = None,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ):
        self.method = method
        self.kernel = kernel
        self.kernel_units = kernel_units
        self.num_inducing = num_inducing
        self.logdet = logdet
        self.cg_tolerance = cg_tolerance
        self.precondition = precondition
        self.optimize_inducing = optimize_inducing
        self.schedule = schedule
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.noise = noise
        self.fixed = fixed
        self.priors = priors
        self.warm_start = warm_start
        self.noise_floor = noise_floor
        self.drop_missing = drop_missing
        self.impute = impute
        self.random_state = random_state
        self.memory_gb = memory_gb
        self.progress = progress
        self.checkpoint = checkpoint

    # ---- fitting ----

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, noise_variance: Any = None
    ) -> GPRegressor:
        """Learn hyperparameters from X [n, d] and y [n] and condition on them.

        A fit that fails or is interrupted leaves the estimator as it was.

        Args:
            X: inputs.
            y: targets.
            sample_weight: one number per row. A row of weight w has the noise variance σ²/w, such as the
                mean of w measurements; rows of weight 0 are left out. None is 1 for all.
            noise_variance: the noise variance of each target that is known, in the squared units of y;
                what training learns is added to it. None is 0 for all.
        """
        target_name = None if getattr(y, "name", None) is None else str(y.name)
        probe = copy.copy(self)  # takes the names and the number of columns
        given = X
        X, y, kept = take_training(probe, X, y, reset=True)
        X, y, noise = with_noise(X, y, sample_weight, noise_variance, _length(given), kept)
        n, d = X.shape
        odd = remarks(X, y, names_of(probe, d))
        X_shift, X_scale = feature_scale(X, noise.weight)
        y_shift, y_scale = (float(a[0]) for a in feature_scale(y[:, None], noise.weight))
        X, y = (X - X_shift) / X_scale, (y - y_shift) / y_scale
        if noise.known is not None:
            noise = noise._replace(known=noise.known / y_scale**2)
        settings = {"logdet": self.logdet, "cg_tolerance": self.cg_tolerance}
        settings = {**settings, "precondition": self.precondition}
        choice = methods.choose(self.method, n, settings, self.memory_gb)
        m = choice.method.points(n, self.num_inducing, self.memory_gb)
        method = choice.method.with_points(m)
        noise_floor = method.noise_floor if self.noise_floor is None else self.noise_floor
        floor = {"kernel": DEFAULT_FLOOR, "noise": noise_floor}
        shared = {
            "floor": floor,
            "fixed": tuple(self.fixed),
            "priors": self.priors,
            "seed": self._seed(),
            "row_noise": noise,
        }
        start = beginning(self, probe, (X, y), (X_scale, y_scale), **shared)
        fit = train(
            start.gp,
            X,
            y,
            method,
            num_inducing=m,
            enough=ENOUGH if self.num_inducing == AUTO else 0.0,
            optimize_inducing=self.optimize_inducing,
            max_steps=self.max_steps,
            max_seconds=start.left_of(self.max_seconds),
            schedule=start.schedule,
            starts=start.starts,
            parts=start.parts,
            **shared,
            progress=self.progress,
            checkpoint=None if self.checkpoint is None else Path(self.checkpoint),
        )
        with float64():
            rows = Rows.of(X, y, noise, method.padded)
            system, found = conditioned(method, fit, rows)
            v = rows.solution(fit.gp, _solution(found))
        parameters = Parameters(start.gp, floor, tuple(self.fixed))
        floors = dict(zip(parameters.names, parameters.floors.tolist(), strict=True))
        report = FitReport.of(fit, found.solution, n, floors, y_scale, choice, start, odd)
        self._set_fitted(
            X_shift_=X_shift,
            X_scale_=X_scale,
            y_shift_=y_shift,
            y_scale_=y_scale,
            n_features_in_=probe.n_features_in_,
            feature_names_in_=getattr(probe, "feature_names_in_", None),
            encoding_=probe.encoding_,
            target_name_=target_name,
            method_=method,
            gp_=fit.gp,
            history_=fit.history,
            n_iter_=len(fit.history),
            fit_report_=report.with_points(self.num_inducing, m),
            _X=X,
            _y=y,
            _Z=fit.Z,
            _v=v,
            _weight=noise.weight,
            _known=noise.known,
            _posterior=found.posterior,
        )
        self._known_system, self._known_rows = system, rows
        for concern in self.fit_report_.concerns:
            warnings.warn(concern, ConvergenceWarning, stacklevel=2)
        return self

    def update(
        self, X: Any, y: Any, sample_weight: Any = None, *, noise_variance: Any = None
    ) -> GPRegressor:
        """Add rows and condition on all of them; hyperparameters, inducing points and units stay.

        Args:
            X: new inputs.
            y: their targets.
            sample_weight: as in `fit`.
            noise_variance: as in `fit`.
        """
        check_is_fitted(self, "gp_")
        given = X
        X, y, kept = take_training(self, X, y, reset=False)
        X, y, new = with_noise(X, y, sample_weight, noise_variance, _length(given), kept)
        if new.known is not None:
            new = new._replace(known=new.known / self.y_scale_**2)
        noise = RowNoise(self._weight, self._known).followed_by(len(self._y), new, len(y))
        X = np.concatenate([self._X, self._standardise(X)])
        y = np.concatenate([self._y, (y - self.y_shift_) / self.y_scale_])
        with float64():
            rows = Rows.of(X, y, noise, self.method_.padded)
            system = system_of(self.method_, self.gp_, rows, self._Z)
            # the new rows start at 0: CG then has only their part left to find
            found = self.method_.condition(system, rows.y, rows.start(self.gp_, self._v))
            v = rows.solution(self.gp_, _solution(found))
        self._X, self._y, self._v, self._posterior = X, y, v, found.posterior
        self._weight, self._known = noise
        self._known_system, self._known_rows, self._known_local = system, rows, None
        return self

    # ---- settings ----

    def set_params(self, **params: Any) -> GPRegressor:
        """Set parameters; `kernel__lengthscale=…` and the like replace those of the kernel."""
        nested = {name: params.pop(name) for name in list(params) if name.startswith("kernel__")}
        super().set_params(**params)
        if nested:
            values = {name.removeprefix("kernel__"): value for name, value in nested.items()}
            self.kernel = with_params(self.kernel, values)
        return self

    def _seed(self) -> int:
        if self.random_state is None:
            return 0
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    # ---- notebooks and files ----

    def _html_repr(self) -> str:
        """What a notebook shows: scikit-learn's box and, once fitted, what the fit is worth."""
        box = super()._html_repr()
        return self.fit_report_.summary(self.relevance_) + box if hasattr(self, "gp_") else box

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file (safetensors and JSON, no pickle)."""
        check_is_fitted(self, "gp_")
        file.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> GPRegressor:
        """A model that `save` wrote; it predicts bit for bit what it did before."""
        estimator, fitted = file.load(cls, path)
        estimator._set_fitted(**fitted)
        return estimator


def _solution(found: Conditioned) -> np.ndarray | None:
    return None if found.solution is None else np.asarray(found.solution.v)


def _length(X: Any) -> int:
    """The number of rows of what the user gave."""
    if isinstance(X, dict):
        return len(next(iter(X.values()), ()))
    return int(X.shape[0]) if hasattr(X, "shape") else len(np.asarray(X, dtype=object))
