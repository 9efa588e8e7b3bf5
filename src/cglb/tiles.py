"""The loop over tiles of K: the only place where tiles exist.

K [n, n] is never stored. Products and gradients of bilinear forms walk over square tiles that stay in
cache; by symmetry each tile is made once and used twice. The tiles are dealt out to lanes, one a core,
that run at the same time when the call is eager; inside `jit` or `vmap` there is one lane. A lane takes
its tiles in parts: XLA's CPU runtime keeps about 10 kB a step of a loop until the call ends.

    product         K V                                    n² kernel entries, O(n·t) memory
    bilinear        d(Σₜ aₜᵀ K bₜ)/d(kernel, inputs)       n² entries and slopes, O(n·(t + d)) memory

Reverse mode through `product` uses `bilinear`, so no tile is ever kept for it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from cglb.kernels import Kernel
from cglb.lanes import lane_count, sum_lanes

__all__ = [
    "Plan",
    "bilinear",
    "covariance",
    "dense",
    "known_product",
    "plan_for",
    "product",
    "tile_size",
    "trace_of_square",
]

# Rows a tile. On a CPU a tile and its temporaries should fit in a core's level-2 cache (a 200 × 200
# float64 tile is 320 kB); an accelerator wants larger ones to fill its units.
CPU_TILE = {8: 200, 4: 256}
ACCELERATOR_TILE = 2048
TILES_A_PART = 4096


class Plan(NamedTuple):
    """How to walk K(X1, X2): static, so part of the compilation key."""

    tile: int
    symmetric: bool  # X1 is X2: visit each pair of blocks once


def plan_for(X: Float[Array, "n d"], symmetric: bool) -> Plan:
    """The plan with this device's tile, or one tile for few rows."""
    return Plan(min(tile_size(X.dtype), X.shape[0]), symmetric)


def tile_size(dtype: Any, memory_gb: float | None = None) -> int:
    """Rows a tile for this device, shrunk where a few tiles a core would exceed the budget."""
    if jnp.dtype(dtype).name not in ("float32", "float64"):
        raise ValueError(f"dtype must be float32 or float64, found {jnp.dtype(dtype).name}.")
    itemsize = jnp.dtype(dtype).itemsize
    tile = CPU_TILE[itemsize] if jax.default_backend() == "cpu" else ACCELERATOR_TILE
    if memory_gb is not None:
        if not memory_gb > 0.0:
            raise ValueError(f"memory_gb must be positive, found {memory_gb}.")
        tiles_alive = 6 * lane_count()
        tile = min(tile, int((memory_gb * 2**30 / (tiles_alive * itemsize)) ** 0.5))
    return max(tile, 16)


def product(
    plan: Plan,
    kernel: Kernel,
    X1: Float[Array, "n1 d"],
    X2: Float[Array, "n2 d"],
    V: Float[Array, "n2 t"],
) -> Float[Array, "n1 t"]:
    """K(X1, X2) V, differentiable in kernel, X1, X2 and V."""
    return _product(plan, kernel, X1, X2, V)


def bilinear(
    plan: Plan,
    kernel: Kernel,
    X1: Float[Array, "n1 d"],
    X2: Float[Array, "n2 d"],
    a: Float[Array, "n1 t"],
    b: Float[Array, "n2 t"],
    inputs: bool = True,
) -> tuple[Kernel, Float[Array, "n1 d"] | None, Float[Array, "n2 d"] | None]:
    """Gradient of Σₜ aₜᵀ K(X1, X2) bₜ in the kernel's hyperparameters, X1 and X2, in one pass.

    For a symmetric plan the gradient in X is the sum of the last two; `inputs=False` skips both.
    """
    blocks = _blocks(plan, X1, X2, lane_count(kernel, X1, X2, a, b))
    F1, F2 = _features(plan.symmetric, kernel, X1, X2)
    operands = (*_pad((F1, a), blocks.rows, plan.tile), *_pad((F2, b), blocks.columns, plan.tile))
    kernel_bar, F1_bar, F2_bar = sum_lanes(
        lambda *pairs: _bilinear_lane(plan.symmetric, inputs, kernel, *operands, *pairs),
        blocks.parts,
        blocks.lanes,
    )
    return _pull_features(plan.symmetric, inputs, kernel, X1, X2, a, b, kernel_bar, F1_bar, F2_bar)


