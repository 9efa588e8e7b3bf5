"""Work dealt out to the cores.

XLA runs a loop of small operations on one core. Where such a loop can be cut into independent parts,
each part gets a thread of its own: JAX releases the interpreter lock while it computes. Inside a trace
(`jit`, `vmap`) there are no threads to be had, and the parts simply follow one another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache, reduce
from typing import Any

import jax
import jax.numpy as jnp
from threadpoolctl import ThreadpoolController

from cglb.precision import float64, is_traced

__all__ = ["cores", "lane_count", "map_lanes", "on_host", "one_blas_thread", "sum_lanes"]


def on_host(*operands: Any) -> bool:
    """Whether the numbers are there and in the processor's own memory: not on an accelerator, and not
    while JAX traces any of the operands."""
    return jax.default_backend() == "cpu" and not is_traced(operands)


def lane_count(*operands: Any) -> int:
    """Cores this process may use; one where threads are of no use: on an accelerator, which is parallel
    by itself, and inside a trace."""
    return len(cores()) if on_host(*operands) else 1


def cores() -> list[int]:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def map_lanes(
    lane: Callable[..., Any], parts: Sequence[tuple[Any, ...]], lanes: int, small_blas: bool = False
) -> Iterator[Any]:
    """`lane(*part)` for every part, in order, on as many threads as there are lanes.

    small_blas: the lanes call LAPACK on many small matrices: see `one_blas_thread`.
    """
    if lanes == 1:
        yield from (lane(*part) for part in parts)
        return

    def run(part: tuple[Any, ...]) -> Any:
        with float64():  # the scope is local to a thread
            return jax.block_until_ready(lane(*part))

    with one_blas_thread() if small_blas else nullcontext():
        yield from _pool(lanes).map(run, parts)


def one_blas_thread() -> AbstractContextManager[Any]:
    """A scope for LAPACK on many small matrices: its own threads would spend their time waiting for
    each other, so each call is kept to one."""
    return _blas().limit(limits=1, user_api="blas")


@cache
def _pool(lanes: int) -> ThreadPoolExecutor:
    """Threads are kept: starting them anew takes as long as a product of a few thousand rows."""
    return ThreadPoolExecutor(lanes, thread_name_prefix="cglb-lane")


@cache
def _blas() -> ThreadpoolController:
    """Looking for the BLAS libraries of this process takes some milliseconds, so it is done once."""
    return ThreadpoolController()


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def sum_lanes(
    lane: Callable[..., Any], parts: Sequence[tuple[Any, ...]], lanes: int, small_blas: bool = False
) -> Any:
    """The sum of `map_lanes`, added up in the order of the parts: the same bits every time."""
    results = map_lanes(lane, parts, lanes, small_blas)
    return reduce(lambda a, b: jax.tree.map(jnp.add, a, b), results)
