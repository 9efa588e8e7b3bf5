"""The backend of one CPU, `CPU`: threads, and BLAS where it beats XLA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from cglb.compute import assemble, each_row, tiling
from cglb.compute.cpu import blas
from cglb.compute.factors import Factor, InPlaceFactor
from cglb.compute.parallel import Threads, cores
from cglb.compute.programs import wide
from cglb.compute.stored import StoredMatrix
from cglb.compute.tiling import Plan, Walk
from cglb.compute.xla import GB, TILES_PER_PART, XLA
from cglb.core.precision import Number
from cglb.kernels.base import Kernel

__all__ = ["CPU"]


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
        return False  # the host splits products among threads

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


@partial(wide, static_argnums=0)
def _cross_rows(size: int, kernel: Kernel, X: Array, Z: Array, start: Array) -> Array:
    return kernel(lax.dynamic_slice_in_dim(X, start, size), Z)
