"""What a fitted estimator holds, and what it says about itself: evidence, kernel, relevance.

Everything is in standardised units inside; answers are in the user's.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from cglb.bounds.certificate import Certificate
from cglb.bounds.interval import Evidence, certify_at, estimate_at
from cglb.core.precision import float64, to_numpy
from cglb.data.encoding import Encoding
from cglb.data.intake import take_new
from cglb.kernels.base import Kernel, relevance
from cglb.linalg.row_noise import RowNoise, Rows
from cglb.linalg.system import System
from cglb.methods import Method
from cglb.model import GP
from cglb.posteriors.cholesky import ExactPosterior, exact_at
from cglb.posteriors.local import Local
from cglb.regressor.report import FitReport
from cglb.training.conditioned import system_of
from cglb.training.history import HistoryRow

__all__ = ["Fitted", "names_of"]

CERTIFICATE_GB = 4.0
# arguments that decide what a fit finds; the others say how it is computed
DECIDE = (
    "method", "kernel", "kernel_units", "num_inducing", "logdet", "cg_tolerance", "precondition",
    "optimize_inducing", "schedule", "max_steps", "noise", "fixed", "priors", "noise_floor",
    "random_state",
)  # fmt: skip
# a column of standardised inputs that varies less is constant
CONSTANT = 1e-9


class Fitted(BaseEstimator):
    """The fitted attributes of an estimator, and what follows from them without new inputs."""

    memory_gb: float | None
    progress: bool
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
    _v: np.ndarray | None  # (K + D)⁻¹(y − μ), as CG found it
    _weight: np.ndarray | None
    _known: np.ndarray | None  # noise variances of the rows, in standardised units
    _posterior: Any  # a Posterior, of JAX arrays
    _settings: dict[str, str]  # what was fitted with, by argument
    _known_system: System | None
    _known_local: Local | None
    _known_rows: Rows | None

    def _set_fitted(self, **fitted: Any) -> None:
        """All that was learned, at once: only this makes a fitted estimator."""
        vars(self).update(fitted)
        self._settings = self._current_settings()
        self._known_system = self._known_local = self._known_rows = None
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
                self._known_system = system_of(self.method_, self.gp_, self._rows, self._Z)
        return self._known_system

    @property
    def _rows(self) -> Rows:
        """The training rows as a system sees them."""
        if self._known_rows is None:
            noise = RowNoise(self._weight, self._known)
            with float64():
                self._known_rows = Rows.of(self._X, self._y, noise, self.method_.padded)
        return self._known_rows

    @property
    def _noise_variances(self) -> np.ndarray:
        """Of each training target, in standardised units."""
        weight = np.ones(len(self._y)) if self._weight is None else self._weight
        return float(self.gp_.noise) / weight + (0.0 if self._known is None else self._known)

    @property
    def _local(self) -> Local:
        if self._known_local is None:
            with float64():
                Z = None if self._Z is None else self._rows.at(jnp.asarray(self._Z))
                self._known_local = Local(self._system.gp, self._system.X, Z)
        return self._known_local

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made again: JAX would round its float64 arrays when they come back."""
        state: dict[str, Any] = dict(cast(Any, super().__getstate__()))
        if "_posterior" in state:
            state["_posterior"] = to_numpy(state["_posterior"])
            state["_known_system"] = state["_known_local"] = state["_known_rows"] = None
        return state

    def _standardise(self, X: np.ndarray) -> np.ndarray:
        return (X - self.X_shift_) / self.X_scale_

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
                default 1 nat per 1,000 rows, at least 1.
            max_seconds: the budget of time for refining.
        """
        self._check_fitted()
        exact = exact or self._posterior.exact
        memory_gb = CERTIFICATE_GB if self.memory_gb is None else self.memory_gb
        with float64():
            rows = self._rows
            v = rows.start(self.gp_, self._v)
            certificate = Certificate(self._system, rows.y, v, memory_gb)
            if self._posterior.exact:
                alpha = rows.start(self.gp_, self._posterior.alpha)
                certificate.exact((float(self._posterior.lml), alpha))
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
                posterior = exact_at(self._system.gp, self._system.X, self._rows.y)
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
        return dict(zip(names_of(self, len(values)), values.tolist(), strict=True))


def names_of(estimator: Any, d: int) -> list[str]:
    """The names of the d inputs that training sees."""
    if estimator.encoding_ is not None:
        return estimator.encoding_.features
    return [str(name) for name in getattr(estimator, "feature_names_in_", [f"x{i}" for i in range(d)])]
