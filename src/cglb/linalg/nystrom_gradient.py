"""The differentiable part of the Nyström matrix, with its gradient derived by hand.

Bounds need only G = AAᵀ, c = A r and (some) A itself. With the factors already there the forward pass is
free, and the backward pass is made of matrix products: about 2nm² flops on top of those of `factor`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from cglb.compute import shards, triangular
from cglb.compute.backend import backend_of
from cglb.compute.products import materialised, transposed_product
from cglb.compute.programs import wide
from cglb.compute.shards import Tall
from cglb.kernels.base import Kernel
from cglb.kernels.distance import middle
from cglb.linalg.nystrom import Nystrom
from cglb.model import GP

__all__ = ["Gram", "Primals", "gram", "pull"]


class Gram(NamedTuple):
    """What bounds look at."""

    G: Float[Array, "m m"]  # AAᵀ
    c: Float[Array, " m"]  # A r
    At: Tall | None  # Aᵀ, if asked for


class Primals(NamedTuple):
    """What the result is differentiated in."""

    kernel: Kernel
    noise: Array
    Z: Array
    r: Any


class _Right(NamedTuple):
    """What the rows of (Aᵀ, r, Āᵀ) are multiplied with to give Kfu_bar: (Ḡ + Ḡᵀ, c̄ᵀ, I) L⁻¹/σ."""

    G: Array
    c: Array
    identity: Array


class _Small(NamedTuple):
    """Products of m × m matrices."""

    M: Array  # A_bar Aᵀ, without what comes through A itself
    L_inverse: Array
    right: _Right


class _Rows(NamedTuple):
    """Arrays of which chunks of rows are taken."""

    X: Array
    r: Array
    At: Any
    At_bar: Any


class _Pulled(NamedTuple):
    """Sums over chunks of rows: gradients in the kernel and the features of Z, and Āᵀ's part of M."""

    kernel: Kernel
    FZ: Any
    M: Array | None


def gram(
    gp: GP,
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    r: Float[Array, " n"],
    factors: Nystrom,
    rows: bool = False,
) -> Gram:
    """(G, c, Aᵀ) = (AAᵀ, A r, Aᵀ), differentiable in gp, Z and r; X is held fixed.

    Args:
        factors: from `nystrom.factor(gp, X, Z)` at the same values: they make the forward pass free.
        rows: whether Aᵀ itself is wanted; the backward pass then costs 6nm² flops instead of 2nm².
    """
    return _gram(rows, Primals(gp.kernel, jnp.asarray(gp.noise), Z, r), X, factors)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gram(rows: bool, primals: Primals, X: Array, factors: Nystrom) -> Gram:
    return Gram(factors.G, factors.project(primals.r), factors.At if rows else None)


def _gram_forward(rows: bool, primals: Primals, X: Array, factors: Nystrom) -> Any:
    found: Gram = _gram(rows, primals, X, factors)  # pyright: ignore[reportAssignmentType]
    return found, (primals, X, factors, found.c)


def _gram_backward(rows: bool, residuals: Any, bars: Gram) -> Any:
    primals, X, factors, c = residuals
    found = pull(primals, X, factors, c, bars)
    r_bar = _expand(factors.At, bars.c)
    return found._replace(r=r_bar), None, None  # X and the factors are held fixed


_expand = jax.jit(shards.expand)


_gram.defvjp(_gram_forward, _gram_backward)


def pull(primals: Primals, X: Array, factors: Nystrom, c: Array, bars: Gram) -> Primals:
    """The gradient of tr(ḠᵀG) + c̄ᵀc + tr(ĀᵀA) in kernel, noise and Z: 2nm² flops; 6nm² with Ā.

    That in r, Aᵀc̄, is left out, as None. With A_bar = (Ḡ + Ḡᵀ)A + c̄rᵀ + (what comes through A itself)
    and M = A_bar Aᵀ:

    Kuf_bar = L⁻ᵀA_bar/σ,  Kuu_bar = −sym(L⁻ᵀ Φ(M) L⁻¹) (Φ: lower triangle, halved diagonal),
    σ²_bar = −tr(M)/(2σ²).
    """
    backend = backend_of(primals, X, factors, bars)
    small = _pull_small(primals.noise, c, factors, bars)
    rows = _Rows(X, primals.r, factors.At, bars.At)
    pulled = backend.sum_over_rows(_pull_rows, (primals.kernel, primals.Z, small.right), rows)
    return _pull_rest(primals, factors, small, pulled)


