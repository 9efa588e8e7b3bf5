"""The Nyström matrix Q̂ = Kfu Kuu⁻¹ Kuf + σ²I through two small factors.

    Kuu = L Lᵀ,   A = L⁻¹ Kuf / σ,   I + A Aᵀ = LB LBᵀ,   so   Q̂ = σ²(I + AᵀA),   K̂ ⪰ Q̂ ⪰ σ²I.

One object serves three purposes: SGPR's terms, CG's preconditioner and the sparse part of predictions.
A is kept transposed, `At` [n, m], so that work goes by rows. Adding jitter to Kuu only shrinks Q̂, so
every bound stays a bound. `nystrom_gradient.gram` is the differentiable part.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from cglb.compute import assemble, shards
from cglb.compute.backend import backend_of, one_program
from cglb.compute.parallel import matrices_of
from cglb.compute.shards import Tall
from cglb.core.errors import NystromError
from cglb.core.precision import is_traced
from cglb.kernels.base import Kernel
from cglb.model import GP

__all__ = ["DEFAULT_JITTER", "Nystrom", "factor", "kuu"]

# what is added to diag(Kuu), relative to its mean
DEFAULT_JITTER = 1e-12
LARGEST_JITTER = 1e-3
SMALLEST_RETRY = 1e-14  # what a jitter of 0 counts as where it has to grow
JITTER_GROWTH = 10.0
# a jitter this close to the largest one is the largest one, whatever rounding says
AT_THE_LIMIT = 0.99


class Nystrom(eqx.Module):
    """Factors of Q̂ for n rows and m inducing points."""

    At: Tall
    L: Float[Array, "m m"]
    G: Float[Array, "m m"]
    LB: Float[Array, "m m"]
    noise: Float[Array, ""]
    k_diag: Float[Array, " n"]
    jitter: Float[Array, ""]  # what was added to diag(Kuu), relative to its mean

    @property
    def n(self) -> int:
        """Rows."""
        return self.At.shape[0]

    @property
    def m(self) -> int:
        """Inducing points."""
        return self.At.shape[1]

    def solve(self, R: Float[Array, "n *t"]) -> Float[Array, "n *t"]:
        """Q̂⁻¹R = (R − Aᵀ(I + AAᵀ)⁻¹A R)/σ², O(nm) per column."""
        return _solve(self, R)

    def project(self, R: Float[Array, "n *t"]) -> Float[Array, "m *t"]:
        """A R, O(nm) per column."""
        return _project(self.At, R)

    @property
    def logdet(self) -> Float[Array, ""]:
        """log|Q̂| = n log σ² + log|I + AAᵀ|."""
        return _logdet(self)

    @property
    def residual_diag(self) -> Float[Array, " n"]:
        """δ = diag(K − Q), never below 0."""
        return _residual_diag(self)

    def inducing_weights(self, r: Float[Array, " n"]) -> Float[Array, " m"]:
        """Kuu⁻¹ Kuf Q̂⁻¹ r: the weights on k(Z, ·) in SGPR's mean."""
        return _inducing_weights(self, r)


@jax.jit
def _project(At: Tall, R: Array) -> Array:
    return shards.project(At, R)


@jax.jit
def _solve(factors: Nystrom, R: Array) -> Array:
    inner = cho_solve((factors.LB, True), factors.project(R))
    return (R - shards.expand(factors.At, inner)) / factors.noise


@jax.jit
def _logdet(factors: Nystrom) -> Array:
    return factors.n * jnp.log(factors.noise) + 2.0 * jnp.sum(jnp.log(jnp.diagonal(factors.LB)))


@jax.jit
def _residual_diag(factors: Nystrom) -> Array:
    explained = factors.noise * shards.row_products(factors.At, factors.At)
    return jnp.maximum(factors.k_diag - explained, 0.0)


@jax.jit
def _inducing_weights(factors: Nystrom, r: Array) -> Array:
    inner = cho_solve((factors.LB, True), factors.project(r))
    return solve_triangular(factors.L, inner, lower=True, trans="T") / jnp.sqrt(factors.noise)


