"""Hyperparameters as fields of a module: natural values, checked, positive unless marked."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.precision import is_traced

__all__ = ["Numbers", "as_parameter", "check_parameter", "parameter"]

# one number, or one a column
Numbers = Float[Array, "..."] | Float[np.ndarray, "..."]


def as_parameter(value: Any) -> Any:
    """A hyperparameter as a float64 NumPy array; arrays that JAX is tracing or holds pass through."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating):
        return value
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"A hyperparameter must be a number or one number a column, found {value!r}."
        ) from None


def parameter(default: float | None = None, *, real: bool = False) -> Any:
    """A hyperparameter field. Positive unless `real`: `constraints.py` reads this mark."""
    options: dict[str, Any] = {"converter": as_parameter, "metadata": {"real": real}}
    if default is not None:
        options["default"] = default
    return eqx.field(**options)


def check_parameter(owner: str, name: str, value: Any, max_ndim: int) -> None:
    """ValueError unless `value` is finite, positive and has at most `max_ndim` axes."""
    if value.ndim > max_ndim or value.size == 0:
        kind = "a number" if max_ndim == 0 else "a number or one number a column"
        raise ValueError(f"{owner}: {name} must be {kind}, found shape {value.shape}.")
    if is_traced(value):
        return
    if not np.isfinite(value).all() or not (np.asarray(value) > 0).all():
        raise ValueError(f"{owner}: {name} must be positive and finite, found {np.asarray(value)}.")