@jax.jit
def _pull_small(noise: Array, c: Array, factors: Nystrom, bars: Gram) -> _Small:
    G_sym = bars.G + bars.G.T
    M = G_sym @ factors.G + jnp.outer(bars.c, c)
    L_inverse = triangular.inverse(factors.L)
    scaled = L_inverse / jnp.sqrt(noise)
    return _Small(M, L_inverse, _Right(G_sym @ scaled, bars.c @ scaled, scaled))


@partial(wide, static_argnums=0)
def _pull_rows(
    size: int, kernel: Kernel, Z: Array, right: _Right, rows: _Rows, starts: Array
) -> _Pulled:
    """Over chunks of `size` rows: Kfu_bar, pulled back to the kernel and the features of Z."""
    origin = middle(Z)
    FZ = kernel.features(Z, origin)

    def chunk(total: _Pulled, begin: Array) -> tuple[_Pulled, None]:
        first, first_own = begin
        here = jax.tree.map(lambda array: lax.dynamic_slice_in_dim(array, first, size), rows)
        own = (first + jnp.arange(size, dtype=first.dtype) >= first_own)[:, None]
        Kfu_bar = here.At @ right.G + here.r[:, None] * right.c[None, :]
        M = None
        if here.At_bar is not None:
            Kfu_bar = Kfu_bar + here.At_bar @ right.identity
            M = transposed_product(jnp.where(own, here.At_bar, 0.0), materialised(here.At))
        W = materialised(jnp.where(own, Kfu_bar, 0.0))
        FX, pull = jax.vjp(lambda kernel: kernel.features(here.X, origin), kernel)
        kernel_bar, FX_bar, FZ_bar = kernel.pull_between(FX, FZ, W, True)
        part = _Pulled(jax.tree.map(jnp.add, kernel_bar, pull(FX_bar)[0]), FZ_bar, M)
        return jax.tree.map(jnp.add, total, part), None

    M = None if rows.At_bar is None else right.identity
    zeros = jax.tree.map(jnp.zeros_like, _Pulled(kernel, FZ, M))
    return lax.scan(chunk, zeros, starts)[0]


@jax.jit
def _pull_rest(primals: Primals, factors: Nystrom, small: _Small, pulled: _Pulled) -> Primals:
    kernel, noise, Z = primals[:3]
    M = small.M if pulled.M is None else small.M + pulled.M
    phi = jnp.tril(M) - 0.5 * jnp.diag(jnp.diagonal(M))
    Kuu_bar = -(small.L_inverse.T @ phi @ small.L_inverse)
    Kuu_bar = 0.5 * (Kuu_bar + Kuu_bar.T)

    def of_Z(kernel: Kernel, Z: Array) -> Any:
        diag = kernel.diag(Z)
        return kernel.features(Z, middle(Z)), diag + factors.jitter * jnp.mean(diag)

    (FZ, _), pull_Z = jax.vjp(of_Z, kernel, Z)
    diag_bar = jnp.diagonal(Kuu_bar)
    in_kernel, F1_bar, F2_bar = kernel.pull_between(FZ, FZ, Kuu_bar - jnp.diag(diag_bar), True)
    through_Z, Z_bar = pull_Z((jax.tree.map(_add, pulled.FZ, F1_bar, F2_bar), diag_bar))
    kernel_bar = jax.tree.map(_add, pulled.kernel, in_kernel, through_Z)
    return Primals(kernel_bar, -0.5 * jnp.trace(M) / noise, Z_bar, None)


def _add(*parts: Array) -> Array:
    return sum(parts[1:], parts[0])
