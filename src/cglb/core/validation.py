"""The public boundary: validates data, converts it to float64, and returns results as NumPy arrays.

`boundary` wraps every public function that takes data. It finds arguments by name, so one table of
shapes (the notation of the docs) is enough for all functions, and inner functions can trust their input.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from cglb.core.precision import cast, float64, is_float64, is_traced, to_numpy

__all__ = ["as_data", "boundary", "check_finite", "check_same"]

R = TypeVar("R")

# name -> sizes of its axes, by letter: n training rows, s test rows, m inducing points, d inputs
SHAPES = {
    "X": ("n", "d"),
    "y": ("n",),
    "v": ("n",),
    "v0": ("n",),
    "Z": ("m", "d"),
    "X_star": ("s", "d"),
    "free": ("p",),
}
MEANING = {
    "n": "training rows",
    "s": "test rows",
    "m": "inducing points",
    "d": "inputs (columns)",
    "p": "free parameters",
}


def as_data(name: str, value: Any, ndim: int) -> jax.Array:
    """`value` as a float64 array with `ndim` axes.

    Integers, booleans and lower precisions are converted; complex numbers, text and other objects are
    errors.

    Args:
        name: of the argument, for messages.
        value: what the user passed.
        ndim: the number of axes.

    Raises:
        ValueError: if `value` is not such an array, is empty, or has entries that are not finite.
    """
    if is_traced(value):
        array = value
    else:
        if np.ma.is_masked(value):
            count = np.ma.count_masked(value)
            raise ValueError(f"{name} has {count} masked entries. Drop or fill those rows first.")
        try:
            array = np.asarray(value)
        except ValueError as error:  # rows of different lengths
            raise ValueError(f"{name} is not an array of numbers: {error}") from None
        if array.dtype == object:
            with contextlib.suppress(TypeError, ValueError):
                array = array.astype(np.float64)
        # NumPy gives bfloat16 and similar types the kind "V", but for JAX they are numbers
        if not (array.dtype.kind in "biuf" or jnp.issubdtype(array.dtype, jnp.floating)):
            raise ValueError(
                f"{name} must hold real numbers, found dtype {array.dtype}. "
                "Encode categories and dates as numbers first."
            )
        array = array.astype(np.float64)
    if array.ndim != ndim:
        hint = ""
        if ndim == 2 and array.ndim == 1:
            hint = f" For a single input column pass {name}[:, None]."
        elif ndim == 1 and array.ndim == 2:
            hint = f" For a single column pass {name}[:, 0]."
        raise ValueError(
            f"{name} must have {ndim} axes {SHAPES.get(name, '')}, found shape {array.shape}.{hint}"
        )
    if array.size == 0 and name != "free":  # if every parameter is fixed, none is free
        raise ValueError(f"{name} is empty: found shape {array.shape}.")
    if isinstance(array, np.ndarray):
        check_finite(name, array)
        return jax.device_put(array)  # `jnp.asarray` compiles a copy for each new shape
    return jnp.asarray(array, dtype=jnp.float64)


def check_finite(name: str, array: np.ndarray) -> None:
    """Check that all entries are finite.

    Raises:
        ValueError: with the number and the position of the entries that are not.
    """
    if np.isfinite(array).all():
        return
    bad = ~np.isfinite(array)
    if array.ndim == 2:
        columns = np.flatnonzero(bad.any(axis=0))
        where = f"in column(s) {', '.join(map(str, columns[:10]))}"
    else:
        where = f"first at row {int(np.flatnonzero(bad)[0])}"
    raise ValueError(
        f"{name} has {int(bad.sum())} entries that are NaN or infinite, {where}. "
        "Drop or fill those rows first."
    )


def check_same(sizes: dict[str, tuple[str, int]], letter: str, name: str, size: int) -> None:
    """Record the size of an axis and check that it agrees with the other arguments.

    Args:
        sizes: the argument and the size recorded for each letter so far.
        letter: of the axis.
        name: of the argument.
        size: of the axis.

    Raises:
        ValueError: if another argument has another size for this letter.
    """
    other = sizes.setdefault(letter, (name, size))
    if other[1] != size:
        raise ValueError(
            f"{name} and {other[0]} disagree on {letter} ({MEANING.get(letter, letter)}): "
            f"{name} has {size}, {other[0]} has {other[1]}."
        )


def boundary(function: Callable[..., R]) -> Callable[..., R]:
    """Validate data arguments by name, run in the float64 scope, and return NumPy arrays outside it."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> R:
        bound = signature.bind(*args, **kwargs)
        already = is_float64()
        with float64():
            sizes: dict[str, tuple[str, int]] = {}
            for name, value in bound.arguments.items():
                letters = SHAPES.get(name)
                if letters is None or value is None:
                    continue
                array = as_data(name, value, len(letters))
                for letter, size in zip(letters, array.shape, strict=True):
                    check_same(sizes, letter, name, size)
                bound.arguments[name] = array
            for name in ("self", "gp", "kernel"):
                module = bound.arguments.get(name)
                if isinstance(module, eqx.Module):
                    if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(module)):
                        bound.arguments[name] = module = jax.tree.map(jnp.asarray, module)
                    _check_module(module, sizes)
                    if name != "self":  # with a float32 σ², log σ² and so the bound would be float32
                        bound.arguments[name] = cast(module, jnp.float64)
            if "m" in sizes and "n" in sizes and sizes["m"][1] > sizes["n"][1]:
                raise ValueError(
                    f"Z has {sizes['m'][1]} inducing points, more than the {sizes['n'][1]} training "
                    "rows. Use at most n of them, or bounds.exact, which then costs less."
                )
            result = function(*bound.args, **bound.kwargs)
            return result if already else to_numpy(result)

    return wrapped


def _check_module(module: Any, sizes: dict[str, tuple[str, int]]) -> None:
    """Check that the number of columns fits the data of a posterior and the kernel."""
    for name in ("X", "Z"):
        rows = getattr(module, name, None)
        if rows is not None:
            check_same(sizes, "d", name, rows.shape[1])
    # the module is a kernel (which may have a field `kernel`), a GP, or a posterior
    is_kernel = hasattr(module, "check_columns")
    kernel = module if is_kernel else getattr(getattr(module, "gp", module), "kernel", None)
    if "d" in sizes and kernel is not None:
        kernel.check_columns(sizes["d"][1])
