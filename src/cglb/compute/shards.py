"""Tall matrices [n, m]: one array, or rows split among the devices of a mesh.

    RowShards   Aᵀ with its rows split into equal shares, one per device; rows of zeros fill up the last
    project     A R        a product per share, added up over the devices
    expand      Aᵀ C       a product per share, gathered
    row_products           of the rows of two, gathered
    map_rows, by_columns   a function of its rows or of its columns

Vectors [n] and small matrices are whole on every device, so that all of them make the same decisions;
only what has n·m entries is split.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from cglb.compute.products import transposed_product
from cglb.core.precision import everywhere

__all__ = [
    "AXIS",
    "REPLICATED",
    "SPLIT",
    "RowShards",
    "Tall",
    "by_columns",
    "columns",
    "expand",
    "map_rows",
    "pad_to",
    "project",
    "row_products",
    "sharding",
    "squared_norm",
    "total",
    "whole",
]

AXIS = "rows"  # the only axis of a mesh
COLUMNS = 64  # of a split matrix that are whole at a time
SPLIT, REPLICATED = PartitionSpec(AXIS), PartitionSpec()


class RowShards(eqx.Module):
    """A matrix [n, m] whose rows are split among devices.

    Attributes:
        data: the rows, and rows of zeros up to a multiple of the number of devices, [N, m].
        n: rows.
        mesh: the devices.
    """

    data: Float[Array, "rows m"]
    n: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.data.shape[1]

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def share(self) -> int:
        """Rows per device."""
        return self.data.shape[0] // self.mesh.size

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows, gathered: for tests and for small matrices."""
        return np.asarray(everywhere(self.data), dtype=dtype)[: self.n]

    def like(self, data: Float[Array, "rows k"]) -> RowShards:
        """Other columns of the same rows."""
        return RowShards(data, self.n, self.mesh)


Tall = Float[Array, "n _"] | RowShards


def sharding(mesh: Mesh, spec: PartitionSpec) -> NamedSharding:
    """How an array is laid out on a mesh."""
    return NamedSharding(mesh, spec)


def whole(mesh: Mesh, array: Array) -> Array:
    """The same array, whole on every device; inside `jit`."""
    return lax.with_sharding_constraint(array, sharding(mesh, REPLICATED))


def split(mesh: Mesh, array: Array) -> Array:
    """The same array, its rows split among the devices; inside `jit`."""
    return lax.with_sharding_constraint(array, sharding(mesh, SPLIT))


def pad_to(size: int, array: Array, mode: str = "constant") -> Array:
    """The rows of an array, filled up to `size` with zeros, or ("edge") with copies of the last."""
    missing = ((0, size - array.shape[0]), *((0, 0),) * (array.ndim - 1))
    return jnp.pad(array, missing, mode=mode)


def project(At: Tall, R: Float[Array, "n *t"]) -> Float[Array, "m *t"]:
    """A R; inside `jit`."""
    if not isinstance(At, RowShards):
        return transposed_product(At, R)
    rows = split(At.mesh, pad_to(At.data.shape[0], whole(At.mesh, R)))
    return whole(At.mesh, transposed_product(At.data, rows))


def expand(At: Tall, C: Float[Array, "m *t"]) -> Float[Array, "n *t"]:
    """Aᵀ C; inside `jit`."""
    if not isinstance(At, RowShards):
        return At @ C
    return _gather_rows(At, At.data @ C)


def row_products(At: Tall, Bt: Tall) -> Float[Array, " n"]:
    """The product of each row of Aᵀ with that of Bᵀ; inside `jit`."""
    if not isinstance(At, RowShards):
        return jnp.sum(At * Bt, axis=1)  # pyright: ignore[reportOperatorIssue]
    assert isinstance(Bt, RowShards)
    return _gather_rows(At, jnp.sum(At.data * Bt.data, axis=1))


def _gather_rows(At: RowShards, found: Array) -> Array:
    """What was computed for each row of Aᵀ, whole. Split first: XLA would gather Aᵀ itself."""
    return whole(At.mesh, split(At.mesh, found))[: At.n]


def map_rows(fn: Callable[..., Array], talls: tuple[Tall, ...], *shared: Array) -> Tall:
    """`fn(*talls, *shared)`, of which each row depends on the same row alone; inside `jit`."""
    first = talls[0]
    if not isinstance(first, RowShards):
        return fn(*talls, *shared)
    specs = (*(SPLIT for _ in talls), *(REPLICATED for _ in shared))
    run = jax.shard_map(fn, mesh=first.mesh, in_specs=specs, out_specs=SPLIT, check_vma=False)
    return first.like(run(*(one.data for one in talls), *shared))  # pyright: ignore[reportAttributeAccessIssue]


def by_columns(fn: Callable[[Array], Array], At: Tall) -> Tall:
    """`fn(Aᵀ)` for an fn that maps columns [n, k]: at most `COLUMNS` of them are whole at a time."""
    if not isinstance(At, RowShards):
        return fn(At)
    starts = range(0, At.shape[1], COLUMNS)
    parts = [_split_again(At, fn(_gathered(start, At))) for start in starts]
    return At.like(jnp.concatenate(parts, axis=1))


@partial(jax.jit, static_argnums=0)
def _gathered(start: int, At: RowShards) -> Array:
    return whole(At.mesh, At.data[:, start : start + COLUMNS])[: At.n]


@jax.jit
def _split_again(At: RowShards, found: Array) -> Array:
    return split(At.mesh, pad_to(At.data.shape[0], found))


def squared_norm(At: RowShards) -> Float[Array, ""]:
    """Σ of all squared entries; inside `jit`."""
    return jnp.sum(At.data * At.data)


def total(fn: Callable[..., Array], At: Tall, *shared: Array) -> Array:
    """`fn(Aᵀ, *shared)`, added up over the shares of its rows; inside `jit`."""
    if not isinstance(At, RowShards):
        return fn(At, *shared)
    specs = (SPLIT, *(REPLICATED for _ in shared))

    def local(data: Array, *shared: Array) -> Array:
        return lax.psum(fn(data, *shared), AXIS)

    run = jax.shard_map(local, mesh=At.mesh, in_specs=specs, out_specs=REPLICATED, check_vma=False)
    return run(At.data, *shared)


def columns(At: Tall, start: int, stop: int) -> Tall:
    """Some columns; inside `jit`."""
    if not isinstance(At, RowShards):
        return At[:, start:stop]
    return At.like(split(At.mesh, At.data[:, start:stop]))
