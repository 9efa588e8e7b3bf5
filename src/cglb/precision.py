"""Float64 as a scope, not a global switch.

JAX computes in float32 unless 64-bit mode is on, and the mode is a process-wide flag that a library has
no business flipping. Every public function of this package therefore enters `float64()` by itself. Code
of your own that differentiates or compiles these functions has to be inside the scope too:

    with cglb.float64():
        gradient = jax.grad(lambda gp: cglb.bounds.sgpr(gp, X, y, Z).value)(gp)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

__all__ = ["Number", "cast", "float64", "in_float64", "is_float64", "is_traced", "to_numpy"]

# one real number: NumPy's at rest and for users, JAX's inside the scope
Number = Float[Array, ""] | Float[np.ndarray, ""] | np.floating


def float64() -> AbstractContextManager[Any]:
    """Scope in which JAX arrays are float64. It is local to the thread and may be nested."""
    return jax.enable_x64(True)


F = TypeVar("F", bound=Callable[..., Any])


def in_float64(function: F) -> F:
    """Run in the scope also where the caller is outside it, who then gets NumPy arrays."""

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        if is_float64():
            return function(*args)
        with float64():
            return to_numpy(function(*jax.tree.map(_to_jax, args)))

    return wrapped  # pyright: ignore[reportReturnType]


def _to_jax(leaf: Any) -> Any:
    return jax.numpy.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def is_float64() -> bool:
    """Whether 64-bit mode is on here, by `float64()` or by the user's own switch."""
    return bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]


def is_traced(*trees: Any) -> bool:
    """Whether JAX is tracing any leaf (inside `jit`, `grad`, `vmap`), so that values are not known."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def to_numpy(tree: Any) -> Any:
    """JAX arrays to NumPy. Outside the scope JAX would silently round a float64 array to float32
    at its next use, so what leaves the scope leaves JAX."""
    return jax.tree.map(
        lambda leaf: np.array(leaf) if isinstance(leaf, jax.Array) and not is_traced(leaf) else leaf,
        tree,
    )


def cast(tree: Any, dtype: Any) -> Any:
    """Every floating-point leaf of `tree` in `dtype`; other leaves as they are."""

    def leaf_cast(leaf: Any) -> Any:
        if hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            return leaf.astype(dtype)
        return leaf

    return jax.tree.map(leaf_cast, tree)
