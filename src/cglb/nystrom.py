"""The Nyström matrix Q̂ = Kfu Kuu⁻¹ Kuf + σ²I through two small factors.

    Kuu = L Lᵀ,   A = L⁻¹ Kuf / σ,   I + A Aᵀ = LB LBᵀ,   so   Q̂ = σ²(I + AᵀA),   K̂ ⪰ Q̂ ⪰ σ²I.

One object serves three purposes: SGPR's terms, CG's preconditioner and the sparse part of predictions.
A is kept transposed, `At` [n, m], so that work goes by rows. Adding jitter to Kuu only shrinks Q̂, so
every bound stays a bound.

`gram` is the differentiable part. Bounds need only G = AAᵀ, c = A r and (some) the diagonal of AᵀA;
its gradient is derived by hand and made of matrix products, about 2nm² flops on top of the 3nm² of
`factor`.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from cglb import host, tiles, triangular
from cglb.kernels import Kernel
from cglb.lanes import lane_count, map_lanes, on_host, sum_lanes
from cglb.model import GP
from cglb.precision import is_traced

__all__ = ["Nystrom", "NystromError", "factor", "gram"]

DEFAULT_JITTER = 1e-12
LARGEST_JITTER = 1e-3
# Rows of k(X, Z) that a lane makes at a time, and rows that its gradient takes at a time: their
# temporaries should stay in a core's cache, and products of so many rows still run at full rate.
FILL_ROWS = 256
PULL_ROWS = 256


class NystromError(ValueError):
    """Kuu has no Cholesky factor, even with the largest jitter."""


class Nystrom(eqx.Module):
    """Factors of Q̂ for n rows and m inducing points."""

    At: Float[Array, "n m"]
    L: Float[Array, "m m"]
    G: Float[Array, "m m"]
    LB: Float[Array, "m m"]
    noise: Float[Array, ""]
    k_diag: Float[Array, " n"]
    jitter: Float[Array, ""]  # what was added to diag(Kuu), relative to its mean

    @property
    def n(self) -> int:
        return self.At.shape[0]

    @property
    def m(self) -> int:
        return self.At.shape[1]

    def solve(self, R: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """Q̂⁻¹R = (R − Aᵀ(I + AAᵀ)⁻¹A R)/σ², O(nm) a column."""
        return _solve(self, R)

    def matmul(self, V: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """Q̂V, O(nm) a column."""
        return self.noise * (V + self.At @ self.project(V))

    def project(self, R: Float[Array, "n *t"]) -> Float[Array, "m *t"]:
        """A R. Written as (RᵀAᵀ)ᵀ: XLA is many times slower with the n × m side transposed."""
        return (R.T @ self.At).T

    @property
    def logdet(self) -> Float[Array, ""]:
        """log|Q̂| = n log σ² + log|I + AAᵀ|."""
        return self.n * jnp.log(self.noise) + 2.0 * jnp.sum(jnp.log(jnp.diagonal(self.LB)))

    @property
    def residual_diag(self) -> Float[Array, " n"]:
        """δ = diag(K − Q), never below 0."""
        explained = self.noise * jnp.sum(self.At * self.At, axis=1)
        return jnp.maximum(self.k_diag - explained, 0.0)

    @property
    def eigenvalues(self) -> Float[Array, " m"]:
        """The m largest eigenvalues of Q̂, in ascending order; the other n − m are σ²."""
        return self.noise * (1.0 + jnp.maximum(jnp.linalg.eigvalsh(self.G), 0.0))

    def inducing_weights(self, r: Float[Array, " n"]) -> Float[Array, " m"]:
        """Kuu⁻¹ Kuf Q̂⁻¹ r: the weights on k(Z, ·) in SGPR's mean."""
        inner = cho_solve((self.LB, True), self.project(r))
        return solve_triangular(self.L, inner, lower=True, trans="T") / jnp.sqrt(self.noise)


@jax.jit
def _solve(factors: Nystrom, R: Array) -> Array:
    inner = cho_solve((factors.LB, True), factors.project(R))
    return (R - factors.At @ inner) / factors.noise


