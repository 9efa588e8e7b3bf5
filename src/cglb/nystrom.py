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

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from cglb import tiles, triangular
from cglb.kernels import Kernel
from cglb.model import GP
from cglb.precision import is_traced

__all__ = ["Nystrom", "NystromError", "factor", "gram"]

DEFAULT_JITTER = 1e-12
LARGEST_JITTER = 1e-3
CHUNK_ROWS = 2048


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
    factors = _factor(gp.kernel, gp.noise, X, Z, jnp.asarray(jitter, dtype=X.dtype))
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


def _chunks(rows: int) -> tuple[int, int]:
    """How many chunks of how many rows: equal ones, so that little is padded."""
    count = -(-rows // CHUNK_ROWS)
    return count, -(-rows // count)


def _chunked(array: Array) -> Array:
    """[n, ...] as [chunks, rows, ...], padded with zeros."""
    count, size = _chunks(array.shape[0])
    missing = count * size - array.shape[0]
    padded = jnp.pad(array, ((0, missing),) + ((0, 0),) * (array.ndim - 1))
    return padded.reshape(count, size, *array.shape[1:])


@jax.jit
def _factor(kernel: Kernel, noise: Array, X: Array, Z: Array, jitter: Array) -> Nystrom:
    n, m = X.shape[0], Z.shape[0]

    def failed(state: tuple[Array, Array]) -> Array:
        jitter, L = state
        return ~jnp.isfinite(L[-1, -1]) & (jitter < 0.99 * LARGEST_JITTER)

    def retry(state: tuple[Array, Array]) -> tuple[Array, Array]:
        jitter = jnp.minimum(10.0 * jnp.maximum(state[0], 1e-14), LARGEST_JITTER)
        return jitter, jnp.linalg.cholesky(_kuu(kernel, Z, jitter))

    jitter, L = lax.while_loop(failed, retry, (jitter, jnp.linalg.cholesky(_kuu(kernel, Z, jitter))))
    sigma = jnp.sqrt(noise)

    def chunk(G: Array, rows: tuple[Array, Array]) -> tuple[Array, Array]:
        X_c, real = rows
        At_c = triangular.solve_right(L, kernel(X_c, Z)) * (real / sigma)[:, None]
        # the product AAᵀ is twice as fast from a transposed copy, which XLA would optimise away
        At_c = lax.optimization_barrier(At_c)
        A_c = lax.optimization_barrier(At_c.T)
        return G + A_c @ A_c.T, At_c

    real = jnp.ones(n, dtype=X.dtype)  # 0 on the rows of padding
    G, At = lax.scan(chunk, jnp.zeros((m, m), dtype=X.dtype), (_chunked(X), _chunked(real)))
    At = At.reshape(-1, m)[:n]
    LB = jnp.linalg.cholesky(G + jnp.eye(m, dtype=G.dtype))
    return Nystrom(At, L, G, LB, jnp.asarray(noise), kernel.diag(X), jitter)


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
    Aᵀ itself is there only with rows=True; then the backward pass costs 5nm² flops in place of 2nm².
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
    return _gram(rows, kernel, noise, Z, r, X, factors), (kernel, noise, Z, r, X, factors)


def _gram_backward(rows: bool, residuals: Any, cotangents: Any) -> Any:
    kernel, noise, Z, r, X, factors = residuals
    grads = _gram_pullback(kernel, noise, Z, r, X, factors, *cotangents)
    fixed = jax.tree.map(jnp.zeros_like, (X, factors))
    return (*grads, *fixed)


_gram.defvjp(_gram_forward, _gram_backward)


@jax.jit
def _gram_pullback(
    kernel: Kernel,
    noise: Array,
    Z: Array,
    r: Array,
    X: Array,
    factors: Nystrom,
    G_bar: Array,
    c_bar: Array,
    At_bar: Array | None,
) -> tuple[Kernel, Array, Array, Array]:
    """With A_bar = (Ḡ + Ḡᵀ)A + c̄rᵀ + (what comes through A itself) and M = A_bar Aᵀ:

    Kuf_bar = L⁻ᵀA_bar/σ,  Kuu_bar = −sym(L⁻ᵀ Φ(M) L⁻¹) (Φ: lower triangle, halved diagonal),
    σ²_bar = −tr(M)/(2σ²),  r_bar = Aᵀc̄.
    """
    At, L, G = factors.At, factors.L, factors.G
    sigma = jnp.sqrt(noise)
    G_sym = G_bar + G_bar.T
    c = factors.project(r)
    M = G_sym @ G + jnp.outer(c_bar, c)
    # the part of A_barᵀL⁻¹ that is linear in A and r needs only small matrices
    L_inverse = triangular.inverse(L)
    right = G_sym @ L_inverse / sigma
    c_right = c_bar @ L_inverse / sigma

    def chunk(carry: Any, rows: Any) -> tuple[Any, None]:
        grads, M = carry
        X_c, At_c, r_c, *direct = rows
        Kfu_bar = At_c @ right + r_c[:, None] * c_right[None, :]
        if direct:
            M = M + lax.optimization_barrier(direct[0].T) @ At_c
            Kfu_bar = Kfu_bar + triangular.solve_right_transposed(L, direct[0] / sigma)
        _, pull = jax.vjp(lambda k, z: k(X_c, z), kernel, Z)
        return (jax.tree.map(jnp.add, grads, pull(Kfu_bar)), M), None

    zeros = jax.tree.map(jnp.zeros_like, (kernel, Z))
    arrays = (X, At, r) if At_bar is None else (X, At, r, At_bar)
    rows = tuple(_chunked(array) for array in arrays)
    ((kernel_bar, Z_bar), M), _ = lax.scan(chunk, (zeros, M), rows)

    phi = jnp.tril(M) - 0.5 * jnp.diag(jnp.diagonal(M))
    Kuu_bar = -(L_inverse.T @ phi @ L_inverse)
    Kuu_bar = 0.5 * (Kuu_bar + Kuu_bar.T)
    _, pull = jax.vjp(lambda k, z: _kuu(k, z, factors.jitter), kernel, Z)
    kernel_uu, Z_uu = pull(Kuu_bar)
    return (
        jax.tree.map(jnp.add, kernel_bar, kernel_uu),
        -0.5 * jnp.trace(M) / noise,
        Z_bar + Z_uu,
        At @ c_bar,
    )
