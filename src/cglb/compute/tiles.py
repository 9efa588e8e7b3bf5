"""Sums over the tiles of K, which is never stored.

Products and gradients of bilinear forms walk over square tiles that stay in cache; by symmetry each tile
is made once and used twice. Tiles are split into equal parts (`tiling.walk`) that run as the backend of
the operands does: one thread per part on a CPU, one after the other inside `jit` or `vmap`.

    product           K V                                    n² kernel entries, O(n·t) memory
    bilinear          d(Σₜ aₜᵀ K bₜ)/d(kernel, inputs)       n² entries and slopes, O(n·(t + d)) memory
    trace_of_square   tr T² for T = K/σ² − AᵀH               n² entries and 2n²m flops

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

from cglb.compute import trace_mesh
from cglb.compute.backend import backend_of
from cglb.compute.programs import wide
from cglb.compute.shards import RowShards, Tall
from cglb.compute.tiling import Plan, Walk, pad_rows
from cglb.core.precision import Number
from cglb.kernels.base import Kernel
from cglb.kernels.distance import by_differences, middle

__all__ = ["bilinear", "known_product", "product", "trace_of_square"]


class _Side(NamedTuple):
    """One side of K in blocks of rows: the kernel's features and the vectors, padded with zeros."""

    F: Any
    V: Array


class _Rows(NamedTuple):
    """Inputs and vectors on one side of K."""

    X: Array
    V: Array


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
    backend = backend_of(kernel, X1, X2, a, b)
    walk = backend.walk(plan, X1.shape[0], X2.shape[0])
    F1, F2 = _features(plan, kernel, X1, X2)
    left = _padded(_Side(F1, a), walk.rows, plan.tile)
    right = _padded(_Side(F2, b), walk.columns, plan.tile)
    bars = backend.parallel.sum(
        partial(_bilinear_part, plan.symmetric, inputs), (kernel, left, right), walk.parts
    )
    return _pull_features(plan.symmetric, inputs, kernel, _Rows(X1, a), _Rows(X2, b), bars)


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
    noise: Number,
    At: Tall,
    Ht: Tall,
) -> Float[Array, ""]:
    """Σ_{i≠j} TᵢⱼTⱼᵢ for T = K/noise − AᵀH: tr T² without its diagonal. 2n²m flops; values only."""
    backend = backend_of(kernel, X, noise, At, Ht)
    walk = backend.walk(plan, X.shape[0], X.shape[0])
    F, _ = _features(plan, kernel, X, X)
    if isinstance(At, RowShards) and isinstance(Ht, RowShards):
        return trace_mesh.trace_of_square(plan.tile, kernel, F, noise, At, Ht)
    rows = _TraceBlocks(F, At, Ht, jnp.ones(X.shape[0], dtype=X.dtype))
    blocks = _padded(rows, walk.rows, plan.tile)
    return backend.parallel.sum(_trace_of_square_part, (kernel, noise, blocks), _diagonal_twice(walk))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _known_product(plan: Plan, kernel: Kernel, X: Array, v: Array, Kv: Array) -> Array:
    return Kv


def _known_forward(plan: Plan, kernel: Kernel, X: Array, v: Array, Kv: Array) -> Any:
    return Kv, (kernel, X, v)


def _known_backward(plan: Plan, residuals: Any, g: Array) -> Any:
    kernel, X, v = residuals
    kernel_bar, _, _ = bilinear(plan, kernel, X, X, g[:, None], v[:, None], inputs=False)
    return kernel_bar, None, None, None