def factor(
    gp: GP, X: Float[Array, "n d"], Z: Float[Array, "m d"], jitter: float = DEFAULT_JITTER
) -> Nystrom:
    """Q̂'s factors: 3nm² flops, n·m memory.

    jitter: added to diag(Kuu) relative to its mean. Where the Cholesky factorisation fails it grows by
    10 until it works (the amount is in the result), and past 1e-3 a `NystromError` is raised.
    """
    if not is_traced(jitter) and not 0.0 <= jitter < np.inf:  # a negative one would break the bounds
        raise ValueError(f"jitter must be finite and at least 0, found {jitter}.")
    factors = _factor(gp.kernel, jnp.asarray(gp.noise), X, Z, jnp.asarray(jitter, dtype=X.dtype))
    if not is_traced(factors):
        _check(factors, gp, X, Z)
    return factors


def _check(factors: Nystrom, gp: GP, X: Array, Z: Array) -> None:
    if bool(jnp.isfinite(factors.LB[-1, -1])):
        return
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(gp)]
    if not all(np.isfinite(leaf).all() for leaf in leaves):
        cause = "a hyperparameter is not finite"
    elif not np.isfinite(np.asarray(gp.kernel(Z, Z))).all():
        cause = "the kernel gives values that are not finite at the inducing points"
    elif len(np.unique(np.asarray(Z), axis=0)) < Z.shape[0]:
        cause = "some inducing points coincide; choose distinct ones"
    else:
        cause = "the kernel is not positive definite, or its lengthscales are far beyond the data"
    raise NystromError(
        f"Kuu [{Z.shape[0]} x {Z.shape[0]}] has no Cholesky factor with jitter up to "
        f"{LARGEST_JITTER:g} of its mean diagonal. Likely cause: {cause}."
    )


def _kuu(kernel: Kernel, Z: Array, jitter: Array) -> Array:
    eye = jnp.eye(Z.shape[0], dtype=Z.dtype)
    return tiles.covariance(kernel, Z) + jitter * jnp.mean(kernel.diag(Z)) * eye


def _starts(n: int, size: int) -> tuple[int, np.ndarray]:
    """Chunks of `size` rows (or of all) as where each begins and its first row that no other has: the
    last one overlaps the one before, so that all are of one shape and nothing is padded."""
    size = min(size, n)
    own = np.arange(0, n, size)
    return size, np.stack([np.minimum(own, n - size), own], axis=1)


def _factor(kernel: Kernel, noise: Array, X: Array, Z: Array, jitter: Array) -> Nystrom:
    L, jitter = _factor_kuu(kernel, Z, jitter)
    rows = _rows_on_host if on_host(kernel, noise, X, Z, jitter) else _rows
    At, G = rows(kernel, jnp.sqrt(noise), X, Z, L)
    return Nystrom(At, L, G, _factor_B(G), jnp.asarray(noise), kernel.diag(X), jitter)


@jax.jit
def _factor_kuu(kernel: Kernel, Z: Array, jitter: Array) -> tuple[Array, Array]:
    """(L, the jitter it took)."""

    def failed(state: tuple[Array, Array]) -> Array:
        L, jitter = state
        return ~jnp.isfinite(L[-1, -1]) & (jitter < 0.99 * LARGEST_JITTER)

    def retry(state: tuple[Array, Array]) -> tuple[Array, Array]:
        jitter = jnp.minimum(10.0 * jnp.maximum(state[1], 1e-14), LARGEST_JITTER)
        return jnp.linalg.cholesky(_kuu(kernel, Z, jitter)), jitter

    return lax.while_loop(failed, retry, (jnp.linalg.cholesky(_kuu(kernel, Z, jitter)), jitter))


@jax.jit
def _factor_B(G: Array) -> Array:
    return jnp.linalg.cholesky(G + jnp.eye(G.shape[0], dtype=G.dtype))


