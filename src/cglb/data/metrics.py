"""Metrics of predictions: plain NumPy functions of targets, predicted means and variances.

`y`, `mean` and `variance` are finite arrays of the same shape [n]. A variance is always that of the
*target*, including noise: the variance of the latent function would make every interval too narrow.
"""

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def rmse(y: ArrayLike, mean: ArrayLike) -> float:
    """Root of the mean squared error, in the units of y."""
    target, centre = _vectors(y=y, mean=mean)
    return float(np.sqrt(np.mean((target - centre) ** 2)))


def r2(y: ArrayLike, mean: ArrayLike) -> float:
    """Explained share of the variance of y: 1 is perfect, 0 is as good as predicting its mean."""
    target, centre = _vectors(y=y, mean=mean)
    spread = np.mean((target - target.mean()) ** 2)
    if np.ptp(target) == 0 or spread == 0:
        raise ValueError(
            f"y is {target[0]} in all {target.size} places, so there is no variance to explain. "
            "Use rmse instead, or test on rows whose targets differ."
        )
    return float(1 - np.mean((target - centre) ** 2) / spread)


def nlpd(y: ArrayLike, mean: ArrayLike, variance: ArrayLike) -> float:
    """Average of -log N(y | mean, variance), in nats per row: lower is better.

    Every variance must be above 0; with variance 0 the density is not finite.
    """
    target, centre, spread = _vectors(y=y, mean=mean, variance=variance)
    _check_variance(spread, above_zero=True)
    return float(np.mean(np.log(2 * np.pi * spread) + (target - centre) ** 2 / spread) / 2)


def interval(mean: ArrayLike, variance: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
    """Lower and upper ends, each [n], of the central Gaussian interval of probability `level`."""
    centre, spread = _vectors(mean=mean, variance=variance)
    _check_variance(spread)
    if not 0 < level < 1:
        raise ValueError(f"level={level} must lie between 0 and 1: 0.95 for 95 % intervals.")
    half_width = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(spread)
    return centre - half_width, centre + half_width


def coverage(y: ArrayLike, mean: ArrayLike, variance: ArrayLike, level: float = 0.95) -> float:
    """Share of targets inside their intervals, including the ends; calibrated if close to `level`."""
    target, *_ = _vectors(y=y, mean=mean, variance=variance)
    lower, upper = interval(mean, variance, level)
    return float(np.mean((lower <= target) & (target <= upper)))


def _vectors(**arguments: ArrayLike) -> list[Array]:
    """The arguments as float64 vectors of the same length.

    Other shapes are errors: [n] and [n, 1] would broadcast to [n, n] and give a plausible number.

    Raises:
        ValueError: with the name of the argument that does not fit or is not finite.
    """
    vectors = {name: np.asarray(value, dtype=np.float64) for name, value in arguments.items()}
    length = next(iter(vectors.values())).size
    for name, vector in vectors.items():
        if vector.ndim != 1 or vector.size != length or length == 0:
            found = ", ".join(f"{key} {value.shape}" for key, value in vectors.items())
            raise ValueError(
                f"{name} does not fit: all arguments must have the same shape [n] with n >= 1, "
                f"found {found}. A column [n, 1] needs .ravel()."
            )
        if not np.isfinite(vector).all():
            row = int(np.argmin(np.isfinite(vector)))
            raise ValueError(
                f"{name}[{row}] is {vector[row]}, but a metric needs finite numbers. Possible causes "
                "are missing data or a model whose training diverged."
            )
    return list(vectors.values())


def _check_variance(variance: Array, above_zero: bool = False) -> None:
    """Check that no variance is negative.

    Args:
        variance: [n].
        above_zero: whether 0 is not allowed either.

    Raises:
        ValueError: with the smallest variance and its row.
    """
    row = int(np.argmin(variance))
    if variance[row] < 0 or (above_zero and variance[row] == 0):
        least = "above 0" if above_zero else "at least 0"
        raise ValueError(
            f"variance[{row}] is {variance[row]}, but must be {least}. "
            "Give the variance of the targets: the latent variance plus the noise variance."
        )
