"""Where the arrays are decides how numbers are made: `backend_of`.

    traced operands                              XLA, one part after the other
    few rows on one CPU device                   one program, by XLA (`one_program`)
    concrete arrays on one CPU device            CPU: threads and BLAS
    concrete arrays on an accelerator, or
    spread over several devices                  XLA

For few rows calls take longer than arithmetic, so functions marked `one_program` are compiled whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import equinox as eqx
import jax
import numpy as np

from cglb.compute.cpu.backend import CPU
from cglb.compute.xla import XLA
from cglb.core.precision import is_traced

__all__ = ["Backend", "backend_of", "few_rows", "one_program", "use", "using"]

# Rows up to which the calls of a function's parts take longer than threads and BLAS can save.
FEW_ROWS = 512

Backend = XLA  # what every backend answers

# what `using` asked for, in this thread and context alone
_asked_for: ContextVar[Backend | None] = ContextVar("cglb_backend", default=None)


def backend_of(*operands: Any) -> Backend:
    """The way to compute with these operands, by where they are (see the top of this module)."""
    asked = _asked_for.get()
    devices = _devices(operands)
    if is_traced(operands):
        if asked is not None:
            return XLA(asked.platform, asked.tile_rows, asked.chunk_rows)
        return XLA(_platform(devices))
    if asked is not None:
        return asked
    platform = _platform(devices)
    return CPU() if platform == "cpu" and len(devices) <= 1 else XLA(platform)


def few_rows(*operands: Any) -> bool:
    """Whether the operands are so few rows on a CPU that a function of them should be one program.

    Not inside a trace, which makes one program anyway, and not where `using` asked for a backend.
    """
    if _asked_for.get() is not None or is_traced(operands):
        return False
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(operands) if eqx.is_array(leaf)]
    if max((shape[0] for shape in shapes if shape), default=0) > FEW_ROWS:
        return False
    return isinstance(backend_of(*operands), CPU)


def one_program(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, compiled as one program where its arrays have few rows; otherwise as it is.

    `fn` must be traceable, and may depend on the values of what is not an array.
    """
    compiled = eqx.filter_jit(fn)

    @wraps(fn)
    def run(*operands: Any) -> Any:
        return compiled(*operands) if few_rows(operands) else fn(*operands)

    return run


@contextmanager
def using(backend: Backend) -> Iterator[None]:
    """A scope in which concrete arrays are computed with by `backend`, in this thread alone.

    Traced operands still go to XLA, with the sizes of `backend`. Functions compiled before keep what was
    chosen then.
    """
    token = _asked_for.set(backend)
    try:
        yield
    finally:
        _asked_for.reset(token)


def use(backend: Backend | None) -> None:
    """From now on, in this thread, compute with concrete arrays by `backend`; None ends it."""
    _asked_for.set(backend)


def _devices(operands: Any) -> set[Any]:
    """The devices of the concrete JAX arrays among the operands."""
    leaves = jax.tree.leaves(operands)
    arrays = (leaf for leaf in leaves if isinstance(leaf, jax.Array) and not is_traced(leaf))
    return {device for array in arrays for device in array.devices()}


def _platform(devices: set[Any]) -> str:
    """That of the devices or, where there are none (NumPy arrays, a trace), of JAX's default one."""
    if devices:
        return next(iter(devices)).platform
    default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if default is None:
        return jax.default_backend()
    return default if isinstance(default, str) else default.platform