@jax.jit
def _rows(kernel: Kernel, sigma: Array, X: Array, Z: Array, L: Array) -> tuple[Array, Array]:
    """(Aᵀ, AAᵀ)."""
    At = triangular.solve_right(L, kernel(X, Z)) / sigma
    return At, At.T @ At


def _rows_on_host(kernel: Kernel, sigma: Array, X: Array, Z: Array, L: Array) -> tuple[Array, Array]:
    """`_rows` by BLAS, in one array."""
    size, starts = _starts(X.shape[0], FILL_ROWS)
    At = host.empty((X.shape[0], Z.shape[0]), X.dtype)

    def fill(start: int) -> None:
        At[start : start + size] = _cross(kernel, X, Z, start, size)

    deque(map_lanes(fill, [(int(start),) for start, _ in starts], lane_count()), maxlen=0)
    host.solve_rows(np.asarray(L), At, 1.0 / float(sigma))
    G = host.gram(At)
    return host.to_jax(At), jnp.asarray(G)


@partial(jax.jit, static_argnums=4)
def _cross(kernel: Kernel, X: Array, Z: Array, start: Array, size: int) -> Array:
    return kernel(lax.dynamic_slice_in_dim(X, start, size), Z)


# ---- the differentiable part ----


def gram(
    gp: GP,
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    r: Float[Array, " n"],
    factors: Nystrom,
    rows: bool = False,
) -> tuple[Float[Array, "m m"], Float[Array, " m"], Float[Array, "n m"] | None]:
    """(G, c, Aᵀ) = (AAᵀ, A r, Aᵀ), differentiable in gp, Z and r; X is held fixed.

    `factors` must come from `factor(gp, X, Z)` at the same values: they make the forward pass free.
    Aᵀ itself is there only with rows=True; then the backward pass costs 6nm² flops in place of 2nm².
    """
    return _gram(rows, gp.kernel, jnp.asarray(gp.noise), Z, r, X, factors)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gram(
    rows: bool, kernel: Kernel, noise: Array, Z: Array, r: Array, X: Array, factors: Nystrom
) -> tuple[Array, Array, Array | None]:
    return factors.G, factors.project(r), factors.At if rows else None


def _gram_forward(
    rows: bool, kernel: Kernel, noise: Array, Z: Array, r: Array, X: Array, factors: Nystrom
) -> Any:
    G, c, At = _gram(rows, kernel, noise, Z, r, X, factors)  # pyright: ignore[reportGeneralTypeIssues]
    return (G, c, At), (kernel, noise, Z, r, X, factors, c)


def _gram_backward(rows: bool, residuals: Any, cotangents: Any) -> Any:
    kernel, noise, Z, r, X, factors, c = residuals
    grads = _gram_pullback(kernel, noise, Z, r, X, factors, c, *cotangents)
    return (*grads, None, None)  # X and the factors are held fixed


_gram.defvjp(_gram_forward, _gram_backward)


def _gram_pullback(
    kernel: Kernel,
    noise: Array,
    Z: Array,
    r: Array,
    X: Array,
    factors: Nystrom,
    c: Array,
    G_bar: Array,
    c_bar: Array,
    At_bar: Array | None,
) -> tuple[Kernel, Array, Array, Array]:
    """With A_bar = (Ḡ + Ḡᵀ)A + c̄rᵀ + (what comes through A itself) and M = A_bar Aᵀ:

    Kuf_bar = L⁻ᵀA_bar/σ,  Kuu_bar = −sym(L⁻ᵀ Φ(M) L⁻¹) (Φ: lower triangle, halved diagonal),
    σ²_bar = −tr(M)/(2σ²),  r_bar = Aᵀc̄.
    """
    At = factors.At
    M, L_inverse, *right = _pull_small(noise, c, factors, G_bar, c_bar)
    size, starts = _starts(X.shape[0], PULL_ROWS)
    lanes = min(lane_count(kernel, noise, Z, X, At, c_bar), len(starts))
    kernel_bar, F_bar, *more = sum_lanes(
        lambda *mine: _pull_lane(size, kernel, Z, X, r, At, At_bar, *right, *mine),
        [(starts[lane::lanes],) for lane in range(lanes)],
        lanes,
    )
    return _pull_rest(kernel, noise, Z, factors, L_inverse, sum(more, M), kernel_bar, F_bar, c_bar)


