"""Float64 as a scope, not a global switch.

JAX computes in float32 unless 64-bit mode is on, and this mode is a process-wide flag that a library
should not change. So every public function of this package enters `float64()` itself. Your code must
also be inside the scope if it differentiates or compiles these functions:

    with cglb.float64():
        gradient = jax.grad(lambda gp: cglb.bounds.sgpr(gp, X, y, Z).value)(gp)
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from cglb.core.cache import cache_by_default

__all__ = ["Number", "cast", "everywhere", "float64", "is_float64", "is_traced", "to_numpy"]

# one real number: a NumPy array outside the scope, a JAX array inside
Number = Float[Array, ""] | Float[np.ndarray, ""] | np.floating


def float64() -> AbstractContextManager[Any]:
    """A scope in which JAX arrays are float64. It is local to the thread and may be nested.

    Raises:
        RuntimeError: in a process that was forked from one that has used this package. JAX's threads do
            not exist there, and the first computation would wait for them for ever.
    """
    _process.check()
    return jax.enable_x64(True)


class _Process:
    """Whether this process has used JAX through this package, or was forked from one that has."""

    def __init__(self) -> None:
        self.used = self.orphan = False

    def check(self) -> None:
        if self.orphan:
            raise RuntimeError(
                "This process was forked from one that had already used cglb, and JAX does not work "
                'here. Start processes with multiprocessing.get_context("spawn"), or fork before the '
                "first use of cglb."
            )
        if not self.used:
            self.used = True
            cache_by_default()

    def after_fork(self) -> None:
        self.orphan = self.used


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.after_fork)


def is_float64() -> bool:
    """Whether 64-bit mode is on, by `float64()` or by the user's setting."""
    return bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]


def is_traced(*trees: Any) -> bool:
    """Whether JAX is tracing any leaf (inside `jit`, `grad`, `vmap`), so that its value is unknown."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def to_numpy(tree: Any) -> Any:
    """The tree with NumPy arrays instead of JAX arrays; traced leaves pass through.

    Results leave the scope as NumPy arrays, because outside the scope JAX would silently round a float64
    array to float32 when it is next used.
    """
    return jax.tree.map(
        lambda leaf: np.array(leaf) if isinstance(leaf, jax.Array) and not is_traced(leaf) else leaf,
        everywhere(tree),
    )


def everywhere(tree: Any) -> Any:
    """The tree with arrays that are split among processes whole in each of them; a collective if so."""

    def gather(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or is_traced(leaf) or leaf.is_fully_addressable:
            return leaf
        return leaf if leaf.is_fully_replicated else _whole(leaf.sharding.mesh)(leaf)  # pyright: ignore[reportAttributeAccessIssue]

    return jax.tree.map(gather, tree)


@cache
def _whole(mesh: jax.sharding.Mesh) -> Any:
    layout = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.jit(lambda array: array, out_shardings=layout)


def cast(tree: Any, dtype: Any) -> Any:
    """The tree with every floating-point leaf in `dtype`; other leaves are unchanged."""

    def leaf_cast(leaf: Any) -> Any:
        if hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            return leaf.astype(dtype)
        return leaf

    return jax.tree.map(leaf_cast, tree)
