"""Bounds on log|K̂| that need only the Nyström factors: O(n + m³) once those are there.

Upper bounds, from loose to tight (each is at most the one before, except that `hadamard` and
`waterfill` are not ordered between themselves):

    trace      log|Q̂| + tr(E)/σ²                          SGPR's
    amgm       log|Q̂| + n log(1 + tr(E)/(nσ²))            the paper's, by AM-GM
    hadamard   log|Q̂| + Σ log(1 + δᵢ/σ²)                  at most amgm, by Jensen
    waterfill  max Σ log(ℓᵢ + eᵢ), eᵢ ≥ 0, Σeᵢ = tr(E)    the appendix's, over the eigenvalues ℓ of Q̂

Lower bounds: nystrom is log|Q̂|, spectral is log|Q̂| + log(1 + tr(E)/ℓ₁), ℓ₁ the largest eigenvalue.
Here E = K − Q ⪰ 0 and δ = diag E.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from cglb import triangular
from cglb.kernels import Kernel

__all__ = ["LOWER", "UPPER", "LogdetBound", "Spectrum", "find"]


class Spectrum(eqx.Module):
    """What the bounds look at: the model on the data through σ², G = AAᵀ and, on request, A."""

    kernel: Kernel
    noise: Float[Array, ""]
    X: Float[Array, "n d"]
    G: Float[Array, "m m"]
    LB: Float[Array, "m m"]  # I + G = LB LBᵀ, held fixed: gradients go through G
    At: Float[Array, "n m"] | None  # only for bounds that declare `rows`

    @property
    def n(self) -> int:
        return self.X.shape[0]

    @property
    def residual_trace(self) -> Float[Array, ""]:
        """tr(E), never below 0."""
        return jnp.maximum(jnp.sum(self.kernel.diag(self.X)) - self.noise * jnp.trace(self.G), 0.0)

    @property
    def residual_diag(self) -> Float[Array, " n"]:
        """δ, never below 0."""
        assert self.At is not None
        explained = self.noise * jnp.sum(self.At * self.At, axis=1)
        return jnp.maximum(self.kernel.diag(self.X) - explained, 0.0)

    @property
    def logdet_Q(self) -> Float[Array, ""]:
        """log|Q̂| = n log σ² + log|I + G|."""
        return self.n * jnp.log(self.noise) + self.logdet_B

    @property
    def logdet_B(self) -> Float[Array, ""]:
        """log|I + G|."""
        return logdet_plus_identity(self.G, self.LB)  # pyright: ignore[reportReturnType]

    @property
    def eigenvalues(self) -> Float[Array, " m"]:
        """The m largest eigenvalues of Q̂, ascending, differentiable also where they coincide."""
        _, U = jnp.linalg.eigh(lax.stop_gradient(self.G))
        return self.noise * (1.0 + jnp.maximum(jnp.sum(U * (self.G @ U), axis=0), 0.0))


@jax.custom_vjp
def logdet_plus_identity(G: Float[Array, "m m"], LB: Float[Array, "m m"]) -> Float[Array, ""]:
    """log|I + G| given the Cholesky factor of I + G; the gradient in G is (I + G)⁻¹, by products."""
    return 2.0 * jnp.sum(jnp.log(jnp.diagonal(LB)))


def _logdet_forward(G: Array, LB: Array) -> tuple[Array, Array]:
    return logdet_plus_identity(G, LB), LB


@jax.jit
def _logdet_backward(LB: Array, g: Array) -> tuple[Array, Array]:
    inverse = triangular.inverse(LB)
    return g * (inverse.T @ inverse), jnp.zeros_like(LB)


logdet_plus_identity.defvjp(_logdet_forward, _logdet_backward)


def trace(spectrum: Spectrum) -> Float[Array, ""]:
    """log|K̂| ≤ log|Q̂| + tr(E)/σ²."""
    return spectrum.logdet_Q + spectrum.residual_trace / spectrum.noise


def amgm(spectrum: Spectrum) -> Float[Array, ""]:
    """log|K̂| ≤ log|Q̂| + n log(1 + tr(E)/(nσ²)): the geometric mean of 1 + (λᵢ − ℓᵢ)/σ² is at most
    its arithmetic mean."""
    n = spectrum.n
    return spectrum.logdet_Q + n * jnp.log1p(spectrum.residual_trace / (n * spectrum.noise))


def hadamard(spectrum: Spectrum) -> Float[Array, ""]:
    """log|K̂| ≤ log|Q̂| + Σ log(1 + δᵢ/σ²): K̂ = Q̂ + E and Q̂ ⪰ σ²I give
    log|K̂| − log|Q̂| = log|I + Q̂^(−½)EQ̂^(−½)| ≤ log|I + E/σ²|, then Hadamard's inequality."""
    return spectrum.logdet_Q + jnp.sum(jnp.log1p(spectrum.residual_diag / spectrum.noise))


