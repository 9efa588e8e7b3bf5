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

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from cglb.kernels import Kernel
from cglb.lanes import lane_count, sum_lanes
from cglb.plan import Plan, pad_rows, walk

__all__ = [
    "bilinear",
    "covariance",
    "covariance_and_pull",
    "dense",
    "known_product",
    "product",
    "trace_of_square",
]


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
    blocks = walk(plan, X1, X2, lane_count(kernel, X1, X2, a, b))
    F1, F2 = _features(plan.symmetric, kernel, X1, X2)
    operands = (
        *pad_rows((F1, a), blocks.rows, plan.tile),
        *pad_rows((F2, b), blocks.columns, plan.tile),
    )
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
    blocks = walk(plan, X, X, lane_count(kernel, X, At, Ht))
    F, _ = _features(True, kernel, X, X)
    real = jnp.ones(X.shape[0], dtype=X.dtype)  # 0 on rows of padding, whose kernel entries are not 0
    operands = pad_rows((F, At, Ht, real), blocks.rows, plan.tile)
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
    blocks = walk(plan, X1, X2, lane_count(kernel, X1, X2, V))
    F1, F2 = _features(plan.symmetric, kernel, X1, X2)
    operands = (pad_rows(F1, blocks.rows, plan.tile), *pad_rows((F2, V), blocks.columns, plan.tile))
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


def covariance_and_pull(kernel: Kernel, X: Array) -> tuple[Array, Callable[[Array], Kernel]]:
    """`covariance`, and the gradient of Σᵢⱼ WᵢⱼKᵢⱼ in the kernel as a function of a symmetric W."""
    eye = jnp.eye(X.shape[0], dtype=bool)
    F, pull_features = jax.vjp(lambda kernel: kernel.features(X, X[:1]), kernel)
    diag, pull_diag = jax.vjp(lambda kernel: kernel.diag(X), kernel)

    def pull(W: Array) -> Kernel:
        kernel_bar, F1_bar, F2_bar = kernel.pull_between(F, F, jnp.where(eye, 0.0, W), False)
        (through_features,) = pull_features(jax.tree.map(jnp.add, F1_bar, F2_bar))
        (through_diag,) = pull_diag(jnp.diagonal(W))
        return jax.tree.map(lambda *parts: sum(parts), kernel_bar, through_features, through_diag)

    return jnp.where(eye, diag[:, None], kernel.between(F, F)), pull


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
        return out.at[i].add(K @ V[i] - jnp.diagonal(K)[:, None] * V[i]), None

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