def known_product(
    plan: Plan,
    kernel: Kernel,
    X: Float[Array, "n d"],
    v: Float[Array, " n"],
    Kv: Float[Array, " n"],
) -> Float[Array, " n"]:
    """K(X, X) v where the caller already has the value `Kv`: free forwards, one `bilinear` backwards.

    Differentiable in the kernel alone: X and v are held fixed (CG chose v; the bound holds for any v).
    """
    return _known_product(plan, kernel, X, v, Kv)  # pyright: ignore[reportReturnType]


def trace_of_square(
    plan: Plan,
    kernel: Kernel,
    X: Float[Array, "n d"],
    noise: Float[Array, ""],
    At: Float[Array, "n m"],
    Ht: Float[Array, "n m"],
) -> Float[Array, ""]:
    """Σ_{i≠j} TᵢⱼTⱼᵢ for T = K/noise − AᵀH: tr T² without its diagonal. 2n²m flops; values only."""
    blocks = _blocks(plan, X, X, lane_count(kernel, X, At, Ht))
    F, _ = _features(True, kernel, X, X)
    real = jnp.ones(X.shape[0], dtype=X.dtype)  # 0 on rows of padding, whose kernel entries are not 0
    operands = _pad((F, At, Ht, real), blocks.rows, plan.tile)
    return sum_lanes(
        lambda *pairs: _trace_of_square_lane(kernel, noise, *operands, *pairs),
        blocks.parts,
        blocks.lanes,
    )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _known_product(plan: Plan, kernel: Kernel, X: Array, v: Array, Kv: Array) -> Array:
    return Kv


def _known_forward(plan: Plan, kernel: Kernel, X: Array, v: Array, Kv: Array) -> Any:
    return Kv, (kernel, X, v)


def _known_backward(plan: Plan, residuals: Any, g: Array) -> Any:
    kernel, X, v = residuals
    kernel_bar, _, _ = bilinear(plan, kernel, X, X, g[:, None], v[:, None], inputs=False)
    return kernel_bar, jnp.zeros_like(X), jnp.zeros_like(v), jnp.zeros_like(v)