def waterfill(spectrum: Spectrum) -> Float[Array, ""]:
    """log|K̂| ≤ max Σᵢ log(ℓᵢ + eᵢ) over e ≥ 0 with Σe = tr(E).

    The maximum pours tr(E) over the spectrum like water: every level below the water line w is raised
    to w. With k of the m eigenvalues under water beside the n − m that equal σ²,
    w = (tr(E) + Σ of those levels)/(n − m + k); exactly one k is consistent. O(n + m log m).
    """
    ell = spectrum.eigenvalues
    m, floor_count = ell.shape[0], spectrum.n - ell.shape[0]
    k = jnp.arange(m + 1)
    below = jnp.concatenate([jnp.zeros(1, dtype=ell.dtype), jnp.cumsum(ell)])
    count = (floor_count + k).astype(ell.dtype)
    levels = (spectrum.residual_trace + floor_count * spectrum.noise + below) / jnp.maximum(count, 1.0)
    next_level = jnp.concatenate([ell, jnp.full(1, jnp.inf, dtype=ell.dtype)])
    # the first k whose water line stays under the next eigenvalue (none can be under water if count = 0)
    fits = (levels <= next_level) & (count > 0.0)
    chosen = lax.stop_gradient(jnp.argmax(fits))
    submerged = jnp.arange(m) < chosen
    dry = jnp.sum(jnp.where(submerged, 0.0, jnp.log(ell)))
    return count[chosen] * jnp.log(levels[chosen]) + dry


def nystrom(spectrum: Spectrum) -> Float[Array, ""]:
    """log|K̂| ≥ log|Q̂|."""
    return spectrum.logdet_Q


def spectral(spectrum: Spectrum) -> Float[Array, ""]:
    """log|K̂| ≥ log|Q̂| + log(1 + tr(E)/ℓ₁): the product Π(1 + eᵢ/ℓᵢ) is at least 1 + Σeᵢ/ℓᵢ."""
    return spectrum.logdet_Q + jnp.log1p(spectrum.residual_trace / spectrum.eigenvalues[-1])


class LogdetBound(eqx.Module):
    """A bound by name. `rows`: it needs A itself, not only AAᵀ, which makes gradients dearer."""

    function: Callable[[Spectrum], Float[Array, ""]] = eqx.field(static=True)
    name: str = eqx.field(static=True)
    rows: bool = eqx.field(static=True, default=False)
    side: str = eqx.field(static=True, default="above")

    def prepare(self, kernel: Kernel, X: Float[Array, "n d"]) -> LogdetBound:
        """Itself: nothing here depends on the data."""
        return self

    def __call__(self, spectrum: Spectrum) -> Float[Array, ""]:
        """The bound on log|K̂|."""
        return _compiled(self.function, spectrum)


@partial(jax.jit, static_argnums=0)
def _compiled(function: Callable[[Spectrum], Array], spectrum: Spectrum) -> Array:
    return function(spectrum)


UPPER: Mapping[str, LogdetBound] = {
    "trace": LogdetBound(trace, "trace"),
    "amgm": LogdetBound(amgm, "amgm"),
    "hadamard": LogdetBound(hadamard, "hadamard", rows=True),
    "waterfill": LogdetBound(waterfill, "waterfill"),
}
LOWER: Mapping[str, LogdetBound] = {
    "nystrom": LogdetBound(nystrom, "nystrom", side="below"),
    "spectral": LogdetBound(spectral, "spectral", side="below"),
}


def find(logdet: Any, among: Mapping[str, Any]) -> Any:
    """The bound a name stands for; bounds and their settings pass through if they bound that side.

    `among` is a table of upper or of lower bounds; ValueError with the names there are.
    """
    if isinstance(logdet, str) and logdet in among:
        return among[logdet]
    side = next(iter(among.values())).side
    if not isinstance(logdet, str) and getattr(logdet, "side", None) == side:
        return logdet
    raise ValueError(
        f"logdet must be one of {', '.join(among)}, or an object that bounds log|K̂| from {side}, "
        f"found {logdet!r}."
    )
