"""The reference backend, `XLA`: it runs on any device, also inside `jit`.

Other backends override what they do faster, with the same answers up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.compute import assemble, each_row, tiling, triangular
from cglb.compute.factors import Factor, XLAFactor
from cglb.compute.parallel import Parallel, Serial
from cglb.compute.shards import Tall
from cglb.compute.stored import StoredMatrix, StoredWhole
from cglb.compute.tiling import Plan, Walk
from cglb.core.precision import Number
from cglb.kernels.base import Kernel

__all__ = ["GB", "TILES_PER_PART", "XLA"]

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
GB = 2**30


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
        return StoredWhole(assemble.whole(kernel, noise, X))

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


@jax.jit
def _nystrom_rows(
    kernel: Kernel, sigma: Array, X: Array, Z: Array, L: Array, count: Array
) -> tuple[Array, Array]:
    At = triangular.solve_right(L, kernel(X, Z)) / sigma
    At = jnp.where((jnp.arange(X.shape[0]) < count)[:, None], At, 0.0)
    return At, At.T @ At