@jax.jit
def _pull_small(
    noise: Array, c: Array, factors: Nystrom, G_bar: Array, c_bar: Array
) -> tuple[Array, ...]:
    """M but for what comes through A itself, L⁻¹, and for chunks of rows (Ḡ + Ḡᵀ, c̄ᵀ, I) L⁻¹/σ."""
    G_sym = G_bar + G_bar.T
    M = G_sym @ factors.G + jnp.outer(c_bar, c)
    L_inverse = triangular.inverse(factors.L)
    scaled = L_inverse / jnp.sqrt(noise)
    return M, L_inverse, G_sym @ scaled, c_bar @ scaled, scaled


@partial(jax.jit, static_argnums=0)
def _pull_lane(
    size: int,
    kernel: Kernel,
    Z: Array,
    X: Array,
    r: Array,
    At: Array,
    At_bar: Array | None,
    right: Array,
    c_right: Array,
    scaled: Array,
    starts: Array,
) -> tuple[Any, ...]:
    """Over chunks of rows: Kfu_bar, pulled back to the kernel and the features of Z; then, where there
    is At_bar, At_barᵀAt."""
    origin = Z[:1]
    FZ = kernel.features(Z, origin)

    def chunk(total: Any, begin: Array) -> tuple[Any, None]:
        rows = partial(lax.dynamic_slice_in_dim, start_index=begin[0], slice_size=size)
        own = begin[0] + jnp.arange(size) >= begin[1]
        Kfu_bar = rows(At) @ right + rows(r)[:, None] * c_right[None, :]
        more = []
        if At_bar is not None:
            Kfu_bar = Kfu_bar + rows(At_bar) @ scaled
            # a product with a transposed side is several times slower than to transpose it first
            sides = jnp.where(own[:, None], rows(At_bar), 0.0).T, rows(At)
            more = [jnp.matmul(*lax.optimization_barrier(sides))]
        W = lax.optimization_barrier(jnp.where(own[:, None], Kfu_bar, 0.0))
        FX, pull = jax.vjp(lambda kernel: kernel.features(rows(X), origin), kernel)
        kernel_bar, FX_bar, FZ_bar = kernel.pull_between(FX, FZ, W, True)
        parts = (jax.tree.map(jnp.add, kernel_bar, pull(FX_bar)[0]), FZ_bar, *more)
        return jax.tree.map(jnp.add, total, parts), None

    zeros = [kernel, FZ] if At_bar is None else [kernel, FZ, scaled]
    return lax.scan(chunk, tuple(jax.tree.map(jnp.zeros_like, zeros)), starts)[0]


@jax.jit
def _pull_rest(
    kernel: Kernel,
    noise: Array,
    Z: Array,
    factors: Nystrom,
    L_inverse: Array,
    M: Array,
    kernel_bar: Kernel,
    FZ_bar: Any,
    c_bar: Array,
) -> tuple[Kernel, Array, Array, Array]:
    phi = jnp.tril(M) - 0.5 * jnp.diag(jnp.diagonal(M))
    Kuu_bar = -(L_inverse.T @ phi @ L_inverse)
    Kuu_bar = 0.5 * (Kuu_bar + Kuu_bar.T)

    def of_Z(kernel: Kernel, Z: Array) -> Any:
        return _kuu(kernel, Z, factors.jitter), kernel.features(Z, Z[:1])

    _, pull = jax.vjp(of_Z, kernel, Z)
    kernel_more, Z_bar = pull((Kuu_bar, FZ_bar))
    total = jax.tree.map(jnp.add, kernel_bar, kernel_more)
    return total, -0.5 * jnp.trace(M) / noise, Z_bar, factors.At @ c_bar
