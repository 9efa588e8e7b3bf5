"""Hyperparameters as fields of a module: natural values, checked, positive unless marked."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.core.precision import is_traced

__all__ = [
    "Numbers",
    "as_parameter",
    "as_row",
    "check_count",
    "check_parameter",
    "describe",
    "in_units",
    "parameter",
    "per_column",
]

# one number, or one per column
Numbers = Float[Array, "..."] | Float[np.ndarray, "..."]

# an array with more entries than this is shown by its first SHOWN_OF_MANY
MOST_SHOWN, SHOWN_OF_MANY = 6, 3


def as_parameter(value: Any) -> Any:
    """A hyperparameter as a float64 NumPy array; floating-point JAX arrays pass through.

    Raises:
        ValueError: if it is not a number or an array of numbers.
    """
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating):
        return value
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"A hyperparameter must be a number or one number per column, found {value!r}."
        ) from None


def parameter(default: float | None = None, *, real: bool = False) -> Any:
    """A hyperparameter field of a module.

    Args:
        default: the default value; without it the field is required.
        real: whether the value may be any real number. Otherwise it is positive:
            `cglb.training.free` reads this mark.
    """
    options: dict[str, Any] = {"converter": as_parameter, "metadata": {"real": real}}
    if default is not None:
        options["default"] = default
    return eqx.field(**options)


def check_parameter(owner: str, name: str, value: Any, max_ndim: int) -> None:
    """Check that `value` is finite, positive and has at most `max_ndim` axes.

    Args:
        owner: the class that holds the value, for messages.
        name: the name of the value, for messages.
        value: what is checked; while JAX traces it, only its shape.
        max_ndim: the largest number of axes.

    Raises:
        ValueError: if a condition does not hold.
    """
    if value.ndim > max_ndim or value.size == 0:
        kind = "a number" if max_ndim == 0 else "a number or one number per column"
        raise ValueError(f"{owner}: {name} must be {kind}, found shape {value.shape}.")
    if is_traced(value):
        return
    if not np.isfinite(value).all() or not (np.asarray(value) > 0).all():
        raise ValueError(f"{owner}: {name} must be positive and finite, found {np.asarray(value)}.")


def check_count(owner: str, name: str, value: Numbers, d: int) -> None:
    """Check that there is one value, or one for each of the d columns of the data.

    Args:
        owner: the class that holds the values, for messages.
        name: the name of one value, for messages.
        value: what is checked.
        d: columns of the data.

    Raises:
        ValueError: if there is another number of values.
    """
    if value.ndim == 1 and value.shape[0] not in (1, d):
        raise ValueError(
            f"{owner} has {value.shape[0]} {name}s, but the data has {d} columns. "
            f"Give one {name}, or one per column."
        )


def as_row(value: Numbers) -> Numbers:
    """A scalar unchanged, a vector [d] as [1, d], so that it broadcasts against inputs [n, d]."""
    return value if value.ndim == 0 else value[None, :]


def per_column(value: Numbers, d: int) -> Float[np.ndarray, " d"]:
    """One value for each of d columns, from one number or from one per column."""
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (d,)).copy()


def in_units(value: Numbers, units: Float[np.ndarray, " d"]) -> Numbers:
    """A length per column in other units: value/units; one number if it is the same for all columns."""
    found = np.asarray(value, dtype=np.float64) / units
    return np.asarray(found[0]) if value.ndim == 0 and np.all(units == units[0]) else found


def describe(module: eqx.Module) -> str:
    """A module as the call that would make it, such as `RBF(lengthscale=[0.8, 1.3], variance=1.2)`."""
    fields = (f.name for f in dataclasses.fields(module))
    return f"{type(module).__name__}({', '.join(f'{f}={_show(getattr(module, f))}' for f in fields)})"


def _show(value: Any) -> str:
    """The value of a field in a few characters; only the shape if the numbers are unknown or many."""
    if isinstance(value, tuple | list):
        inner = ", ".join(map(_show, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_show(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        return repr(value)
    if is_traced(value) or value.ndim > 1 or not jnp.issubdtype(value.dtype, jnp.number):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if value.ndim == 0:
        return f"{value.item():.4g}"
    if value.size <= MOST_SHOWN:
        return f"[{', '.join(f'{entry:.4g}' for entry in value.tolist())}]"
    first = ", ".join(f"{entry:.4g}" for entry in value[:SHOWN_OF_MANY].tolist())
    return f"[{first}, … {value.size} values]"
