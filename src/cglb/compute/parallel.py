"""One function on equal parts of the work: one after the other, or one thread per core.

XLA runs a loop of small operations on one core. A loop that can be cut into independent parts gets one
thread per part on a CPU: JAX releases the interpreter lock while it computes. Inside a trace (`jit`,
`vmap`) and on an accelerator, which is parallel by itself, the parts follow one another.

A `Parallel` calls `fn(*shared, *part)` for every part. `shared` are operands that every part sees whole;
`parts` are arrays [count, ...], one slice per part, all of one shape, so that one compilation serves
them all. Nothing is captured by `fn`: what is replicated and what is split is explicit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from threadpoolctl import ThreadpoolController

from cglb.core.precision import float64

__all__ = ["Parallel", "Serial", "Threads", "cores", "matrices_of", "one_blas_thread"]

# Rows up to which matrices get one thread of BLAS: its threads wait for each other in a loop, which
# costs more than they gain, and a hundred times as much if another process has one of the cores.
ONE_THREAD = 1500

T = TypeVar("T")


@runtime_checkable
class Parallel(Protocol):
    """Runs one function on equal parts of the work."""

    @property
    def width(self) -> int:
        """Parts that run at the same time."""
        ...

    def map(self, fn: Callable[..., T], shared: Sequence[Any], parts: Sequence[Any]) -> list[T]:
        """`fn(*shared, *part)` for every part, in the order of the parts."""
        ...

    def sum(self, fn: Callable[..., T], shared: Sequence[Any], parts: Sequence[Any]) -> T:
        """The sum of `map`, added up in the order of the parts: the same bits every time."""
        ...

    def small_matrices(self) -> Parallel:
        """The same for a `fn` that calls LAPACK on many small matrices."""
        ...


@dataclass(frozen=True)
class Serial:
    """One part after the other, in the thread of the caller: inside a trace, or on an accelerator."""

    @property
    def width(self) -> int:
        return 1

    def map(self, fn: Callable[..., T], shared: Sequence[Any], parts: Sequence[Any]) -> list[T]:
        return [fn(*shared, *part) for part in _unstack(parts)]

    def sum(self, fn: Callable[..., T], shared: Sequence[Any], parts: Sequence[Any]) -> T:
        return reduce(_add, (fn(*shared, *part) for part in _unstack(parts)))

    def small_matrices(self) -> Serial:
        return self


@dataclass(frozen=True)
class Threads:
    """Up to `width` parts at a time, one thread each: concrete arrays on a CPU.

    Args:
        width: threads.
        one_blas_thread: keep every call of LAPACK to one thread while the parts run. For many small
            matrices its own threads would spend their time waiting for each other.
    """

    width: int
    one_blas_thread: bool = False

    def map(self, fn: Callable[..., T], shared: Sequence[Any], parts: Sequence[Any]) -> list[T]:
        with self._scope():
            return list(self._run(fn, shared, parts))

    def sum(self, fn: Callable[..., T], shared: Sequence[Any], parts: Sequence[Any]) -> T:
        with self._scope():  # results are added up as they come, so that few of them are alive
            return reduce(_add, self._run(fn, shared, parts))

    def for_each(self, fn: Callable[..., None], items: Sequence[tuple[Any, ...]]) -> None:
        """`fn(*item)` for every item, for what it writes to memory that the threads share."""
        with self._scope():
            for _ in self._pool_map(lambda item: fn(*item), items):
                pass

    def small_matrices(self) -> Threads:
        return replace(self, one_blas_thread=True)

    def _scope(self) -> AbstractContextManager[Any]:
        return one_blas_thread() if self.one_blas_thread else nullcontext()

    def _run(self, fn: Callable[..., T], shared: Sequence[Any], parts: Sequence[Any]) -> Iterator[T]:
        def run(part: tuple[Any, ...]) -> T:
            return jax.block_until_ready(fn(*shared, *part))

        # a NumPy view of an array on the CPU: cutting it up costs no call of XLA
        return self._pool_map(run, _unstack([np.asarray(part) for part in parts]))

    def _pool_map(self, run: Callable[[Any], T], items: Sequence[Any]) -> Iterator[T]:
        if self.width == 1 or len(items) == 1:
            return map(run, items)

        def in_scope(item: Any) -> T:
            with float64():  # the scope is local to a thread
                return run(item)

        return _pool(self.width).map(in_scope, items)


def _unstack(parts: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [tuple(array[i] for array in parts) for i in range(parts[0].shape[0])]


@jax.jit
def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


def cores() -> list[int]:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def one_blas_thread() -> AbstractContextManager[Any]:
    """A scope in which every call of BLAS and LAPACK is kept to one thread, in the whole process."""
    return _blas().limit(limits=1, user_api="blas")


def matrices_of(rows: int) -> AbstractContextManager[Any]:
    """A scope for BLAS and LAPACK on square matrices of so many rows. What runs in it must end in it."""
    return one_blas_thread() if rows <= ONE_THREAD else nullcontext()


@cache
def _pool(width: int) -> ThreadPoolExecutor:
    """Threads are kept: starting them anew takes as long as a product of a few thousand rows."""
    return ThreadPoolExecutor(width, thread_name_prefix="cglb")


@cache
def _blas() -> ThreadpoolController:
    """Looking for the BLAS libraries of this process takes some milliseconds, so it is done once."""
    return ThreadpoolController()


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