def factor(
    gp: GP, X: Float[Array, "n d"], Z: Float[Array, "m d"], jitter: float = DEFAULT_JITTER
) -> Nystrom:
    """Q̂'s factors: 2nm² flops by BLAS, 3nm² by XLA; n·m memory.

    Args:
        jitter: added to diag(Kuu) relative to its mean. Where the Cholesky factorisation fails it grows
            by 10 until it works (the amount is in the result).

    Raises:
        NystromError: if a jitter of 1e-3 is not enough (not inside a trace, which gives NaN).
    """
    if not is_traced(jitter) and not 0.0 <= jitter < np.inf:  # a negative one would break the bounds
        raise ValueError(f"jitter must be finite and at least 0, found {jitter}.")
    with matrices_of(Z.shape[0]):
        found, factored = _factor(gp, X, Z, jnp.asarray(jitter, dtype=X.dtype))
        failed = not is_traced(factored) and not bool(factored)
    if failed:
        raise NystromError(_why_not(gp, Z))
    return found


@one_program
def _factor(gp: GP, X: Array, Z: Array, jitter: Array) -> tuple[Nystrom, Array]:
    """The factors, and whether there are any."""
    noise = jnp.asarray(gp.noise)
    L, jitter, sigma, k_diag = _factor_kuu(gp.kernel, noise, X, Z, jitter)
    At, G = backend_of(gp, X, Z, jitter).nystrom_rows(gp.kernel, sigma, X, Z, L)
    LB, factored = _factor_B(G)
    return Nystrom(At, L, G, LB, noise, k_diag, jitter), factored


def _why_not(gp: GP, Z: Array) -> str:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(gp)]
    if not all(np.isfinite(leaf).all() for leaf in leaves):
        cause = "a hyperparameter is not finite"
    elif not np.isfinite(np.asarray(gp.kernel(Z, Z))).all():
        cause = "the kernel gives values that are not finite at the inducing points"
    elif len(np.unique(np.asarray(Z), axis=0)) < Z.shape[0]:
        cause = "some inducing points coincide; choose distinct ones"
    else:
        cause = "the kernel is not positive definite, or its lengthscales are far beyond the data"
    return (
        f"Kuu [{Z.shape[0]} x {Z.shape[0]}] has no Cholesky factor with jitter up to "
        f"{LARGEST_JITTER:g} of its mean diagonal. Likely cause: {cause}."
    )


def kuu(kernel: Kernel, Z: Float[Array, "m d"], jitter: Float[Array, ""]) -> Float[Array, "m m"]:
    """k(Z, Z) with the jitter on its diagonal."""
    return assemble.dense(kernel, jitter * jnp.mean(kernel.diag(Z)), Z)


@jax.jit
def _factor_kuu(
    kernel: Kernel, noise: Array, X: Array, Z: Array, jitter: Array
) -> tuple[Array, Array, Array, Array]:
    """(L, the jitter it took, σ, diag K)."""

    def failed(state: tuple[Array, Array]) -> Array:
        L, jitter = state
        return ~jnp.isfinite(L[-1, -1]) & (jitter < AT_THE_LIMIT * LARGEST_JITTER)

    def retry(state: tuple[Array, Array]) -> tuple[Array, Array]:
        grown = JITTER_GROWTH * jnp.maximum(state[1], SMALLEST_RETRY)
        jitter = jnp.minimum(grown, LARGEST_JITTER)
        return jnp.linalg.cholesky(kuu(kernel, Z, jitter)), jitter

    first = jnp.linalg.cholesky(kuu(kernel, Z, jitter)), jitter
    L, jitter = lax.while_loop(failed, retry, first)
    return L, jitter, jnp.sqrt(noise), kernel.diag(X)


@jax.jit
def _factor_B(G: Array) -> tuple[Array, Array]:
    """(LB, whether it has one)."""
    LB = jnp.linalg.cholesky(G + jnp.eye(G.shape[0], dtype=G.dtype))
    return LB, jnp.isfinite(LB[-1, -1])
