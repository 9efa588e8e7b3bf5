"""Predictions of a fitted estimator at new inputs, in the user's units."""

from __future__ import annotations

from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cglb.core.precision import float64, to_numpy
from cglb.data.intake import take_new
from cglb.data.metrics import interval
from cglb.data.table import Kind
from cglb.posteriors.gradient import mean_gradient, variance_gradient
from cglb.posteriors.variance import VarianceBracket, bracket_at
from cglb.regressor.fitted import Fitted
from cglb.regressor.progress import counting

__all__ = ["Predictions"]

VARIANCES = ("auto", "sgpr", "local", "cg")
# test rows predicted at a time, which limits memory, and by CG, whose bracket takes long; a progress bar
# shows how many of these parts are done
ROWS, CG_ROWS = 2048, 64


class Predictions(Fitted):
    """Means, variances, intervals, gradients and draws at new inputs."""

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
                "cg" is the upper end of `variance_bracket`: never below the exact one and, if CG reaches
                its tolerance, at most 1 % above it. Ignored for method="exact", whose variance is exact.
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
            One gradient per row, [rows, columns]. It is 0 for a column that was constant in training,
            and NaN for text, which has no derivative.
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
            return to_numpy(bracket_at(self._system, self._rows.at(jnp.asarray(X_star)), tolerance))

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
        mean, spread = self._moments(X_star, variance if std else None)
        mean = mean * self.y_scale_ + self.y_shift_
        observation = float(self.gp_.noise) if noise else 0.0
        if std:
            return mean, np.sqrt(spread + observation) * self.y_scale_
        if cov:
            covariance = self._posterior.covariance(X_star) + observation * np.eye(len(X_star))
            return mean, covariance * self.y_scale_**2
        return mean

    def _moments(self, X_star: np.ndarray, how: str | None) -> tuple[np.ndarray, np.ndarray]:
        """E f and, unless `how` is None, Var f of each row, in standardised units."""
        s, size = len(X_star), CG_ROWS if how == "cg" else ROWS
        mean, spread = np.empty((2, s))
        with counting(self.progress and s > size, s) as report:
            for start in range(0, s, size):
                end = min(start + size, s)
                # the last part of many begins earlier: one program for all parts
                part = self._posterior.mean(X_star[max(0, end - size) : end])
                mean[start:end] = part[start - end :]
                if how is not None:
                    spread[start:end] = self._variance(X_star[start:end], how)
                report(end)
        return mean, spread

    def _variance(self, X_star: np.ndarray, how: str) -> np.ndarray:
        """Var f in standardised units."""
        if how == "auto":
            how = "local" if self._posterior.solved else "sgpr"
        if how == "sgpr" or self._posterior.exact:
            return np.asarray(self._posterior.variance(X_star))
        if how == "local":
            with float64():
                return np.asarray(self._local(self._rows.at(X_star)))
        return np.asarray(self._bracket(X_star).upper)
