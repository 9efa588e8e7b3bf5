"""`GPRegressor`: a Gaussian process with scikit-learn's conventions and the user's own units.

Inside, inputs and target are standardised and everything is a `GP`, a trained bound and a posterior;
this file only translates: names to objects, tables to arrays, results back to the units they came in.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from cglb import love, model_file, posterior
from cglb.certificate import Evidence, certify
from cglb.cg import PREDICTION_TOLERANCE, Solution, solve
from cglb.iterative import Iterative
from cglb.iterative_training import NOISE_FLOOR, train_iterative
from cglb.kernels import RBF, Kernel, Matern12, Matern32, Matern52, RationalQuadratic
from cglb.metrics import interval
from cglb.model import GP
from cglb.objective import Objective
from cglb.relevance import relevance
from cglb.report import FitReport
from cglb.tables import check_target, feature_scale, missing_message
from cglb.train import train
from cglb.variance import VarianceBracket, bracket, local

__all__ = ["GPRegressor"]

KERNELS = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational_quadratic": RationalQuadratic,
}
AUTO_INDUCING = 512
CERTIFICATE_GB = 4.0
VARIANCES = ("sgpr", "local", "cg")
AUTO_RANK = 100


class GPRegressor(RegressorMixin, BaseEstimator):
    """Gaussian process regression by maximising a bound on the evidence.

    Parameters
    ----------
    method : "cglb" (default), "sgpr", "exact" or "iterative"
        Which objective is maximised. "exact" needs n² memory; "iterative" (`cglb.train_iterative`)
        is the baseline: a noisy estimate, no bound.
    kernel : str or Kernel
        "rbf", "matern12", "matern32" (default), "matern52", "rational_quadratic" — with one lengthscale
        a column — or a kernel object in *standardised* units, from which training starts.
    num_inducing : int or "auto"
        Inducing points; "auto" is min(n, 512), less where `memory_gb` is small. For "iterative" the
        rank of the preconditioner; "auto" is 100.
    logdet : str
        Upper bound on log|K̂|: "amgm" (the paper's), "chain" (far tighter at low noise, reached from
        "amgm" in stages), "auto" (the tightest that pays), "hadamard", "waterfill" or "trace"
        (Titsias' own, for method="sgpr").
    cg_tolerance : float
        Nats that conjugate gradients may leave on the table at each evaluation; for "iterative" the
        relative norm of the residual.
    optimize_inducing : bool
        Optimise inducing points by gradient (the paper's way) instead of reselecting them in rounds.
    max_steps : int
        Accepted optimiser steps; above 20,000 rows up to 20 more come first, on 10,000 of them.
    noise_floor : float or None
        Smallest noise variance, in units of the target's variance; None is 1e-6, and 1e-4 for
        "iterative", as in the paper.
    drop_missing : bool
        Drop rows whose target is missing instead of raising.
    random_state : int, RandomState or None
        Decides ties in the choice of inducing points, which rows come first above 20,000, and the
        probes of "iterative". The same seed gives the same fit; None is one fixed seed, so that an
        interrupted `fit` finds its checkpoint again.
    memory_gb : float or None
        Budget for the n × m arrays; limits `num_inducing="auto"` and refuses what cannot fit. Up to
        32,000 rows CG may keep half of K̂ beside them, at most 4 GB.
    progress : bool
        Show a progress bar.
    checkpoint : path or None
        File from which an interrupted `fit` goes on.

    Attributes
    ----------
    gp_ : the trained model, in standardised units.
    history_ : a row a step (see `cglb.train`).
    fit_report_ : what happened, in plain words.
    relevance_ : importance of each input by name, largest 1.
    """

    def __init__(
        self,
        method: str = "cglb",
        kernel: str | Kernel = "matern32",
        *,
        num_inducing: int | str = "auto",
        logdet: str = "amgm",
        cg_tolerance: float = 1.0,
        optimize_inducing: bool = False,
        max_steps: int = 100,
        noise_floor: float | None = None,
        drop_missing: bool = False,
        random_state: Any = None,
        memory_gb: float | None = None,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ):
        self.method = method
        self.kernel = kernel
        self.num_inducing = num_inducing
        self.logdet = logdet
        self.cg_tolerance = cg_tolerance
        self.optimize_inducing = optimize_inducing
        self.max_steps = max_steps
        self.noise_floor = noise_floor
        self.drop_missing = drop_missing
        self.random_state = random_state
        self.memory_gb = memory_gb
        self.progress = progress
        self.checkpoint = checkpoint

    # ---- fitting ----

    def fit(self, X: Any, y: Any) -> GPRegressor:
        """Learn hyperparameters from X [n, d] and y [n] and condition on them."""
        iterative = self.method == "iterative"
        objective = None if iterative else Objective(self.method, self.logdet, self.cg_tolerance)
        X, y = self._validate_fit(X, y)
        n, d = X.shape
        self.X_shift_, self.X_scale_ = feature_scale(X)
        self.y_shift_, self.y_scale_ = (float(a[0]) for a in feature_scale(y[:, None]))
        self._X, self._y = self._standardise(X), (y - self.y_shift_) / self.y_scale_
        floor = (NOISE_FLOOR if iterative else 1e-6) if self.noise_floor is None else self.noise_floor
        data = (GP(self._initial_kernel(d)), self._X, self._y)
        m = self._num_inducing(n)
        shared: dict[str, Any] = {"max_steps": self.max_steps, "progress": self.progress}
        shared |= {"floor": {"kernel": 1e-6, "noise": floor}, "seed": self._seed()}
        shared["checkpoint"] = None if self.checkpoint is None else Path(self.checkpoint)
        if objective is None:
            fit = train_iterative(*data, Iterative(self.cg_tolerance, rank=m), **shared)
        else:
            optimize = self.optimize_inducing
            fit = train(*data, objective, num_inducing=m, optimize_inducing=optimize, **shared)
        self.gp_, self.history_, self.n_iter_ = fit.gp, fit.history, len(fit.history)
        self._Z = fit.Z
        solution = self._condition(fit.v)
        self.fit_report_ = FitReport.of(fit, solution, n, floor, self.y_scale_)
        return self

    def update(self, X: Any, y: Any) -> GPRegressor:
        """Add rows and condition on all of them; hyperparameters, inducing points and units stay."""
        check_is_fitted(self, "gp_")
        X, y = self._validate_more(X, y)
        self._X = np.concatenate([self._X, self._standardise(X)])
        self._y = np.concatenate([self._y, (y - self.y_shift_) / self.y_scale_])
        v = getattr(self._posterior, "v", None)
        # the new rows start at 0: CG then has only their part left to find
        self._condition(None if v is None else np.concatenate([v, np.zeros(len(y))]))
        return self

    def _condition(self, v0: Any) -> Solution | None:
        """The posterior of the current model and rows, CG run to the prediction tolerance."""
        solution = None
        if self.method == "exact":
            self._posterior = posterior.exact(self.gp_, self._X, self._y)
        elif self.method == "sgpr":
            self._posterior = posterior.sgpr(self.gp_, self._X, self._y, self._Z)
        elif self.method == "iterative":
            tolerance = min(love.PREDICTION_TOLERANCE, self.cg_tolerance)
            data = (self.gp_, self._X, self._y, self._Z)
            solution, self._posterior = love.condition(*data, v0=v0, tolerance=tolerance)
        else:
            tolerance = min(PREDICTION_TOLERANCE, self.cg_tolerance)
            solution = solve(self.gp_, self._X, self._y, self._Z, v0=v0, tolerance=tolerance)
            self._posterior = posterior.cglb(self.gp_, self._X, self._y, self._Z, solution.v)
        return solution

    def _validate_fit(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = check_target(X, y, self.drop_missing)
        missing_message(X)
        X, y = validate_data(self, X, y, dtype=np.float64, order="C", y_numeric=True)
        return X, np.asarray(y, dtype=np.float64)

    def _validate_more(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = check_target(X, y, self.drop_missing)
        missing_message(X)
        X, y = validate_data(self, X, y, reset=False, dtype=np.float64, order="C", y_numeric=True)
        return X, np.asarray(y, dtype=np.float64)

    def _standardise(self, X: np.ndarray) -> np.ndarray:
        return (X - self.X_shift_) / self.X_scale_

    def _initial_kernel(self, d: int) -> Kernel:
        if isinstance(self.kernel, Kernel):
            self.kernel.check_columns(d)
            return self.kernel
        if self.kernel not in KERNELS:
            raise ValueError(
                f"kernel must be one of {', '.join(KERNELS)} or a cglb kernel, found {self.kernel!r}."
            )
        return KERNELS[self.kernel](np.ones(d))

    def _seed(self) -> int:
        if self.random_state is None:
            return 0
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _num_inducing(self, n: int) -> int:
        if self.method == "exact":
            needed = 3 * 8 * n * n / 2**30
            if self.memory_gb is not None and needed > self.memory_gb:
                raise ValueError(
                    f"method='exact' needs about {needed:.1f} GB for {n} rows, more than memory_gb="
                    f"{self.memory_gb}. Use method='cglb'."
                )
            return 1
        # A, its chunked copy and a gradient of the same size are alive at once
        fitting = n if self.memory_gb is None else int(self.memory_gb * 2**30 / (4 * 8 * n))
        if self.num_inducing == "auto":
            return max(1, min(n, AUTO_RANK if self.method == "iterative" else AUTO_INDUCING, fitting))
        if isinstance(self.num_inducing, str) or self.num_inducing < 1:
            raise ValueError(
                f"num_inducing must be a positive integer or 'auto', found {self.num_inducing!r}."
            )
        m = min(int(self.num_inducing), n)
        if m > fitting:
            raise ValueError(
                f"num_inducing={m} with {n} rows needs about {4 * 8 * n * m / 2**30:.1f} GB, more than "
                f"memory_gb={self.memory_gb}. At most {fitting} inducing points fit."
            )
        return m

    # ---- predictions ----

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, variance: str = "sgpr"
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The mean at X, and the standard deviation or covariance of a *new observation* there.

        variance: how the spread is found. "sgpr" is the cheapest and may err on either side
            (for method="iterative" it is LOVE's and never below the exact one). "local"
            conditions on the nearest rows and the inducing points and is never below the exact one.
            "cg" is the upper end of `variance_bracket`: never below the exact one and, where CG
            reaches its tolerance, at most 1 % above it. method="exact" has no need of them.
        """
        return self._predict(X, return_std, return_cov, variance, noise=True)

    def predict_f(
        self, X: Any, return_std: bool = False, return_cov: bool = False, variance: str = "sgpr"
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """As `predict`, for the latent function: without the noise of an observation."""
        return self._predict(X, return_std, return_cov, variance, noise=False)

    def predict_interval(
        self, X: Any, level: float = 0.95, variance: str = "sgpr"
    ) -> tuple[np.ndarray, np.ndarray]:
        """The ends of an interval that a new observation at X falls into with probability `level`."""
        mean, std = self.predict(X, return_std=True, variance=variance)
        return interval(mean, std**2, level)

    def variance_bracket(self, X: Any, tolerance: float = 0.01) -> VarianceBracket:
        """For each row of X, an interval that contains the exact variance of the latent function.

        tolerance: its width relative to its lower end. CG takes about as many steps as a fit from
        scratch, for 64 rows at a time.
        """
        check_is_fitted(self, "gp_")
        X_star = self._standardise(self._validate_new(X))
        scale = self.y_scale_**2
        if self.method == "exact":
            known = self._posterior.variance(X_star) * scale
            return VarianceBracket(known, known, np.ones(len(known), dtype=bool), 0)
        found = bracket(self.gp_, self._X, self._Z, X_star, tolerance)
        return VarianceBracket(found.lower * scale, found.upper * scale, found.tight, found.products)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Joint draws of new observations at X, [rows, n_samples]."""
        mean, cov = self._predict(X, False, True, "sgpr", noise=True)
        L = np.linalg.cholesky(cov)  # the noise on its diagonal keeps it positive definite
        draws = check_random_state(random_state).standard_normal((len(mean), n_samples))
        return mean[:, None] + L @ draws

    def _predict(self, X: Any, std: bool, cov: bool, variance: str, noise: bool) -> Any:
        check_is_fitted(self, "gp_")
        if std and cov:
            raise ValueError("return_std and return_cov cannot both be True: ask for one of them.")
        if variance not in VARIANCES:
            raise ValueError(f"variance must be one of {', '.join(VARIANCES)}, found {variance!r}.")
        if cov and variance != "sgpr":
            raise ValueError(
                f"variance={variance!r} gives variances, not covariances: use return_std=True."
            )
        X_star = self._standardise(self._validate_new(X))
        mean = self._posterior.mean(X_star) * self.y_scale_ + self.y_shift_
        observation = float(self.gp_.noise) if noise else 0.0
        if std:
            return mean, np.sqrt(self._variance(X_star, variance) + observation) * self.y_scale_
        if cov:
            covariance = self._posterior.covariance(X_star) + observation * np.eye(len(X_star))
            return mean, covariance * self.y_scale_**2
        return mean

    def _variance(self, X_star: np.ndarray, how: str) -> np.ndarray:
        """Var f in standardised units."""
        if how == "sgpr" or self.method == "exact":
            return np.asarray(self._posterior.variance(X_star))
        if how == "local":
            return np.asarray(local(self.gp_, self._X, X_star, self._Z))
        return np.asarray(bracket(self.gp_, self._X, self._Z, X_star).upper)

    def _validate_new(self, X: Any) -> np.ndarray:
        missing_message(X)
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64, order="C"))

    # ---- what was learned ----

    def evidence(
        self,
        tolerance: float | None = None,
        *,
        exact: bool = False,
        max_seconds: float | None = None,
    ) -> Evidence:
        """An interval that contains the log marginal likelihood of the training targets.

        tolerance: refine it, with more inducing points and neighbours than training had, until it is at
            most this many nats wide or the budget (`max_seconds`, `memory_gb`) is spent; its `message`
            says which. exact: by Cholesky, with n² memory.
        """
        check_is_fitted(self, "gp_")
        found = certify(
            self.gp_,
            self._X,
            self._y,
            self._Z,
            getattr(self._posterior, "v", None),
            tolerance=tolerance,
            exact=exact or self.method == "exact",
            max_seconds=max_seconds,
            memory_gb=CERTIFICATE_GB if self.memory_gb is None else self.memory_gb,
        )
        # densities of y in the user's units: the change of variables costs log(scale) a row
        return found.shifted(-len(self._y) * float(np.log(self.y_scale_)))

    @property
    def relevance_(self) -> dict[str, float]:
        """Importance of each input (inverse lengthscale on standardised inputs), the largest 1."""
        check_is_fitted(self, "gp_")
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(self._X.shape[1])])
        values = relevance(self.gp_.kernel, np.ptp(self._X, axis=0) > 1e-9)
        return dict(zip(map(str, names), values.tolist(), strict=True))

    # ---- files ----

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file (safetensors and JSON, no pickle)."""
        check_is_fitted(self, "gp_")
        model_file.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> GPRegressor:
        """A model that `save` wrote; it predicts bit for bit what it did before."""
        return model_file.load(cls, path)
