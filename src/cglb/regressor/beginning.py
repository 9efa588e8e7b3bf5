"""Where the training of a regressor begins: at a kernel, at the best of several, or at the last fit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from cglb.kernels.base import Kernel
from cglb.kernels.choice import as_kernel
from cglb.kernels.located import located
from cglb.methods.stages import GIVEN, STARTS, Start
from cglb.model import GP
from cglb.training.kernel_choice import Ranking, choose_kernel
from cglb.training.options import PARTS, Schedule

__all__ = ["AUTO", "UNITS", "Beginning", "beginning"]

AUTO = "auto"
# the time of a fit whose limit is over before it begins
LEAST_SECONDS = 1e-3
UNITS = ("standardised", "data")


@dataclass(frozen=True)
class Beginning:
    """Where training begins.

    Attributes:
        gp: the model to start from.
        schedule: how training is cut into stages.
        starts: of its searches.
        parts: rows to train on before all of them.
        rankings: of kernels, on growing numbers of rows (see `KernelChoice.rounds`); the last one
            decided. Empty if there was nothing to choose.
        seconds: that the choice has taken.
    """

    gp: GP
    schedule: str
    starts: tuple[Start, ...] = STARTS
    parts: tuple[int, ...] = PARTS
    rankings: tuple[tuple[int, Ranking], ...] = ()
    seconds: float = 0.0

    def left_of(self, limit: float | None) -> float | None:
        """What is left of a limit of seconds: never 0, so that training ends at its limit."""
        return None if limit is None else max(limit - self.seconds, LEAST_SECONDS)


def beginning(
    estimator: Any,
    probe: Any,
    data: tuple[np.ndarray, np.ndarray],
    scales: tuple[np.ndarray, float],
    **options: Any,
) -> Beginning:
    """Where a fit of an estimator begins.

    Args:
        estimator: whose settings count.
        probe: a copy that knows the columns of the table.
        data: X and y, standardised.
        scales: their units.
        **options: of `train`, for the choice of a kernel.
    """
    X_scale, y_scale = scales
    if estimator.warm_start and hasattr(estimator, "gp_"):
        estimator.gp_.kernel.check_columns(len(X_scale))
        return Beginning(estimator.gp_, Schedule.DIRECT)
    noise = None if estimator.noise is None else estimator.noise / y_scale**2
    named = estimator.kernel is None or isinstance(estimator.kernel, str)
    starts = STARTS if named and noise is None else (GIVEN, *STARTS)
    if isinstance(estimator.kernel, str) and estimator.kernel == AUTO:
        return _chosen(estimator, data, noise, starts, options)
    kernel = _initial_kernel(estimator, probe, X_scale)
    gp = GP(kernel) if noise is None else GP(kernel, np.asarray(noise))
    return Beginning(gp, estimator.schedule, starts)


def _chosen(
    estimator: Any,
    data: tuple[np.ndarray, np.ndarray],
    noise: float | None,
    starts: tuple[Start, ...],
    options: dict[str, Any],
) -> Beginning:
    """The best kernel on the first parts of the rows. Training goes on with the second."""
    started = time.perf_counter()
    if any(name.startswith("kernel") for name in estimator.fixed):
        raise ValueError("kernel='auto' cannot hold parameters of a kernel fixed: name the kernel.")
    found = choose_kernel(*data, noise=noise, starts=starts, **options)
    seconds = time.perf_counter() - started
    return Beginning(found.begin, estimator.schedule, (GIVEN,), PARTS[1:], found.rounds, seconds)


def _initial_kernel(estimator: Any, probe: Any, X_scale: np.ndarray) -> Kernel:
    """The kernel on standardised inputs from which training starts."""
    if estimator.kernel_units not in UNITS:
        raise ValueError(
            f"kernel_units must be one of {', '.join(UNITS)}, found {estimator.kernel_units!r}."
        )
    if estimator.kernel is None or isinstance(estimator.kernel, str):
        return as_kernel(estimator.kernel, len(X_scale))
    kernel, encoding = as_kernel(estimator.kernel, probe.n_features_in_), probe.encoding_
    if encoding is not None:
        kernel = located(kernel, encoding.columns, encoding.groups)
    kernel.check_columns(len(X_scale))
    return kernel.rescaled(X_scale) if estimator.kernel_units == "data" else kernel
