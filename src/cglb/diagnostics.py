"""What pictures and reports of a fitted model show: plain arrays in the user's units."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve

from cglb.core.precision import float64
from cglb.data import metrics
from cglb.data.table import Kind
from cglb.regressor import GPRegressor

__all__ = [
    "Climb",
    "Dependence",
    "Held",
    "calibration",
    "climbs",
    "dependence",
    "held_out",
    "leave_one_out",
    "shown_kernel",
]

# up to this many rows all are left out in turn, by Cholesky: 8n² bytes
EXACT_ROWS = 3000
SAMPLE, NEAREST = 400, 256
GRID, AVERAGED = 30, 64
LEVELS = np.linspace(0.05, 0.95, 19)


@dataclass(frozen=True)
class Held:
    """Predictions of rows that the model had not seen.

    Attributes:
        y: targets, [s].
        mean: predictions, [s].
        std: standard deviations of new observations, [s].
        how: in words, how they were found.
    """

    y: Float[np.ndarray, " s"]
    mean: Float[np.ndarray, " s"]
    std: Float[np.ndarray, " s"]
    how: str

    def scores(self) -> dict[str, float | None]:
        """RMSE, explained share of the variance, NLPD, and coverage of 95 % intervals."""
        variance = self.std**2
        return {
            "rmse": metrics.rmse(self.y, self.mean),
            "r2": metrics.r2(self.y, self.mean) if np.ptp(self.y) > 0 else None,
            "nlpd": metrics.nlpd(self.y, self.mean, variance),
            "coverage": metrics.coverage(self.y, self.mean, variance),
        }


def held_out(model: GPRegressor, X: Any, y: Any) -> Held:
    """Predictions of rows that were kept apart."""
    mean, std = model.predict(X, return_std=True)
    targets = np.asarray(y, dtype=np.float64)
    return Held(targets, mean, std, f"{len(targets)} rows that training did not see")


def leave_one_out(model: GPRegressor, seed: int = 0) -> Held:
    """Each training row predicted from the others, at the learned hyperparameters.

    Up to 3000 rows by Cholesky: exact, O(n³). Above that for 400 rows drawn at random, each from the 256
    other rows that are nearest in the kernel's own distance.
    """
    n, scale, shift = len(model._y), model.y_scale_, model.y_shift_
    y = model._y * scale + shift
    if n <= EXACT_ROWS:
        return Held(y, *model.leave_one_out(), f"each of {n} rows predicted from all others")
    rows = np.sort(np.random.default_rng(seed).choice(n, SAMPLE, replace=False))
    mean, variance = _from_nearest(model.gp_, model._X, model._y, model._noise_variances, rows)
    how = f"{SAMPLE} rows drawn at random, each predicted from the {NEAREST} nearest others"
    return Held(y[rows], mean * scale + shift, np.sqrt(variance) * scale, how)


def _matrix(gp: Any, X: np.ndarray, noise: np.ndarray) -> np.ndarray:
    with float64():
        kernel = jax.tree.map(jnp.asarray, gp.kernel)
        return np.asarray(kernel(jnp.asarray(X), jnp.asarray(X))) + np.diag(noise)


def _from_nearest(
    gp: Any, X: np.ndarray, y: np.ndarray, noise: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    scaled = X * gp.kernel.relevance(X.shape[1])
    norms = (scaled**2).sum(axis=1)
    mean, variance = np.empty((2, len(rows)))
    for place, row in enumerate(rows):
        distance = norms - 2.0 * scaled @ scaled[row]
        distance[row] = -np.inf  # the row itself comes first
        chosen = np.argpartition(distance, NEAREST)[: NEAREST + 1]
        chosen = np.concatenate([[row], chosen[chosen != row]])
        K = _matrix(gp, X[chosen], noise[chosen])
        factor = cho_factor(K[1:, 1:], lower=True)
        weights = cho_solve(factor, K[1:, 0])
        mean[place] = weights @ (y[chosen[1:]] - float(gp.mean)) + float(gp.mean)
        variance[place] = max(K[0, 0] - weights @ K[1:, 0], float(noise[row]))
    return mean, variance


def calibration(held: Held) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of central intervals, and the share of targets that fall into them."""
    covered = [metrics.coverage(held.y, held.mean, held.std**2, level) for level in LEVELS]
    return LEVELS, np.array(covered)


