"""Where the arrays are decides how numbers are made: `backend_of`.

    traced operands                              XLA, one part after the other
    few rows on one CPU device                   one program, by XLA (`one_program`)
    concrete arrays on one CPU device            CPU: threads and BLAS
    concrete arrays on an accelerator, or
    spread over several devices                  XLA

`XLA` is the reference: it runs anywhere, also inside `jit`. `CPU` gives the same answers up to rounding.
For few rows calls take longer than arithmetic, so functions marked `one_program` are compiled whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from cglb.compute import assemble, each_row, tiling, triangular
from cglb.compute.cpu import blas
from cglb.compute.factors import Factor, InPlaceFactor, XLAFactor
from cglb.compute.parallel import Parallel, Serial, Threads, cores
from cglb.compute.programs import wide
from cglb.compute.shards import Tall
from cglb.compute.tiling import Plan, Walk
from cglb.core.precision import Number, is_traced
from cglb.kernels.base import Kernel

__all__ = [
    "CPU",
    "XLA",
    "Backend",
    "StoredMatrix",
    "backend_of",
    "few_rows",
    "one_program",
    "use",
    "using",
]

# Rows per tile. On a CPU a tile and its temporaries should fit in a core's level-2 cache (a 200 × 200
# float64 tile is 320 kB), and no power of two: the columns of one would fall on the same cache lines,
# which makes the product with its transpose half as fast. An accelerator wants larger ones.
CPU_TILE = {"float64": 200, "float32": 248}
ACCELERATOR_TILE = 2048
# Rows of k(X, Z) made, or pulled back, at a time: on a CPU their temporaries should stay in a core's
# cache, and products of so many rows still run at full rate.
CPU_CHUNK = 256
ACCELERATOR_CHUNK = 8192
# XLA's CPU runtime keeps about 10 kB for every step of a loop until the call ends
TILES_PER_PART = 4096
# Rows up to which the calls of a function's parts take longer than threads and BLAS can save.
FEW_ROWS = 512
GB = 2**30


@runtime_checkable
class StoredMatrix(Protocol):
    """K̂ in memory."""

    def serves(self, columns: int) -> bool:
        """Whether it takes products with so many columns."""
        ...

    def __matmul__(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """K̂V in the dtype of V."""
        ...


@dataclass(frozen=True)
class XLA:
    """Any device, also inside a trace: one part after the other, and all by XLA.

    Args:
        platform: what the code will run on, as JAX calls it.
        tile_rows: rows per tile of K; by default what suits the platform.
        chunk_rows: the same for rows of k(X, Z).
    """

    platform: str = "cpu"
    tile_rows: int | None = None
    chunk_rows: int | None = None

    @property
    def parallel(self) -> Parallel:
        """How equal parts of the work are run."""
        return Serial()

    @property
    def compiles_loops(self) -> bool:
        """Whether a loop around products can be one compiled program."""
        return True

    @property
    def arrays(self) -> Any:
        """The module of arrays that its dense results come in."""
        return jnp

    @property
    def chunk(self) -> int:
        """Rows of k(X, Z) that are made or pulled back at a time."""
        return self.chunk_rows or (CPU_CHUNK if self.platform == "cpu" else ACCELERATOR_CHUNK)

    def tile(self, dtype: Any) -> int:
        """Rows per tile of K."""
        name = jnp.dtype(dtype).name
        if name not in CPU_TILE:
            raise ValueError(f"dtype must be one of {', '.join(CPU_TILE)}, found {name}.")
        return self.tile_rows or (CPU_TILE[name] if self.platform == "cpu" else ACCELERATOR_TILE)

    def plan(self, X: Float[Array, "n d"], symmetric: bool) -> Plan:
        """The plan with this device's tile, or one tile for few rows."""
        return Plan(min(self.tile(X.dtype), X.shape[0]), symmetric)

    def walk(self, plan: Plan, n1: int, n2: int) -> Walk:
        """The tiles of K [n1, n2], split into parts for `parallel`."""
        return tiling.walk(plan, n1, n2, 1, None)

    def nystrom_rows(
        self,
        kernel: Kernel,
        sigma: Number,
        X: Float[Array, "n d"],
        Z: Float[Array, "m d"],
        L: Float[Array, "m m"],
        empty: int = 0,
    ) -> tuple[Tall, Float[Array, "m m"]]:
        """(Aᵀ, AAᵀ) for A = L⁻¹k(Z, X)/σ: 3nm² flops; by BLAS, which knows symmetry, 2nm².

        Args:
            empty: how many of the last rows of Aᵀ are 0, whatever X is there.
        """
        return _nystrom_rows(kernel, sigma, X, Z, L, jnp.asarray(X.shape[0] - empty))

    def sum_over_rows(self, fn: Callable[..., Any], shared: Sequence[Any], rows: Any) -> Any:
        """`fn(size, *shared, rows, starts)`, added up over chunks of `size` rows that begin at `starts`.

        Args:
            rows: arrays with one row per row of the data.
        """
        n = jax.tree.leaves(rows)[0].shape[0]
        size, starts = tiling.chunks(n, self.chunk, self.parallel.width)
        return self.parallel.sum(partial(fn, size), (*shared, rows), (starts,))

    def over_blocks(self, fn: Callable[..., Any], shared: Sequence[Any], blocks: Sequence[Any]) -> Any:
        """`fn(*shared, *blocks)`, whose results [blocks, ...] depend on one block each."""
        return fn(*shared, *blocks)

    def each_row(
        self,
        entries: each_row.Entries,
        finish: each_row.Finish,
        given: Sequence[Any],
        rows: Sequence[np.ndarray],
    ) -> Float[np.ndarray, " s"]:
        """`finish(small, given, entries(*given, *row), *row)` for each row: see `compute.each_row`."""
        return each_row.by_xla(entries, finish, given, rows)

    def store(
        self, kernel: Kernel, noise: Number, X: Float[Array, "n d"], columns: int, memory_gb: float
    ) -> StoredMatrix | None:
        """K̂ in memory, for fast products with `columns` vectors at a time; None if it does not fit."""
        if X.shape[0] ** 2 * X.dtype.itemsize > memory_gb * GB:
            return None
        return _Whole(assemble.whole(kernel, noise, X))

    def between(
        self, kernel: Kernel, X1: Any, X2: Any
    ) -> Float[Array, "n1 n2"] | Float[np.ndarray, "n1 n2"]:
        """K(X1, X2) as one array."""
        return assemble.cross(kernel, X1, X2)

    def prior_variances(self, kernel: Kernel, X: Any) -> Float[Array, " n"] | Float[np.ndarray, " n"]:
        """k(x, x) for each row."""
        return kernel.diag(X)

    def factor(self, kernel: Kernel, noise: Number, X: Float[Array, "n d"]) -> Factor:
        """K̂ = LLᵀ: n³/3 flops."""
        return XLAFactor.of(kernel, noise, X)

    def factor_of(self, L: Float[Array, "n n"]) -> Factor:
        """The factor whose lower triangle is L."""
        return XLAFactor(L)