_known_product.defvjp(_known_forward, _known_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(plan: Plan, kernel: Kernel, X1: Array, X2: Array, V: Array) -> Array:
    blocks = _blocks(plan, X1, X2, lane_count(kernel, X1, X2, V))
    F1, F2 = _features(plan.symmetric, kernel, X1, X2)
    operands = (_pad(F1, blocks.rows, plan.tile), *_pad((F2, V), blocks.columns, plan.tile))
    total = sum_lanes(
        lambda *pairs: _product_lane(plan.symmetric, kernel, *operands, *pairs),
        blocks.parts,
        blocks.lanes,
    )
    out = total.reshape(-1, V.shape[1])[: X1.shape[0]]
    return out + kernel.diag(X1)[:, None] * V if plan.symmetric else out


def _product_forward(plan: Plan, kernel: Kernel, X1: Array, X2: Array, V: Array) -> Any:
    return _product(plan, kernel, X1, X2, V), (kernel, X1, X2, V)


def _product_backward(plan: Plan, residuals: Any, G: Array) -> Any:
    kernel, X1, X2, V = residuals
    kernel_bar, X1_bar, X2_bar = bilinear(plan, kernel, X1, X2, G, V)
    return kernel_bar, X1_bar, X2_bar, _product(plan, kernel, X2, X1, G)


_product.defvjp(_product_forward, _product_backward)


@jax.jit
def dense(kernel: Kernel, noise: Float[Array, ""], X: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """K(X, X) + noise·I as one array, its diagonal exact."""
    return covariance(kernel, X) + noise * jnp.eye(X.shape[0], dtype=X.dtype)


# ---- tiles, lanes and padding ----


class _Blocks(NamedTuple):
    rows: int
    columns: int
    lanes: int
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # one each: rows, columns, diagonal


def _blocks(plan: Plan, X1: Array, X2: Array, lanes: int) -> _Blocks:
    """Deal the tiles out to parts of equal length, so that one compilation serves them all: one part a
    lane, or several if there are many tiles and more than one lane.

    Block numbers run to one past the data: that last block is all padding, and parts that would fall
    short visit it, where every vector is 0.
    """
    rows, columns = -(-X1.shape[0] // plan.tile), -(-X2.shape[0] // plan.tile)
    if plan.symmetric:
        I, J = np.triu_indices(rows, 1)
        D = np.arange(rows)
    else:
        I, J = (index.ravel() for index in np.mgrid[:rows, :columns])
        D = np.zeros(0, dtype=np.int64)
    lanes = min(lanes, max(len(I), len(D), 1))
    count = lanes * max(1, -(-len(I) // (lanes * TILES_A_PART))) if lanes > 1 else 1
    parts = [
        (_deal(I, part, count, rows), _deal(J, part, count, columns), _deal(D, part, count, rows))
        for part in range(count)
    ]
    return _Blocks(rows + 1, columns + 1, lanes, parts)


def _deal(index: np.ndarray, part: int, count: int, filler: int) -> np.ndarray:
    length = -(-len(index) // count)
    mine = index[part::count]
    return np.concatenate([mine, np.full(length - len(mine), filler)]).astype(np.int32)


def _pad(rows: Any, blocks: int, tile: int) -> Any:
    """Arrays [n, ...] with zero rows added, as [blocks, tile, ...]."""

    def pad(array: Array) -> Array:
        missing = blocks * tile - array.shape[0]
        padded = jnp.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1)))
        return padded.reshape(blocks, tile, *array.shape[1:])

    return jax.tree.map(pad, rows)


@partial(jax.jit, static_argnums=0)
def _features(symmetric: bool, kernel: Kernel, X1: Array, X2: Array) -> tuple[Any, Any]:
    """The kernel's features of either side, made once for all tiles."""
    kernel.check_columns(X1.shape[1])
    origin = jnp.mean(X2, axis=0, keepdims=True)
    F2 = kernel.features(X2, origin)
    return (F2 if symmetric else kernel.features(X1, origin)), F2


@partial(jax.jit, static_argnums=(0, 1))
def _pull_features(
    symmetric: bool,
    inputs: bool,
    kernel: Kernel,
    X1: Array,
    X2: Array,
    a: Array,
    b: Array,
    kernel_bar: Kernel,
    F1_bar: Any,
    F2_bar: Any,
) -> tuple[Kernel, Array | None, Array | None]:
    """From the gradient in the features to that in hyperparameters and inputs, and the diagonal, which
    the tiles leave out if the plan is symmetric."""

    def rows(kernel: Kernel, X1: Array, X2: Array) -> Any:
        origin = jnp.mean(X2, axis=0, keepdims=True)
        diagonal = kernel.diag(X1) if symmetric else None
        return kernel.features(X1, origin), kernel.features(X2, origin), diagonal

    found, pull = jax.vjp(rows, kernel, X1, X2)
    unpad = [
        jax.tree.map(lambda bar, like: bar.reshape(-1, *like.shape[1:])[: like.shape[0]], *pair)
        for pair in ((F1_bar, found[0]), (F2_bar, found[1]))
    ]
    more, X1_bar, X2_bar = pull((*unpad, jnp.sum(a * b, axis=1) if symmetric else None))
    kernel_bar = jax.tree.map(jnp.add, kernel_bar, more)
    return (kernel_bar, X1_bar, X2_bar) if inputs else (kernel_bar, None, None)


def covariance(kernel: Kernel, X: Array) -> Array:
    """K(X, X), its diagonal exact rather than through the rounded distance of a point to itself."""
    return jnp.where(jnp.eye(X.shape[0], dtype=bool), kernel.diag(X)[:, None], kernel(X, X))


@partial(jax.jit, static_argnums=0)
def _product_lane(
    symmetric: bool, kernel: Kernel, F1: Any, F2: Any, V: Array, I: Array, J: Array, D: Array
) -> Array:
    """K V over the tiles (I, J); on the diagonal tiles (D, D) without the diagonal itself."""

    def off_diagonal(out: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        i, j = pair
        K = kernel.between(_block(F1, i), _block(F2, j))
        out = out.at[i].add(K @ V[j])
        if symmetric:
            out = out.at[j].add(K.T @ V[i])
        return out, None

    def diagonal(out: Array, i: Array) -> tuple[Array, None]:
        K = kernel.between(_block(F1, i), _block(F1, i))
        return out.at[i].add(_off_diagonal(K) @ V[i]), None

    rows = jax.tree.leaves(F1)[0]
    out = jnp.zeros((*rows.shape[:2], V.shape[2]), dtype=V.dtype)
    out, _ = lax.scan(off_diagonal, out, (I, J))
    return lax.scan(diagonal, out, D)[0] if symmetric else out


@partial(jax.jit, static_argnums=(0, 1))
def _bilinear_lane(
    symmetric: bool,
    inputs: bool,
    kernel: Kernel,
    F1: Any,
    a: Array,
    F2: Any,
    b: Array,
    I: Array,
    J: Array,
    D: Array,
) -> tuple[Kernel, Any, Any]:
    """Gradient of Σ aᵀ K b over the tiles, in the kernel's own parameters and the features."""

    def accumulate(carry: Any, i: Array, j: Array, weights: Array) -> Any:
        kernel_bar, F1_bar, F2_bar = carry
        k_bar, f1_bar, f2_bar = kernel.pull_between(_block(F1, i), _block(F2, j), weights, inputs)
        return (
            jax.tree.map(jnp.add, kernel_bar, k_bar),
            jax.tree.map(lambda total, part: total.at[i].add(part), F1_bar, f1_bar),
            jax.tree.map(lambda total, part: total.at[j].add(part), F2_bar, f2_bar),
        )

    def off_diagonal(carry: Any, pair: tuple[Array, Array]) -> tuple[Any, None]:
        i, j = pair
        weights = a[i] @ b[j].T
        if symmetric:
            weights = weights + b[i] @ a[j].T
        return accumulate(carry, i, j, weights), None

    def diagonal(carry: Any, i: Array) -> tuple[Any, None]:
        return accumulate(carry, i, i, _off_diagonal(a[i] @ b[i].T)), None

    carry = jax.tree.map(jnp.zeros_like, (kernel, F1, F2))
    carry, _ = lax.scan(off_diagonal, carry, (I, J))
    return lax.scan(diagonal, carry, D)[0] if symmetric else carry


@jax.jit
def _trace_of_square_lane(
    kernel: Kernel,
    noise: Array,
    F: Any,
    At: Array,
    Ht: Array,
    real: Array,
    I: Array,
    J: Array,
    D: Array,
) -> Array:
    def products(i: Array, j: Array) -> Array:
        """TᵢⱼTⱼᵢ on a pair of blocks."""
        K = kernel.between(_block(F, i), _block(F, j)) / noise
        pairs = real[i][:, None] * real[j][None, :]
        return pairs * (K - At[i] @ Ht[j].T) * (K - Ht[i] @ At[j].T)

    def off_diagonal(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        return total + 2.0 * jnp.sum(products(*pair)), None

    def diagonal(total: Array, i: Array) -> tuple[Array, None]:
        return total + jnp.sum(_off_diagonal(products(i, i))), None

    total, _ = lax.scan(off_diagonal, jnp.zeros((), dtype=At.dtype), (I, J))
    return lax.scan(diagonal, total, D)[0]


def _block(features: Any, i: Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], features)


def _off_diagonal(K: Array) -> Array:
    return jnp.where(jnp.eye(K.shape[0], dtype=bool), 0.0, K)
