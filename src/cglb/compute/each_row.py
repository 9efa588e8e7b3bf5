"""A number for each of many rows, from kernel entries and a small positive definite matrix of its own.

Kernel entries of a row are XLA's (`entries`). What follows for a group of rows (`finish`) is written
once, for the module of arrays of a `Small`: on accelerators it is part of the same program, on a CPU
each thread takes groups of rows and calls BLAS and LAPACK, which is several times faster.

    entries(*given, *row)                    a pytree of arrays for one row
    finish(small, given, found, *rows)       numbers [g], from such arrays with one more axis [g, ...]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int

from cglb.compute.cpu import small
from cglb.compute.parallel import Threads
from cglb.compute.programs import wide

__all__ = ["Entries", "Finish", "Small", "by_blas", "by_xla"]

# rows in one call of XLA: few sizes, so that few programs serve any number of rows
SIZES = (1, 8, 64)
# rows of a group on a CPU: their matrices should stay in the cache, and each thread have enough groups
GROUP = 8

Entries = Callable[..., Any]
Finish = Callable[..., Any]


@runtime_checkable
class Small(Protocol):
    """Arithmetic for a group of g rows."""

    arrays: Any  # numpy or jax.numpy

    def solve_rows(self, L: Any, R: Any, transposed: bool = False) -> Any:
        """RL⁻ᵀ, or RL⁻¹ if `transposed`, for rows R [g, m] and a lower L [m, m], by substitution."""
        ...

    def solve(self, K: Any, c: Any, B: Any, index: Any, b: Any) -> tuple[Any, Any]:
        """For each row w = (K − CCᵀ)⁻¹(c − Cb) and Cᵀw, where C = B[index]: k²m + k³/3 flops.

        w is 0 where float64 has no such vector.

        Args:
            K: [g, k, k].
            c: [g, k].
            B: [n, m].
            index: [g, k].
            b: [g, m].
        """
        ...


class _XLASmall:
    arrays = jnp

    def solve_rows(
        self, L: Float[Array, "m m"], R: Float[Array, "g m"], transposed: bool = False
    ) -> Float[Array, "g m"]:
        return lax.linalg.triangular_solve(L, R, left_side=False, lower=True, transpose_a=not transposed)

    def solve(
        self,
        K: Float[Array, "g k k"],
        c: Float[Array, "g k"],
        B: Float[Array, "n m"],
        index: Int[Array, "g k"],
        b: Float[Array, "g m"],
    ) -> tuple[Float[Array, "g k"], Float[Array, "g m"]]:
        return jax.vmap(partial(_solve_one, B))(K, c, index, b)


def _solve_one(B: Array, K: Array, c: Array, index: Array, b: Array) -> tuple[Array, Array]:
    C = B[index]
    w = cho_solve((jnp.linalg.cholesky(K - C @ C.T), True), c - C @ b)
    w = jnp.where(jnp.all(jnp.isfinite(w)), w, 0.0)
    return w, w @ C


class _CPUSmall:
    arrays = np

    def solve_rows(
        self, L: Float[np.ndarray, "m m"], R: Float[np.ndarray, "g m"], transposed: bool = False
    ) -> Float[np.ndarray, "g m"]:
        found = np.array(R)
        small.solve_rows(L, found, transposed)
        return found

    def solve(
        self,
        K: Float[np.ndarray, "g k k"],
        c: Float[np.ndarray, "g k"],
        B: Float[np.ndarray, "n m"],
        index: Int[np.ndarray, "g k"],
        b: Float[np.ndarray, "g m"],
    ) -> tuple[Float[np.ndarray, "g k"], Float[np.ndarray, "g m"]]:
        w, Ctw = np.zeros_like(c), np.zeros_like(b)
        C, matrix = np.empty((c.shape[1], b.shape[1])), np.empty_like(K[0])
        for i in range(len(K)):
            np.take(B, index[i], axis=0, out=C, mode="clip")  # "raise" would make a copy first
            vector, matrix[...] = c[i] - C @ b[i], K[i]
            small.subtract_gram(matrix, C)
            if small.cholesky_solve(matrix, vector) and np.isfinite(vector).all():
                w[i], Ctw[i] = vector, vector @ C
        return w, Ctw


def by_xla(
    entries: Entries, finish: Finish, given: Sequence[Any], rows: Sequence[np.ndarray]
) -> Float[np.ndarray, " s"]:
    """In batches of one of a few sizes, which the last one is filled up to with copies of its last row.

    Args:
        entries: as above.
        finish: as above.
        given: operands that all rows share.
        rows: arrays with one row per row.
    """
    s = len(rows[0])
    size = next((size for size in SIZES if size >= s), SIZES[-1])
    found = []
    for start in range(0, s, size):
        batch = [part[start : start + size] for part in rows]
        more = size - len(batch[0])
        batch = [np.concatenate([part, np.repeat(part[-1:], more, axis=0)]) for part in batch]
        # one batch at a time: batched factorisations from two threads at once never return
        found.append(np.asarray(_batch(entries, finish, tuple(given), tuple(batch))))
    return np.concatenate(found)[:s]


@partial(wide, static_argnums=(0, 1))
def _batch(entries: Entries, finish: Finish, given: tuple[Any, ...], rows: tuple[Array, ...]) -> Array:
    return finish(_XLASmall(), given, jax.vmap(partial(entries, *given))(*rows), *rows)


def by_blas(
    threads: Threads,
    entries: Entries,
    finish: Finish,
    given: Sequence[Any],
    rows: Sequence[np.ndarray],
) -> Float[np.ndarray, " s"]:
    """On threads, in groups of rows; those that do not fill a group go one by one.

    Args:
        threads: what runs at the same time.
        entries: as above.
        finish: as above.
        given: operands that all rows share.
        rows: arrays with one row per row.
    """
    s, known = len(rows[0]), jax.tree.map(np.asarray, tuple(given))
    found = np.empty(s)

    def fill(first: int, count: int) -> None:
        group = tuple(part[first : first + count] for part in rows)
        made = jax.tree.map(np.asarray, _entries(entries, tuple(given), group))
        with np.errstate(all="ignore"):  # as XLA does: the caller looks at what comes out
            found[first : first + count] = finish(_CPUSmall(), known, made, *group)

    whole = s - s % GROUP
    groups = [(first, GROUP) for first in range(0, whole, GROUP)]
    threads.small_matrices().for_each(fill, [*groups, *((i, 1) for i in range(whole, s))])
    return found


@partial(wide, static_argnums=0)
def _entries(entries: Entries, given: tuple[Any, ...], rows: tuple[Array, ...]) -> Any:
    return lax.map(lambda row: entries(*given, *row), rows)