_known_product.defvjp(_known_forward, _known_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(plan: Plan, kernel: Kernel, X1: Array, X2: Array, V: Array) -> Array:
    backend = backend_of(kernel, X1, X2, V)
    walk = backend.walk(plan, X1.shape[0], X2.shape[0])
    F1, F2 = _features(plan, kernel, X1, X2)
    right, diagonal = _right_side(plan, walk.columns, kernel, F2, _Rows(X2, V))
    F1 = right.F if plan.symmetric else _padded(F1, walk.rows, plan.tile)
    part = partial(_product_part, plan.symmetric)
    total = backend.parallel.sum(part, (kernel, F1, right), _diagonal_twice(walk))
    return _unpadded(X1.shape[0], total, diagonal)


def _product_forward(plan: Plan, kernel: Kernel, X1: Array, X2: Array, V: Array) -> Any:
    return _product(plan, kernel, X1, X2, V), (kernel, X1, X2, V)


def _product_backward(plan: Plan, residuals: Any, G: Array) -> Any:
    kernel, X1, X2, V = residuals
    kernel_bar, X1_bar, X2_bar = bilinear(plan, kernel, X1, X2, G, V)
    return kernel_bar, X1_bar, X2_bar, _product(plan, kernel, X2, X1, G)


_product.defvjp(_product_forward, _product_backward)


# ---- operands in blocks ----


@partial(jax.jit, static_argnums=0)
def _features(plan: Plan, kernel: Kernel, X1: Array, X2: Array) -> tuple[Any, Any]:
    """The kernel's features of either side, made once for all tiles."""
    kernel.check_columns(X1.shape[1])
    origin = middle(X2)
    F2 = kernel.features(X2, origin)
    F1 = F2 if plan.symmetric else kernel.features(X1, origin)
    return by_differences((F1, F2)) if plan.differences else (F1, F2)


_padded = jax.jit(pad_rows, static_argnums=(1, 2))


class _TraceBlocks(NamedTuple):
    F: Any
    At: Any
    Ht: Any
    real: Array  # 0 on rows of padding, whose kernel entries are not 0


@partial(jax.jit, static_argnums=(0, 1))
def _right_side(
    plan: Plan, columns: int, kernel: Kernel, F: Any, rows: _Rows
) -> tuple[_Side, Array | None]:
    """The right side of K V in blocks, and diag(K) V, which the tiles leave out for a symmetric plan.

    The latter is made here so that it is rounded on its own: in one call with the sum to come it would
    become a multiply-add, and results would depend on what else is compiled with it.
    """
    side = pad_rows(_Side(F, rows.V), columns, plan.tile)
    return side, (kernel.diag(rows.X)[:, None] * rows.V if plan.symmetric else None)


@partial(jax.jit, static_argnums=0)
def _unpadded(n: int, total: Array, diagonal: Array | None) -> Array:
    out = total.reshape(-1, total.shape[-1])[:n]
    return out if diagonal is None else out + diagonal


@partial(jax.jit, static_argnums=(0, 1))
def _pull_features(
    symmetric: bool,
    inputs: bool,
    kernel: Kernel,
    left: _Rows,
    right: _Rows,
    bars: tuple[Kernel, Any, Any],
) -> tuple[Kernel, Array | None, Array | None]:
    """From the gradient in the features to that in hyperparameters and inputs, with the diagonal, which
    the tiles leave out if the plan is symmetric."""
    kernel_bar, F1_bar, F2_bar = bars

    def rows(kernel: Kernel, X1: Array, X2: Array) -> Any:
        origin = middle(X2)
        diagonal = kernel.diag(X1) if symmetric else None
        return kernel.features(X1, origin), kernel.features(X2, origin), diagonal

    found, pull = jax.vjp(rows, kernel, left.X, right.X)
    unpadded = [
        jax.tree.map(lambda bar, like: bar.reshape(-1, *like.shape[1:])[: like.shape[0]], *pair)
        for pair in ((F1_bar, found[0]), (F2_bar, found[1]))
    ]
    diagonal_bar = jnp.sum(left.V * right.V, axis=1) if symmetric else None
    more, X1_bar, X2_bar = pull((*unpadded, diagonal_bar))
    kernel_bar = jax.tree.map(jnp.add, kernel_bar, more)
    return (kernel_bar, X1_bar, X2_bar) if inputs else (kernel_bar, None, None)


# ---- one part of the tiles ----


def _diagonal_twice(walk: Walk) -> tuple[np.ndarray, ...]:
    """The parts of a walk with D once more, as the columns of the diagonal tiles: where XLA sees that
    both blocks of a tile are the same, it takes ten times as long to make the tile."""
    return (*walk.parts, walk.parts[-1])


@partial(wide, static_argnums=0)
def _product_part(
    symmetric: bool,
    kernel: Kernel,
    F1: Any,
    right: _Side,
    I: Array,
    J: Array,
    D: Array,
    same: Array,
) -> Array:
    """K V over the tiles (I, J); on the diagonal tiles (D, D) without the diagonal itself.

    Args:
        same: D once more (see `_diagonal_twice`).
    """
    V = right.V

    def off_diagonal(out: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        i, j = pair

        def products(K: Array) -> tuple[Array, ...]:
            return (K @ V[j], (V[i].T @ K).T) if symmetric else (K @ V[j],)

        parts = kernel.through(_block(F1, i), _block(right.F, j), products)
        out = out.at[i].add(parts[0])
        return (out.at[j].add(parts[1]) if symmetric else out), None

    def diagonal(out: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        i, j = pair
        found = kernel.through(_block(F1, i), _block(right.F, j), lambda K: (_off_diagonal(K) @ V[j],))
        return out.at[i].add(found[0]), None

    rows = jax.tree.leaves(F1)[0]
    out = jnp.zeros((*rows.shape[:2], V.shape[2]), dtype=V.dtype)
    out, _ = lax.scan(off_diagonal, out, (I, J))
    return lax.scan(diagonal, out, (D, same))[0] if symmetric else out


@partial(wide, static_argnums=(0, 1))
def _bilinear_part(
    symmetric: bool,
    inputs: bool,
    kernel: Kernel,
    left: _Side,
    right: _Side,
    I: Array,
    J: Array,
    D: Array,
) -> tuple[Kernel, Any, Any]:
    """Gradient of Σ aᵀ K b over the tiles, in the kernel's own parameters and the features."""
    (F1, a), (F2, b) = left, right

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


@wide
def _trace_of_square_part(
    kernel: Kernel, noise: Array, blocks: _TraceBlocks, I: Array, J: Array, D: Array, same: Array
) -> Array:
    F, At, Ht, real = blocks

    def products(i: Array, j: Array) -> Array:
        """TᵢⱼTⱼᵢ on a pair of blocks."""
        K = kernel.between(_block(F, i), _block(F, j)) / noise
        pairs = real[i][:, None] * real[j][None, :]
        return pairs * (K - At[i] @ Ht[j].T) * (K - Ht[i] @ At[j].T)

    def off_diagonal(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        return total + 2.0 * jnp.sum(products(*pair)), None

    def diagonal(total: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        return total + jnp.sum(_off_diagonal(products(*pair))), None

    total, _ = lax.scan(off_diagonal, jnp.zeros((), dtype=At.dtype), (I, J))
    return lax.scan(diagonal, total, (D, same))[0]


def _block(features: Any, i: Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], features)


def _off_diagonal(K: Array) -> Array:
    return jnp.where(jnp.eye(K.shape[0], dtype=bool), 0.0, K)
