"""`GPRegressor`: a Gaussian process with scikit-learn's conventions and the user's own units.

Inside, inputs and target are standardised and everything is a `GP`, a trained bound and a posterior;
this file only translates: names to objects, tables to arrays, results back to the units they came in.
"""

from __future__ import annotations

import copy
import os
import warnings
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cglb import methods, regressor_file
from cglb.bounds.certificate import Certificate, Evidence, certify_at, estimate_at
from cglb.bounds.logdet import LogdetBound
from cglb.core.precision import float64, to_numpy
from cglb.data.encoding import Encoding
from cglb.data.frames import feature_scale
from cglb.data.intake import take_new, take_training
from cglb.data.metrics import interval
from cglb.data.remarks import remarks
from cglb.data.table import Kind
from cglb.kernels.base import Kernel, relevance
from cglb.kernels.choice import as_kernel, with_params
from cglb.kernels.located import located
from cglb.linalg.preconditioners import Preconditioning
from cglb.linalg.system import System
from cglb.methods import Conditioned, Method
from cglb.methods.stages import GIVEN, STARTS
from cglb.model import GP
from cglb.posteriors.cholesky import ExactPosterior, exact_at
from cglb.posteriors.gradient import mean_gradient, variance_gradient
from cglb.posteriors.variance import Local, VarianceBracket, bracket_at
from cglb.report import FitReport
from cglb.training.free import DEFAULT_FLOOR, Parameters
from cglb.training.history import HistoryRow
from cglb.training.options import Schedule
from cglb.training.trainer import train

__all__ = ["GPRegressor"]

CERTIFICATE_GB = 4.0
# arguments that decide what a fit finds; the others say how it is computed
DECIDE = (
    "method", "kernel", "kernel_units", "num_inducing", "logdet", "cg_tolerance", "precondition",
    "optimize_inducing", "schedule", "max_steps", "noise", "fixed", "noise_floor", "random_state",
)  # fmt: skip
UNITS = ("standardised", "data")
VARIANCES = ("auto", "sgpr", "local", "cg")
# a column of standardised inputs that varies less is constant
CONSTANT = 1e-9


