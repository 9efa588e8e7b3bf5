"""A trained model on its training data, and its posterior."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from cglb.linalg.row_noise import Rows
from cglb.linalg.system import System
from cglb.methods.base import Conditioned, Method
from cglb.model import GP
from cglb.training.history import Fit

__all__ = ["conditioned", "system_of"]


def system_of(method: Method, gp: GP, rows: Rows, Z: Any) -> System:
    """K̂ of a trained model, in the float64 scope."""
    model = jax.tree.map(jnp.asarray, gp)
    return method.system(rows.model(model), rows.X, None if Z is None else rows.at(jnp.asarray(Z)))


def conditioned(method: Method, fit: Fit, rows: Rows) -> tuple[System, Conditioned]:
    """K̂ of a fit and its posterior, in the float64 scope.

    Args:
        method: what was trained.
        fit: the result.
        rows: what it was trained on.
    """
    if fit.system is None:
        system = system_of(method, fit.gp, rows, fit.Z)
    else:  # its factors, with the solver for predictions
        system = fit.system.again(method.solver, fit.system.neighbours)
    return system, method.condition(system, rows.y, rows.start(fit.gp, fit.v))