@dataclass(frozen=True)
class CPU(XLA):
    """Concrete arrays on one CPU: a thread per core, and BLAS where it beats XLA.

    Args:
        width: threads; by default one per core this process may use.
        tiles_per_part: tiles of K in one call of XLA, which holds memory for each until it ends.
    """

    width: int = field(default_factory=lambda: len(cores()))
    tiles_per_part: int = TILES_PER_PART

    @property
    def parallel(self) -> Threads:
        return Threads(self.width)

    @property
    def arrays(self) -> Any:
        return np  # a slice or a sum of JAX's is compiled for each shape

    @property
    def compiles_loops(self) -> bool:
        return False  # the host deals products out to threads

    def walk(self, plan: Plan, n1: int, n2: int) -> Walk:
        return tiling.walk(plan, n1, n2, self.width, self.tiles_per_part)

    def nystrom_rows(
        self,
        kernel: Kernel,
        sigma: Number,
        X: Float[Array, "n d"],
        Z: Float[Array, "m d"],
        L: Float[Array, "m m"],
        empty: int = 0,
    ) -> tuple[Float[Array, "n m"], Float[Array, "m m"]]:
        """By BLAS, in one array, chunk by chunk while it is in a core's cache.

        BLAS gets one thread per part: its own ones would wait for those of XLA, and for each other.
        """
        n, m = X.shape[0], Z.shape[0]
        size, starts = tiling.chunks(n, self.chunk, self.width)
        At, lower, scale = blas.empty((n, m), X.dtype), np.asarray(L), 1.0 / float(sigma)

        def part(chunks: np.ndarray) -> np.ndarray:
            half = np.zeros((m, m), dtype=X.dtype)
            for start, own in chunks[chunks[:, 1] < n]:
                rows = At[own : start + size]
                rows[:] = np.asarray(_cross_rows(size, kernel, X, Z, start))[own - start :]
                blas.solve_rows(lower, rows, scale)
                rows[max(0, n - empty - own) :] = 0.0
                blas.add_gram(half, rows)
            return half

        halves = self.parallel.small_matrices().map(part, (), (starts,))
        return blas.to_jax(At), jnp.asarray(blas.whole(np.sum(halves, axis=0)))

    def each_row(
        self,
        entries: each_row.Entries,
        finish: each_row.Finish,
        given: Sequence[Any],
        rows: Sequence[np.ndarray],
    ) -> Float[np.ndarray, " s"]:
        return each_row.by_blas(self.parallel, entries, finish, given, rows)

    def store(
        self, kernel: Kernel, noise: Number, X: Float[Array, "n d"], columns: int, memory_gb: float
    ) -> StoredMatrix | None:
        """For one vector half of K̂ is enough, which holds 1.4 times as many rows in the same memory."""
        if columns > 1:
            return super().store(kernel, noise, X, columns, memory_gb)
        if X.shape[0] ** 2 // 2 * X.dtype.itemsize > memory_gb * GB:
            return None
        upper = assemble.upper_triangle(self.parallel, kernel, noise, X, blas.empty_in_small_pages)
        return blas.SymmetricHalf(upper)

    def between(self, kernel: Kernel, X1: Any, X2: Any) -> Float[np.ndarray, "n1 n2"]:
        return assemble.between(self.parallel, kernel, X1, X2)

    def prior_variances(self, kernel: Kernel, X: Any) -> Float[np.ndarray, " n"]:
        return assemble.prior_variances(kernel, X)

    def factor(self, kernel: Kernel, noise: Number, X: Float[Array, "n d"]) -> Factor:
        return InPlaceFactor.of(self.parallel, kernel, noise, X)

    def factor_of(self, L: Float[Array, "n n"]) -> Factor:
        return InPlaceFactor(np.asarray(L).T, self.parallel)


Backend = XLA  # what every backend answers; CPU overrides what can be faster


@jax.jit
def _nystrom_rows(
    kernel: Kernel, sigma: Array, X: Array, Z: Array, L: Array, count: Array
) -> tuple[Array, Array]:
    At = triangular.solve_right(L, kernel(X, Z)) / sigma
    At = jnp.where((jnp.arange(X.shape[0]) < count)[:, None], At, 0.0)
    return At, At.T @ At


@partial(wide, static_argnums=0)
def _cross_rows(size: int, kernel: Kernel, X: Array, Z: Array, start: Array) -> Array:
    return kernel(lax.dynamic_slice_in_dim(X, start, size), Z)


class _Whole:
    """All of K̂ on the device."""

    def __init__(self, K_hat: Float[Array, "n n"]):
        self.K_hat = K_hat

    def serves(self, columns: int) -> bool:
        return True

    def __matmul__(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        return _whole_product(self.K_hat, V)


@jax.jit
def _whole_product(K_hat: Array, V: Array) -> Array:
    return (K_hat @ V.astype(K_hat.dtype)).astype(V.dtype)


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