class GPRegressor(RegressorMixin, BaseEstimator):
    """Gaussian process regression by maximising a bound on the evidence.

    Args:
        method: what is maximised: "auto" (default: "exact" for few rows, "cglb" for more; `fit_report_`
            says which and why), "cglb", "sgpr", "exact" (needs n² memory), "iterative" (the baseline: a
            noisy estimate, no bound), another registered name, or a `Method`. A `Method` brings its own
            settings; `logdet`, `cg_tolerance` and `precondition` are then not looked at.
        kernel: a name: "rbf", "matern12", "matern32" (default), "matern52", "rational_quadratic", with
            one lengthscale per column, or any other of `cglb.kernels.names()`, your own included. Or a
            kernel object, from which training starts, or one of scikit-learn's kernels. None is the
            default.
        kernel_units: the units of the lengthscales and periods of a kernel object: "standardised"
            (inputs with mean 0 and standard deviation 1), or "data", those of the columns as they are.
            Variances are relative to that of the target in both.
        num_inducing: inducing points; "auto" is min(n, 512), fewer if `memory_gb` is small. For
            "iterative" the rank of the preconditioner; "auto" is 100.
        logdet: upper bound on log|K̂|: "auto" (default: the tightest that pays), "amgm" (the paper's),
            "chain" (far tighter at low noise), "hadamard", "waterfill" or "trace" (Titsias' own, for
            method="sgpr").
        cg_tolerance: nats that conjugate gradients may cost at each evaluation; for
            "iterative" the relative norm of the residual.
        precondition: CG's preconditioner: "nystrom", "chain" or "auto" (the chain if the inducing
            points leave much to do).
        optimize_inducing: optimise inducing points by gradient (the paper's way) instead of selecting
            them anew in rounds.
        schedule: "progressive" (default) searches from several starts on few rows, goes on with the best
            on more rows, and ends on all; "direct" trains on all rows from one start, as the paper does.
        max_steps: accepted optimiser steps at most, after the searches of a progressive schedule: up to
            60 each, on up to 500 rows. Training ends earlier when it has converged.
        max_seconds: seconds of training at most; None for no limit. It is looked at before each
            evaluation.
        noise: the noise variance to start from, in the squared units of y; None to search for one.
        fixed: names of hyperparameters that keep their starting value, such as ("noise",) or
            ("kernel.lengthscale",).
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
        progress: show a progress bar.
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

    X_shift_: np.ndarray
    X_scale_: np.ndarray
    y_shift_: float
    y_scale_: float
    method_: Method
    gp_: GP
    history_: list[HistoryRow]
    n_iter_: int
    n_features_in_: int
    feature_names_in_: np.ndarray
    encoding_: Encoding | None
    target_name_: str | None
    fit_report_: FitReport
    _X: np.ndarray
    _y: np.ndarray
    _Z: np.ndarray | None
    _v: np.ndarray | None
    _posterior: Any  # a Posterior, of JAX arrays
    _settings: dict[str, str]  # what was fitted with, by argument
    _known_system: System | None
    _known_local: Local | None

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
        self.warm_start = warm_start
        self.noise_floor = noise_floor
        self.drop_missing = drop_missing
        self.impute = impute
        self.random_state = random_state
        self.memory_gb = memory_gb
        self.progress = progress
        self.checkpoint = checkpoint

    # ---- fitting ----

    def fit(self, X: Any, y: Any) -> GPRegressor:
        """Learn hyperparameters from X [n, d] and y [n] and condition on them.

        A fit that fails or is interrupted leaves the estimator as it was.
        """
        target_name = None if getattr(y, "name", None) is None else str(y.name)
        probe = copy.copy(self)  # takes the names and the number of columns
        X, y = take_training(probe, X, y, reset=True)
        n, d = X.shape
        odd = remarks(X, y, _names(probe, d))
        X_shift, X_scale = feature_scale(X)
        y_shift, y_scale = (float(a[0]) for a in feature_scale(y[:, None]))
        X, y = (X - X_shift) / X_scale, (y - y_shift) / y_scale
        settings = {"logdet": self.logdet, "cg_tolerance": self.cg_tolerance}
        settings = {**settings, "precondition": self.precondition}
        choice = methods.choose(self.method, n, settings, self.memory_gb)
        m = choice.method.points(n, self.num_inducing, self.memory_gb)
        method = choice.method.with_points(m)
        start, again = self._start(probe, X_scale, y_scale)
        noise_floor = method.noise_floor if self.noise_floor is None else self.noise_floor
        floor = {"kernel": DEFAULT_FLOOR, "noise": noise_floor}
        fit = train(
            start,
            X,
            y,
            method,
            num_inducing=m,
            optimize_inducing=self.optimize_inducing,
            max_steps=self.max_steps,
            max_seconds=self.max_seconds,
            schedule=Schedule.DIRECT if again else self.schedule,
            starts=(GIVEN, *STARTS) if self._names_a_start else STARTS,
            floor=floor,
            fixed=tuple(self.fixed),
            seed=self._seed(),
            progress=self.progress,
            checkpoint=None if self.checkpoint is None else Path(self.checkpoint),
        )
        with float64():
            rows, targets = jnp.asarray(X), jnp.asarray(y)
            system = _system(method, fit.gp, rows, fit.Z)
            if fit.system is not None:  # its factors, with the solver for predictions
                system = fit.system.again(method.solver, fit.system.neighbours)
            v0 = None if fit.v is None else jnp.asarray(fit.v)
            found = method.condition(system, targets, v0)
        parameters = Parameters(start, floor, tuple(self.fixed))
        floors = dict(zip(parameters.names, parameters.floors.tolist(), strict=True))
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
            fit_report_=FitReport.of(fit, found.solution, n, floors, y_scale, choice, odd),
            _X=X,
            _y=y,
            _Z=fit.Z,
            _v=_solution(found),
            _posterior=found.posterior,
        )
        self._known_system = system
        for concern in self.fit_report_.concerns:
            warnings.warn(concern, ConvergenceWarning, stacklevel=2)
        return self

    def update(self, X: Any, y: Any) -> GPRegressor:
        """Add rows and condition on all of them; hyperparameters, inducing points and units stay."""
        check_is_fitted(self, "gp_")
        X, y = take_training(self, X, y, reset=False)
        X = np.concatenate([self._X, self._standardise(X)])
        y = np.concatenate([self._y, (y - self.y_shift_) / self.y_scale_])
        # the new rows start at 0: CG then has only their part left to find
        v0 = None if self._v is None else np.concatenate([self._v, np.zeros(len(y) - len(self._v))])
        with float64():
            system = _system(self.method_, self.gp_, jnp.asarray(X), self._Z)
            start = None if v0 is None else jnp.asarray(v0)
            found = self.method_.condition(system, jnp.asarray(y), start)
        self._X, self._y, self._v, self._posterior = X, y, _solution(found), found.posterior
        self._known_system, self._known_local = system, None
        return self

    def _set_fitted(self, **fitted: Any) -> None:
        """All that was learned, at once: only this makes a fitted estimator."""
        vars(self).update(fitted)
        self._settings = self._current_settings()
        self._known_system = self._known_local = None
        if fitted["feature_names_in_"] is None:  # scikit-learn asks whether there is such an attribute
            del self.feature_names_in_

    def _current_settings(self) -> dict[str, str]:
        """The arguments that decide what a fit finds, as text."""
        settings = {name: getattr(self, name) for name in DECIDE}
        if not isinstance(
            settings["random_state"], int | None
        ):  # the text of a generator has an address
            settings["random_state"] = type(settings["random_state"]).__name__
        return {name: repr(value) for name, value in settings.items()}

    def _check_fitted(self) -> None:
        """Refuse an estimator without a fit; warn if its arguments are no longer those of the fit."""
        check_is_fitted(self, "gp_")
        now = self._current_settings()
        changed = [name for name in DECIDE if now[name] != self._settings[name]]
        if changed:
            warnings.warn(
                f"{', '.join(changed)} changed after fit. Results are those of the fit, with "
                f"{', '.join(f'{name}={self._settings[name]}' for name in changed)}: call fit again.",
                stacklevel=4,
            )

    # ---- what predictions and certificates share, made once ----

    @property
    def _system(self) -> System:
        """K̂ of the model on its training data: the one that training ended with, if it is at hand."""
        if self._known_system is None:
            with float64():
                rows = jnp.asarray(self._X)
                self._known_system = _system(self.method_, self.gp_, rows, self._Z)
        return self._known_system

    @property
    def _local(self) -> Local:
        if self._known_local is None:
            with float64():
                Z = None if self._Z is None else jnp.asarray(self._Z)
                self._known_local = Local(self._system.gp, self._system.X, Z)
        return self._known_local

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made again: JAX would round its float64 arrays when they come back."""
        state: dict[str, Any] = dict(cast(Any, super().__getstate__()))
        if "_posterior" in state:
            state["_posterior"] = to_numpy(state["_posterior"])
            state["_known_system"] = state["_known_local"] = None
        return state

    def _standardise(self, X: np.ndarray) -> np.ndarray:
        return (X - self.X_shift_) / self.X_scale_

    def _start(self, probe: GPRegressor, X_scale: np.ndarray, y_scale: float) -> tuple[GP, bool]:
        """Where training starts, and whether that is the model of the last fit."""
        if self.warm_start and hasattr(self, "gp_"):
            self.gp_.kernel.check_columns(len(X_scale))
            return self.gp_, True
        kernel = self._initial_kernel(probe, X_scale)
        if self.noise is None:
            return GP(kernel), False
        return GP(kernel, np.asarray(self.noise / y_scale**2)), False

    @property
    def _names_a_start(self) -> bool:
        """Whether the user said where to start."""
        return not (self.kernel is None or isinstance(self.kernel, str)) or self.noise is not None

    def _initial_kernel(self, probe: GPRegressor, X_scale: np.ndarray) -> Kernel:
        """The kernel on standardised inputs from which training starts."""
        if self.kernel_units not in UNITS:
            raise ValueError(
                f"kernel_units must be one of {', '.join(UNITS)}, found {self.kernel_units!r}."
            )
        if self.kernel is None or isinstance(self.kernel, str):
            return as_kernel(self.kernel, len(X_scale))
        kernel, encoding = as_kernel(self.kernel, probe.n_features_in_), probe.encoding_
        if encoding is not None:
            kernel = located(kernel, encoding.columns, encoding.groups)
        kernel.check_columns(len(X_scale))
        return kernel.rescaled(X_scale) if self.kernel_units == "data" else kernel

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

    # ---- predictions ----

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, variance: str = "auto"
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The mean at X, and the standard deviation or covariance of a *new observation* there.

        Args:
            X: where to predict, [rows, d].
            return_std: also return the standard deviation of each row.
            return_cov: also return the covariance of all rows.
            variance: how the spread is found. "auto" is exact for method="exact", "local" where CG found
                the mean, and otherwise the posterior's own. "sgpr" is the cheapest and may err on
                either side (for method="iterative" it is LOVE's and never below the exact one). "local"
                conditions on the nearest rows and the inducing points and is never below the exact one.
                "cg" is the
                upper end of `variance_bracket`: never below the exact one and, if CG reaches its
                tolerance, at most 1 % above it. Ignored for method="exact", whose variance is exact.
        """
        return self._predict(X, return_std, return_cov, variance, noise=True)

    def predict_f(
        self, X: Any, return_std: bool = False, return_cov: bool = False, variance: str = "auto"
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """As `predict`, for the latent function: without the noise of an observation."""
        return self._predict(X, return_std, return_cov, variance, noise=False)

    def predict_interval(
        self, X: Any, level: float = 0.95, variance: str = "auto"
    ) -> tuple[np.ndarray, np.ndarray]:
        """The ends of an interval that a new observation at X falls into with probability `level`."""
        mean, std = self.predict(X, return_std=True, variance=variance)
        return interval(mean, std**2, level)

    def predict_gradient(
        self, X: Any, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The gradient of the mean in the inputs, in the units of y per unit of each column.

        Args:
            X: where, [rows, columns].
            return_std: also return the gradient of the standard deviation of the latent function
                (`predict_f`, variance="sgpr").

        Returns:
            One gradient per row, [rows, columns]: 0 for a column that was constant in training, NaN for
            text, which has no derivative.
        """
        check_is_fitted(self, "gp_")
        X_star = self._standardise(take_new(self, X))
        mean = np.asarray(mean_gradient(self._posterior, cast(Any, X_star)))
        if not return_std:
            return self._per_column(mean)
        variance = np.asarray(self._posterior.variance(X_star))[:, None]
        slope = np.asarray(variance_gradient(self._posterior, cast(Any, X_star)))
        return self._per_column(mean), self._per_column(slope / (2.0 * np.sqrt(variance)))

    def _per_column(self, gradient: np.ndarray) -> np.ndarray:
        """A gradient in standardised units, as one in those of the user's columns."""
        gradient = gradient * self.y_scale_ / self.X_scale_
        if self.encoding_ is None:
            return gradient
        out = np.zeros((len(gradient), len(self.encoding_.codes)))
        for i, group in enumerate(self.encoding_.groups):
            if group:
                text = self.encoding_.codes[i].kind is Kind.TEXT
                out[:, i] = np.nan if text else gradient[:, group[0]]
        return out

    def variance_bracket(self, X: Any, tolerance: float = 0.01) -> VarianceBracket:
        """For each row of X, an interval that contains the exact variance of the latent function.

        CG takes about as many steps as a fit from scratch, for 64 rows at a time.

        Args:
            X: where, [rows, d].
            tolerance: the width of an interval relative to its lower end.
        """
        self._check_fitted()
        X_star = self._standardise(take_new(self, X))
        scale = self.y_scale_**2
        if self._posterior.exact:
            known = self._posterior.variance(X_star) * scale
            return VarianceBracket(known, known, np.ones(len(known), dtype=bool), 0)
        found = self._bracket(X_star, tolerance)
        return VarianceBracket(found.lower * scale, found.upper * scale, found.tight, found.products)

    def _bracket(self, X_star: np.ndarray, tolerance: float = 0.01) -> VarianceBracket:
        """In standardised units."""
        with float64():
            return to_numpy(bracket_at(self._system, jnp.asarray(X_star), tolerance))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Joint draws of new observations at X, [rows, n_samples]."""
        mean, cov = self._predict(X, False, True, "sgpr", noise=True)
        L = np.linalg.cholesky(cov)  # the noise on its diagonal keeps it positive definite
        draws = check_random_state(random_state).standard_normal((len(mean), n_samples))
        return mean[:, None] + L @ draws

    def _predict(self, X: Any, std: bool, cov: bool, variance: str, noise: bool) -> Any:
        self._check_fitted()
        if std and cov:
            raise ValueError("return_std and return_cov cannot both be True: ask for one of them.")
        if variance not in VARIANCES:
            raise ValueError(f"variance must be one of {', '.join(VARIANCES)}, found {variance!r}.")
        if cov and variance not in ("auto", "sgpr"):
            raise ValueError(
                f"variance={variance!r} gives variances, not covariances: use return_std=True."
            )
        X_star = self._standardise(take_new(self, X))
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
        if how == "auto":
            how = "local" if self._posterior.solved else "sgpr"
        if how == "sgpr" or self._posterior.exact:
            return np.asarray(self._posterior.variance(X_star))
        if how == "local":
            with float64():
                return np.asarray(self._local(jnp.asarray(X_star)))
        return np.asarray(self._bracket(X_star).upper)

    # ---- what was learned ----

    def evidence(
        self,
        tolerance: float | None = None,
        *,
        exact: bool = False,
        confidence: float | None = None,
        max_seconds: float | None = None,
    ) -> Evidence:
        """An interval that contains the log marginal likelihood of the training targets.

        Args:
            tolerance: refine it, with more inducing points and neighbours than training had, until it
                is at most this many nats wide or the budget (`max_seconds`, `memory_gb`) is spent; its
                `message` says which.
            exact: by Cholesky, with n² memory.
            confidence: also give an interval inside the certain one that contains the exact value with
                this probability, such as 0.99, by random probes; `tolerance` is then its width, by
                default 1 nat per 1,000 rows.
            max_seconds: the budget of time for refining.
        """
        self._check_fitted()
        exact = exact or self._posterior.exact
        memory_gb = CERTIFICATE_GB if self.memory_gb is None else self.memory_gb
        with float64():
            v = None if self._v is None else jnp.asarray(self._v)
            certificate = Certificate(self._system, jnp.asarray(self._y), v, memory_gb)
            if self._posterior.exact:
                certificate.exact((float(self._posterior.lml), self._posterior.alpha))
            if confidence is not None and not exact:
                found = estimate_at(certificate, confidence, tolerance, max_seconds)
            else:
                found = certify_at(
                    certificate, tolerance=tolerance, exact=exact, max_seconds=max_seconds
                )
        # densities of y in the user's units: the change of variables costs log(scale) per row
        return found.shifted(-len(self._y) * float(np.log(self.y_scale_)))

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the standard deviation of each training target, predicted from all others.

        With the hyperparameters of the fit and the exact posterior, in closed form for every method:
        n³ flops and n² memory.
        """
        self._check_fitted()
        with float64():
            posterior = self._posterior
            if not isinstance(posterior, ExactPosterior):
                posterior = exact_at(self._system.gp, self._system.X, jnp.asarray(self._y))
            mean, variance = to_numpy(posterior.leave_one_out(jnp.asarray(self._y)))
        return mean * self.y_scale_ + self.y_shift_, np.sqrt(variance) * self.y_scale_

    def in_model_units(self, X: Any, y: np.ndarray) -> tuple[GP, Any, Any, Any, float]:
        """The model, X, y and its inducing points in standardised units, and the nats that these units
        add to log p(y): what `cglb.compare` needs."""
        check_is_fitted(self, "gp_")
        targets = (y - self.y_shift_) / self.y_scale_
        nats = -len(y) * float(np.log(self.y_scale_))
        return self.gp_, self._standardise(take_new(self, X)), targets, self._Z, nats

    @property
    def kernel_(self) -> Kernel:
        """The learned kernel with lengthscales and periods in the units of the inputs.

        Raises:
            AttributeError: if the kernel does not say how its parameters depend on units.
        """
        check_is_fitted(self, "gp_")
        try:
            return self.gp_.kernel.rescaled(1.0 / self.X_scale_)
        except ValueError as error:  # as scikit-learn expects of an attribute that is not there
            raise AttributeError(str(error)) from None

    @property
    def relevance_(self) -> dict[str, float]:
        """Importance of each input (inverse lengthscale on standardised inputs), the largest 1."""
        check_is_fitted(self, "gp_")
        values = relevance(self.gp_.kernel, np.ptp(self._X, axis=0) > CONSTANT)
        if self.encoding_ is not None:  # a text counts as much as the strongest of its columns
            pairs = zip(self.encoding_.columns, self.encoding_.groups, strict=True)
            return {name: float(values[group].max(initial=0.0)) for name, group in pairs}
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(self._X.shape[1])])
        return dict(zip(map(str, names), values.tolist(), strict=True))

    def _html_repr(self) -> str:
        """What a notebook shows: scikit-learn's box and, once fitted, what the fit is worth."""
        box = super()._html_repr()
        return self.fit_report_.summary(self.relevance_) + box if hasattr(self, "gp_") else box

    # ---- files ----

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file (safetensors and JSON, no pickle)."""
        check_is_fitted(self, "gp_")
        regressor_file.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> GPRegressor:
        """A model that `save` wrote; it predicts bit for bit what it did before."""
        estimator, fitted = regressor_file.load(cls, path)
        estimator._set_fitted(**fitted)
        return estimator


def _names(estimator: GPRegressor, d: int) -> list[str]:
    """The names of the d inputs that training sees."""
    if estimator.encoding_ is not None:
        return estimator.encoding_.features
    return [str(name) for name in getattr(estimator, "feature_names_in_", [f"x{i}" for i in range(d)])]


def _solution(found: Conditioned) -> np.ndarray | None:
    return None if found.solution is None else np.asarray(found.solution.v)


def _system(method: Method, gp: GP, X: jax.Array, Z: np.ndarray | None) -> System:
    """K̂ of a trained model, in the float64 scope."""
    model = jax.tree.map(jnp.asarray, gp)
    return method.system(model, X, None if Z is None else jnp.asarray(Z))
