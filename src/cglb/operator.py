"""The kernel matrix as an operator: K̂V, K(X*, X)V, the diagonal, and gradients of bilinear forms."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import get_blas_funcs

from cglb.checks import boundary
from cglb.kernels import Kernel
from cglb.lanes import on_host
from cglb.matrix import upper_triangle
from cglb.model import GP
from cglb.plan import Plan, tile_size
from cglb.precision import cast, in_float64
from cglb.tiles import bilinear, dense, product

__all__ = ["DenseOperator", "KernelOperator", "Operator", "StoredOnUse", "kernel_operator"]

STORE_GB = 4.0  # K̂ is kept during CG up to this size: half of it for 32,000 rows in float64
STORE_AFTER = 4  # products


def _as_matrix(name: str, V: Array, like: Array) -> tuple[Array, bool]:
    """V as [n, t] in the dtype of the inputs `like` [n, d], and whether it was a vector."""
    if V.shape[0] != like.shape[0]:  # padding to whole tiles would hide it
        raise ValueError(f"{name} has {V.shape[0]} rows, but the operator has {like.shape[0]}.")
    V = V.astype(like.dtype)
    return (V[:, None], True) if V.ndim == 1 else (V, False)


class KernelOperator(eqx.Module):
    """K̂ = K(X, X) + noise·I without storing it. Memory O(n·(t + d)) beside a few tiles a core.

    It computes in the dtype of its fields and answers in that of the vector it is given, so a float32
    copy (`astype`) serves inside float64 code.
    """

    kernel: Kernel
    noise: Float[Array, ""]
    X: Float[Array, "n d"]
    tile: int = eqx.field(static=True)

    @property
    def n(self) -> int:
        return self.X.shape[0]

    @property
    def plan(self) -> Plan:
        return Plan(self.tile, symmetric=True)

    @in_float64
    def astype(self, dtype: Any) -> KernelOperator:
        """The same operator computing in `dtype`."""
        # the device's tile for that dtype, unless a budget or the caller asked for another one
        default = self.tile == min(tile_size(self.X.dtype), self.n)
        tile = min(tile_size(dtype), self.n) if default else self.tile
        return KernelOperator(
            cast(self.kernel, dtype), cast(self.noise, dtype), cast(self.X, dtype), tile
        )

    @in_float64
    def __matmul__(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """K̂ V for one vector [n] or several [n, t]."""
        columns, squeeze = _as_matrix("V", V, self.X)
        out = product(self.plan, self.kernel, self.X, self.X, columns) + self.noise * columns
        return (out[:, 0] if squeeze else out).astype(V.dtype)

    @in_float64
    def cross(self, X_star: Float[Array, "s d"], V: Float[Array, "n *t"]) -> Float[Array, "s *t"]:
        """K(X_star, X) V; no noise."""
        columns, squeeze = _as_matrix("V", V, self.X)
        if X_star.shape[1] != self.X.shape[1]:
            raise ValueError(
                f"X_star has {X_star.shape[1]} columns, but the operator's X has {self.X.shape[1]}."
            )
        plan = Plan(self.tile, symmetric=False)
        out = product(plan, self.kernel, X_star.astype(self.X.dtype), self.X, columns)
        return (out[:, 0] if squeeze else out).astype(V.dtype)

    @in_float64
    def diagonal(self) -> Float[Array, " n"]:
        """diag K̂."""
        return self.kernel.diag(self.X) + self.noise

    @in_float64
    def bilinear_gradient(
        self, a: Float[Array, "n *t"], b: Float[Array, "n *t"]
    ) -> tuple[Kernel, Float[Array, ""], Float[Array, "n d"]]:
        """Gradient of Σₜ aₜᵀ K̂ bₜ in (kernel, noise, X), in one pass over the tiles."""
        a, b = _as_matrix("a", a, self.X)[0], _as_matrix("b", b, self.X)[0]
        kernel_bar, X1_bar, X2_bar = bilinear(self.plan, self.kernel, self.X, self.X, a, b)
        assert X1_bar is not None
        assert X2_bar is not None
        return kernel_bar, jnp.sum(a * b), X1_bar + X2_bar

    @in_float64
    def dense(self) -> Float[Array, "n n"]:
        """K̂ as an array, for small n."""
        return dense(self.kernel, self.noise, self.X)


class DenseOperator(eqx.Module):
    """K̂ stored once, for small n or many products: the interface of `KernelOperator`."""

    tiled: KernelOperator
    K_hat: Float[Array, "n n"]

    @property
    def n(self) -> int:
        return self.tiled.n

    @in_float64
    def astype(self, dtype: Any) -> DenseOperator:
        """The same operator computing in `dtype`."""
        return DenseOperator(self.tiled.astype(dtype), self.K_hat.astype(dtype))

    @in_float64
    def __matmul__(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """K̂ V for one vector [n] or several [n, t]."""
        return (self.K_hat @ V.astype(self.K_hat.dtype)).astype(V.dtype)

    @in_float64
    def cross(self, X_star: Float[Array, "s d"], V: Float[Array, "n *t"]) -> Float[Array, "s *t"]:
        """K(X_star, X) V; no noise."""
        return self.tiled.cross(X_star, V)

    @in_float64
    def diagonal(self) -> Float[Array, " n"]:
        """diag K̂."""
        return jnp.diagonal(self.K_hat)

    @in_float64
    def bilinear_gradient(
        self, a: Float[Array, "n *t"], b: Float[Array, "n *t"]
    ) -> tuple[Kernel, Float[Array, ""], Float[Array, "n d"]]:
        """Gradient of Σₜ aₜᵀ K̂ bₜ in (kernel, noise, X)."""
        return self.tiled.bilinear_gradient(a, b)

    @in_float64
    def dense(self) -> Float[Array, "n n"]:
        """K̂ itself."""
        return self.K_hat


class StoredOnUse:
    """K̂ for the products inside CG: stored, if it fits, once there have been a few of them.

    A stored product is several times faster than one that makes its tiles anew, but storing costs as
    much as `STORE_AFTER` of those. Few products store nothing; many cost at most twice the best. For one
    vector on a host half of K̂ is enough (`symv`), which holds 1.4 times as many rows in the same memory.
    """

    def __init__(self, tiled: KernelOperator, memory_gb: float = STORE_GB):
        self.tiled = tiled
        self.memory_gb = memory_gb
        self._products = 0
        self._whole: Array | None = None
        self._half: np.ndarray | None = None

    def __matmul__(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """K̂ V for one vector [n] or several [n, t]."""
        self._products += 1
        half = V.size == self.tiled.n and on_host(self.tiled, V)
        if self._products <= STORE_AFTER or not self._fits(half):
            return self.tiled @ V
        tiled, dtype = self.tiled, self.tiled.X.dtype
        if half:
            if self._half is None:
                self._half = upper_triangle(tiled.kernel, tiled.noise, tiled.X)
            (symv,) = get_blas_funcs(("symv",), (self._half,))
            vector = np.asarray(V, dtype=dtype).reshape(-1)
            # the transpose of a row-major array is what BLAS calls an array
            return jnp.asarray(symv(1.0, self._half.T, vector, lower=1), dtype=V.dtype).reshape(V.shape)
        K_hat = self._whole
        if K_hat is None:
            K_hat = self._whole = _stored(tiled.tile, tiled.kernel, tiled.noise, tiled.X)
        return (K_hat @ V.astype(dtype)).astype(V.dtype)

    def _fits(self, half: bool) -> bool:
        """Half of K̂ is all that there is in memory of a triangle: pages that are not written are not
        taken."""
        entries = self.tiled.n**2 // 2 if half else self.tiled.n**2
        return entries * self.tiled.X.dtype.itemsize <= self.memory_gb * 2**30


@partial(jax.jit, static_argnums=0)
def _stored(tile: int, kernel: Kernel, noise: Array, X: Array) -> Array:
    """K̂ [n, n] made in stripes, so that nothing else of its size is alive. Rounding leaves near-zero
    distances on the diagonal, which is set apart."""
    n = X.shape[0]
    missing = -n % tile
    stripes = jnp.pad(X, ((0, missing), (0, 0))).reshape(-1, tile, X.shape[1])
    K = jax.lax.map(lambda rows: kernel(rows, X), stripes).reshape(-1, n)[:n]
    index = jnp.arange(n)
    return K.at[index, index].set(kernel.diag(X) + noise)


Operator = KernelOperator | DenseOperator | StoredOnUse


@boundary
def kernel_operator(
    gp: GP,
    X: Float[Array, "n d"],
    *,
    dtype: Any = jnp.float64,
    tile: int | None = None,
    memory_gb: float | None = None,
    store: bool = False,
) -> Operator:
    """K̂ of a model on data.

    dtype:     float64, or float32 where a rounded product will do (inside CG).
    tile:      rows a tile; by default what fits this device's cache and `memory_gb`.
    store:     keep K̂ [n, n] in memory.
    """
    if tile is None:
        tile = tile_size(dtype, memory_gb)
    if tile < 1:
        raise ValueError(f"tile must be at least 1, found {tile}.")
    gp = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=dtype), gp)
    tiled = KernelOperator(
        gp.kernel, jnp.asarray(gp.noise), jnp.asarray(X, dtype=dtype), min(tile, X.shape[0])
    )
    return DenseOperator(tiled, tiled.dense()) if store else tiled
