"""The same computations on several devices, of one process or of many: JAX's mesh behind the backend.

Equal parts of the work go to the devices of the mesh by `shard_map`; their sum is one collective. What
has n·m entries (the rows of Aᵀ, their gradients, the chain's factors) is split by rows (`shards`);
inputs and vectors are whole on every device. All processes run the same program and come to the same
numbers, so they make the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from cglb.compute import tiling
from cglb.compute.backend import Backend, using
from cglb.compute.cpu.backend import CPU
from cglb.compute.factors import Factor
from cglb.compute.parallel import one_blas_thread
from cglb.compute.programs import wide
from cglb.compute.shards import AXIS, REPLICATED, SPLIT, RowShards, pad_to, sharding
from cglb.compute.stored import StoredMatrix
from cglb.compute.tiling import Walk
from cglb.compute.xla import GB, TILES_PER_PART, XLA
from cglb.core.precision import Number
from cglb.kernels.base import Kernel

__all__ = ["Devices", "Mesh", "on_devices", "run_on", "scope"]

T = TypeVar("T")
KEPT_PROGRAMS = 64


@dataclass(frozen=True)
class Devices:
    """Parts of the work on the devices of a mesh, as many at a time as there are devices.

    Args:
        mesh: the devices.
        one_blas_thread: keep LAPACK to one thread: for many small matrices.
    """

    mesh: jax.sharding.Mesh
    one_blas_thread: bool = False

    @property
    def width(self) -> int:
        return self.mesh.size

    def map(self, fn: Callable[..., T], shared: Sequence[Any], parts: Sequence[Any]) -> list[T]:
        found: list[T] = []
        with self._scope():
            for turn in self._turns(parts):
                stacked = jax.block_until_ready(_program(_key(fn), self.mesh, False)(shared, turn))
                found += [jax.tree.map(lambda a, i=i: a[i], stacked) for i in range(self.width)]
        return found[: len(parts[0])]

    def sum(self, fn: Callable[..., T], shared: Sequence[Any], parts: Sequence[Any]) -> T:
        if len(parts[0]) % self.width:
            raise ValueError(f"{len(parts[0])} parts do not go evenly to {self.width} devices.")
        total = None
        with self._scope():
            for turn in self._turns(parts):
                # one call at a time: each holds memory for every step of its loop until it ends
                found = jax.block_until_ready(_program(_key(fn), self.mesh, True)(shared, turn))
                total = found if total is None else _add(total, found)
        return total  # pyright: ignore[reportReturnType]

    def small_matrices(self) -> Devices:
        return Devices(self.mesh, one_blas_thread=True)

    def _scope(self) -> AbstractContextManager[Any]:
        return one_blas_thread() if self.one_blas_thread else nullcontext()

    def _turns(self, parts: Sequence[Any]) -> list[tuple[np.ndarray, ...]]:
        """One part per device at a time; the last turn is filled up with copies of the last part."""
        arrays = [np.asarray(part) for part in parts]
        count = -(-len(arrays[0]) // self.width)
        index = np.minimum(np.arange(count * self.width), len(arrays[0]) - 1).reshape(count, -1)
        return [tuple(array[turn] for array in arrays) for turn in index]


@jax.jit
def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


def _key(fn: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
    """What is the same for partial applications of one function to the same settings."""
    if not isinstance(fn, partial):
        return fn, ()
    if fn.keywords:
        raise ValueError("A function for a mesh has its settings as positional arguments.")
    return fn.func, fn.args


@lru_cache(maxsize=KEPT_PROGRAMS)
def _program(key: tuple[Any, tuple[Any, ...]], mesh: jax.sharding.Mesh, add: bool) -> Callable[..., Any]:
    """`fn(*shared, *part)` for the part of each device: added up, or stacked."""
    fn, settings = key

    def local(shared: Sequence[Any], parts: Sequence[Any]) -> Any:
        found = fn(*settings, *shared, *(part[0] for part in parts))
        return jax.tree.map(lambda a: lax.psum(a, AXIS) if add else lax.all_gather(a, AXIS), found)

    return on_devices(mesh, local, (REPLICATED, SPLIT), REPLICATED)


def on_devices(mesh: jax.sharding.Mesh, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Any:
    """`fn` on the share of each device, compiled."""
    run = jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return wide(run)


@lru_cache(maxsize=KEPT_PROGRAMS)
def _kept(
    fn: Callable[..., Any], settings: Any, mesh: jax.sharding.Mesh, in_specs: Any, out_specs: Any
) -> Any:
    return on_devices(mesh, partial(fn, *settings), in_specs, out_specs)


def run_on(
    mesh: jax.sharding.Mesh,
    fn: Callable[..., Any],
    settings: tuple[Any, ...],
    specs: Any,
    *operands: Any,
) -> Any:
    """`fn(*settings, *operands)` on the share of each device; the program is kept.

    Args:
        specs: (of the operands, of the result).
    """
    return _kept(fn, settings, mesh, *specs)(*operands)


def _all_devices() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()), (AXIS,))


@dataclass(frozen=True)
class Mesh(XLA):
    """Several devices, of one process or of many.

    Args:
        mesh: the devices, along one axis; by default all.
        local: how each process computes on its own devices what is not one program for all: threads
            and BLAS on CPUs, unless another backend is given.
    """

    mesh: jax.sharding.Mesh = field(default_factory=_all_devices)
    local: Backend | None = None

    @classmethod
    def of(cls, devices: Sequence[Any] | None = None, local: Backend | None = None) -> Mesh:
        """The mesh of these devices, or of all."""
        chosen = np.array(jax.devices() if devices is None else list(devices))
        return cls(chosen[0].platform, mesh=jax.sharding.Mesh(chosen, (AXIS,)), local=local)

    @property
    def own(self) -> Backend:
        """How this process computes on its own."""
        if self.local is not None:
            return self.local
        return CPU() if self.platform == "cpu" else XLA(self.platform)

    @property
    def parallel(self) -> Devices:
        return Devices(self.mesh)

    @property
    def arrays(self) -> Any:
        return self.own.arrays

    @property
    def compiles_loops(self) -> bool:
        return False  # the host deals products out to the devices

    def walk(self, plan: tiling.Plan, n1: int, n2: int) -> Walk:
        """As many parts for every device; where there are too few tiles, some visit padding alone."""
        found = tiling.walk(plan, n1, n2, self.mesh.size, TILES_PER_PART)
        missing = -len(found.parts[0]) % self.mesh.size
        if not missing:
            return found
        fillers = (found.rows - 1, found.columns - 1, found.rows - 1)
        parts = [
            np.pad(part, ((0, missing), (0, 0)), constant_values=filler)
            for part, filler in zip(found.parts, fillers, strict=True)
        ]
        return Walk(found.rows, found.columns, (parts[0], parts[1], parts[2]))

    def nystrom_rows(
        self,
        kernel: Kernel,
        sigma: Number,
        X: Float[Array, "n d"],
        Z: Float[Array, "m d"],
        L: Float[Array, "m m"],
        empty: int = 0,
    ) -> tuple[RowShards, Float[Array, "m m"]]:
        """Each device's rows of Aᵀ by its process, and the sum of their Gram matrices."""
        n, m = X.shape[0], Z.shape[0]
        count = n - empty
        share = -(-n // self.mesh.size)
        given = jax.tree.map(np.asarray, (kernel, sigma, X, Z, L))
        rows = given[2]
        kernel, sigma, Z, L = jax.tree.map(jnp.asarray, (*given[:2], *given[3:]))
        mine: list[tuple[Any, Any]] = []
        for place, device in enumerate(self.mesh.devices.flat):
            if device.process_index != jax.process_index():
                continue
            # where the rows are over, the last one fills up
            index = np.arange(place * share, (place + 1) * share)
            here, missing = jax.device_put(rows[np.minimum(index, n - 1)]), int(np.sum(index >= count))
            At, G = self.own.nystrom_rows(kernel, sigma, here, Z, L, missing)
            mine.append((jax.device_put(At, device), jax.device_put(G[None], device)))
        At = self._assembled((share * self.mesh.size, m), [one for one, _ in mine])
        G = self._assembled((self.mesh.size, m, m), [one for _, one in mine])
        return RowShards(At, n, self.mesh), _total(self.mesh)(G)

    def _assembled(self, shape: tuple[int, ...], shards: list[Array]) -> Array:
        layout = sharding(self.mesh, SPLIT)
        return jax.make_array_from_single_device_arrays(shape, layout, shards)

    def sum_over_rows(self, fn: Callable[..., Any], shared: Sequence[Any], rows: Any) -> Any:
        """Each device's share of the rows, in chunks; arrays that are whole are cut up."""
        n = max(_length(leaf) for leaf in jax.tree.leaves(rows, is_leaf=_is_shards))
        share = -(-n // self.mesh.size)
        size, starts = tiling.chunks(share, self.chunk)
        cut = jax.tree.map(partial(_cut, share * self.mesh.size), rows, is_leaf=_is_shards)
        specs = ((REPLICATED, SPLIT, REPLICATED), REPLICATED)
        return run_on(self.mesh, _sum_share, (fn, size), specs, tuple(shared), cut, starts[0])

    def over_blocks(self, fn: Callable[..., Any], shared: Sequence[Any], blocks: Sequence[Any]) -> Any:
        """Each device has an equal number of blocks; copies of the last one fill up."""
        count = len(blocks[0])
        index = np.minimum(np.arange(-(-count // self.mesh.size) * self.mesh.size), count - 1)
        cut = [
            np.asarray(array)[index].reshape(self.mesh.size, -1, *array.shape[1:]) for array in blocks
        ]
        found = self.parallel.map(fn, shared, cut)
        return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:count], *found)

    def store(
        self, kernel: Kernel, noise: Number, X: Float[Array, "n d"], columns: int, memory_gb: float
    ) -> StoredMatrix | None:
        """Half of K̂, split among all devices: `memory_gb` is for each process."""
        from cglb.compute.stored_mesh import StoredTiles  # which runs on this mesh

        share = X.shape[0] ** 2 // 2 * X.dtype.itemsize / max(1, jax.process_count())
        if share > memory_gb * GB:
            return None
        plan = self.plan(X, symmetric=True)
        walk = self.walk(plan, X.shape[0], X.shape[0])
        return StoredTiles(self.mesh, walk, plan.tile, kernel, noise, X)

    def each_row(self, *given: Any) -> Any:
        return self.own.each_row(*given)

    def between(self, kernel: Kernel, X1: Any, X2: Any) -> Any:
        return self.own.between(kernel, X1, X2)

    def prior_variances(self, kernel: Kernel, X: Any) -> Any:
        return self.own.prior_variances(kernel, X)

    def factor(self, kernel: Kernel, noise: Number, X: Float[Array, "n d"]) -> Factor:
        return self.own.factor(kernel, noise, X)

    def factor_of(self, L: Float[Array, "n n"]) -> Factor:
        return self.own.factor_of(L)


@lru_cache(maxsize=KEPT_PROGRAMS)
def _total(mesh: jax.sharding.Mesh) -> Any:
    return jax.jit(lambda parts: jnp.sum(parts, axis=0), out_shardings=sharding(mesh, REPLICATED))


def _is_shards(leaf: Any) -> bool:
    return isinstance(leaf, RowShards)


def _length(leaf: Any) -> int:
    return leaf.n if _is_shards(leaf) else leaf.shape[0]


def _cut(size: int, leaf: Any) -> Array:
    """The rows up to `size`: copies of the last input, and zeros for everything else."""
    if _is_shards(leaf):
        return leaf.data
    return pad_to(size, leaf, "edge" if leaf.ndim == 2 else "constant")


def _sum_share(
    fn: Callable[..., Any], size: int, shared: Sequence[Any], rows: Any, starts: Array
) -> Any:
    found = fn(size, *shared, rows, starts)
    return jax.tree.map(lambda a: lax.psum(a, AXIS), found)


def scope(devices: Sequence[Any] | None = None, local: Backend | None = None) -> Any:
    """A scope in which concrete arrays are computed with on these devices, or on all."""
    return using(Mesh.of(devices, local))
