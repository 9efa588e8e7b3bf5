"""What bounds know about K̂, from its Nyström factors: as values, or as functions of the model and Z.

`linearise` gives the same numbers as the factors, differentiable in gp, Z and r. The forward pass costs
nothing, the backward pass the matrix products of `nystrom_gradient.gram`.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from cglb.compute import shards, triangular
from cglb.compute.shards import Tall
from cglb.kernels import Kernel
from cglb.linalg import row_noise
from cglb.linalg.nystrom import Nystrom
from cglb.linalg.nystrom_gradient import gram
from cglb.model import GP

__all__ = ["View", "inverse_form", "linearise", "logdet_plus_identity"]


class View(eqx.Module):
    """The input of bounds on log|K̂|: σ², G = AAᵀ and, for some bounds, A.

    E = K − Q ⪰ 0 is what the inducing points do not explain, δ its diagonal. For rows with noise of
    their own, K̂ is in units of that noise. Rows that count for nothing are neither in n nor in log|K̂|.

    Attributes:
        kernel: k.
        noise: σ².
        X: inputs.
        G: AAᵀ.
        LB: the Cholesky factor of I + G, held fixed: gradients go through G.
        At: Aᵀ; None if the bound does not declare `rows`.
    """

    kernel: Kernel
    noise: Float[Array, ""]
    X: Float[Array, "n d"]
    G: Float[Array, "m m"]
    LB: Float[Array, "m m"]
    At: Tall | None

    @property
    def n(self) -> Any:
        """The rows that count: a number, or JAX's inside a trace."""
        return row_noise.number(self.kernel, self.X)

    @property
    def m(self) -> int:
        return self.G.shape[0]

    @property
    def rows(self) -> Tall:
        """Aᵀ, for bounds that declare `rows`."""
        if self.At is None:
            raise ValueError("This bound uses A itself: its class must set `rows = True`.")
        return self.At

    @property
    def residual_trace(self) -> Float[Array, ""]:
        """tr(E), never below 0."""
        return _residual_trace(self.kernel, self.noise, self.X, self.G)

    @property
    def residual_diag(self) -> Float[Array, " n"]:
        """δ, never below 0."""
        explained = self.noise * shards.row_products(self.rows, self.rows)
        return jnp.maximum(self.kernel.diag(self.X) - explained, 0.0)

    @property
    def logdet_Q(self) -> Float[Array, ""]:
        """log|Q̂| = n log σ² + log|I + G|."""
        return _logdet_Q(self.n, self.noise, self.logdet_B)

    @property
    def logdet_B(self) -> Float[Array, ""]:
        """log|I + G|."""
        return logdet_plus_identity(self.G, self.LB)  # pyright: ignore[reportReturnType]

    @property
    def eigenvalues(self) -> Float[Array, " m"]:
        """The m largest eigenvalues of Q̂, ascending, differentiable even if some are equal."""
        _, U = jnp.linalg.eigh(lax.stop_gradient(self.G))
        return self.noise * (1.0 + jnp.maximum(jnp.sum(U * (self.G @ U), axis=0), 0.0))


def linearise(
    factors: Nystrom,
    gp: GP,
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    r: Float[Array, " n"],
    rows: bool,
) -> tuple[View, Float[Array, ""]]:
    """The view and rᵀQ̂⁻¹r, differentiable in gp, Z and r.

    Args:
        factors: of Q̂ at the same values of gp and Z.
        gp: the model.
        X: inputs, held fixed.
        Z: inducing points.
        r: any vector, such as a residual.
        rows: whether the view holds A, which makes the backward pass more expensive.
    """
    G, c, At = gram(gp, X, Z, r, factors, rows)
    noise = jnp.asarray(gp.noise)
    return View(gp.kernel, noise, X, G, factors.LB, At), inverse_form(r, noise, G, c, factors.LB)


# one program each, not one per operation


@jax.jit
def _residual_trace(kernel: Kernel, noise: Array, X: Array, G: Array) -> Array:
    return jnp.maximum(jnp.sum(kernel.diag(X)) - noise * jnp.trace(G), 0.0)


@jax.jit
def _logdet_Q(n: Any, noise: Array, logdet_B: Array) -> Array:
    return n * jnp.log(noise) + logdet_B


@jax.jit
def inverse_form(r: Array, noise: Array, G: Array, c: Array, LB: Array) -> Array:
    """rᵀQ̂⁻¹r for c = Ar."""
    return (r @ r - _inverse_quadratic(G, c, LB)) / noise


@jax.custom_vjp
def logdet_plus_identity(G: Float[Array, "m m"], LB: Float[Array, "m m"]) -> Float[Array, ""]:
    """log|I + G| given the Cholesky factor of I + G; the gradient in G is (I + G)⁻¹, by products."""
    return _logdet(LB)


@jax.jit
def _logdet(L: Array) -> Array:
    return 2.0 * jnp.sum(jnp.log(jnp.diagonal(L)))


def _logdet_forward(G: Array, LB: Array) -> tuple[Array, Array]:
    return logdet_plus_identity(G, LB), LB


@jax.jit
def _logdet_backward(LB: Array, g: Array) -> tuple[Array, Array]:
    inverse = triangular.inverse(LB)
    return g * (inverse.T @ inverse), jnp.zeros_like(LB)


logdet_plus_identity.defvjp(_logdet_forward, _logdet_backward)


@jax.custom_vjp
def _inverse_quadratic(G: Array, c: Array, LB: Array) -> Array:
    """cᵀ(I + G)⁻¹c given the Cholesky factor of I + G; gradients go through G and c."""
    return _inverse_quadratic_forward(G, c, LB)[0]


@jax.jit
def _inverse_quadratic_forward(G: Array, c: Array, LB: Array) -> tuple[Array, tuple[Array, Array]]:
    x = cho_solve((LB, True), c)
    return c @ x, (x, LB)


@jax.jit
def _inverse_quadratic_backward(residuals: Any, g: Array) -> tuple[Array, Array, Array]:
    x, LB = residuals
    return -g * jnp.outer(x, x), 2.0 * g * x, jnp.zeros_like(LB)


_inverse_quadratic.defvjp(_inverse_quadratic_forward, _inverse_quadratic_backward)