def shown_kernel(model: GPRegressor) -> tuple[str, str]:
    """The learned kernel as text, and the units of its lengthscales: the inputs' own if it knows how."""
    try:
        return repr(model.kernel_), "units of the inputs"
    except AttributeError:
        return repr(model.gp_.kernel), "standardised units"


@dataclass(frozen=True)
class Climb:
    """The bound during one stage of training.

    Attributes:
        steps: numbers of the steps, [k].
        bounds: nats per row at each, in standardised units, [k]. Per row, since stages on few rows
            bound the evidence of those rows.
        rows: in this stage.
        method: what it maximises.
    """

    steps: Float[np.ndarray, " k"]
    bounds: Float[np.ndarray, " k"]
    rows: int
    method: str


def climbs(model: GPRegressor) -> list[Climb]:
    """The stages of training, in order: first the searches from several starts."""
    found = []
    for _, stage in groupby(model.history_, key=lambda row: row["stage"]):
        steps = list(stage)
        rows = steps[0]["rows"]
        bounds = np.array([row["bound"] for row in steps]) / rows
        numbers = np.array([float(row["step"]) for row in steps])
        found.append(Climb(numbers, bounds, rows, steps[0]["method"]))
    return found


@dataclass(frozen=True)
class Dependence:
    """How the prediction depends on one input, on average over the others.

    Attributes:
        name: the input.
        values: where, [g]: numbers, days since 1970-01-01 for a date, or texts.
        mean: the average prediction, [g].
        std: its standard deviation, [g].
        kind: what the input holds.
    """

    name: str
    values: np.ndarray
    mean: Float[np.ndarray, " g"]
    std: Float[np.ndarray, " g"]
    kind: Kind


def dependence(model: GPRegressor, name: str, seed: int = 0) -> Dependence:
    """The average of the latent function over 64 training rows, with one input moved.

    Args:
        model: a fitted model.
        name: the input.
        seed: decides which rows.

    Raises:
        ValueError: if there is no such input, or if it was constant.
    """
    names = list(model.relevance_)
    if name not in names:
        raise ValueError(f"There is no input {name!r}. There are: {', '.join(names)}.")
    number = names.index(name)
    encoding = model.encoding_
    group = [number] if encoding is None else encoding.groups[number]
    kind = Kind.NUMBER if encoding is None else encoding.codes[number].kind
    if not group:
        raise ValueError(f"The input {name!r} was constant in training: there is nothing to show.")
    n = len(model._y)
    rows = model._X[np.random.default_rng(seed).permutation(n)[: min(n, AVERAGED)]]
    scale, shift = model.X_scale_[group], model.X_shift_[group]
    if kind is Kind.TEXT:
        assert encoding is not None
        values = np.array(encoding.codes[number].texts, dtype=object)
        places = (np.eye(len(values)) - shift) / scale
    else:
        column = model._X[:, group[0]]
        if kind is Kind.BOOLEAN:
            grid = np.unique(column)
        else:
            low, high = np.quantile(column, [0.02, 0.98]).tolist()
            grid = np.linspace(low, high, GRID)
        values, places = grid * scale[0] + shift[0], grid[:, None]
    mean, std = np.empty((2, len(values)))
    for place, moved in enumerate(places):
        rows = rows.copy()
        rows[:, group] = moved
        mean[place] = model._posterior.mean(rows).mean()
        std[place] = np.sqrt(max(float(model._posterior.covariance(rows).mean()), 0.0))
    return Dependence(name, values, mean * model.y_scale_ + model.y_shift_, std * model.y_scale_, kind)
