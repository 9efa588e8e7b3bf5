"""log|K̂| by stochastic Lanczos quadrature, whitened by the chain: an estimate with a known spread.

The chain gives a W with WᵀW = P⁻¹ and P ≈ K̂ (see `preconditioners`), so M = WK̂Wᵀ is near I and

    log|K̂| = log|P| + tr log M,   E[zᵀ log(M) z] = tr log M   for z with independent signs.

k Lanczos steps from z give a tridiagonal T. Gauss' rule ‖z‖²·e₁ᵀ log(T) e₁ is never below zᵀ log(M) z,
because the even derivatives of the logarithm are negative. The rule of Gauss and Radau, with one more
node at a ≤ λ_min(M), is never above it, because the odd ones are positive. Only the mean is random.

Its variance is known better than from the scatter of a few probes: that of zᵀ log(M) z is at most
2‖log M‖² (it lacks the diagonal), and the same T gives ‖log(M) z‖², whose mean is ‖log M‖².
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.linalg import eigh_tridiagonal, solve_banded

from cglb.compute.products import transposed_product
from cglb.linalg import row_noise
from cglb.linalg.blocks import Blocks
from cglb.linalg.krylov import dot
from cglb.linalg.preconditioners import whole_chain
from cglb.linalg.system import System

__all__ = ["PROBES", "LogQuadrature", "Probes"]

MOST_STEPS = 100
# Lanczos stops when the two rules differ by this share of the spread over probes
CLOSE = 0.05
PROBES = 8  # at a time: one product with K̂ for all of them
# standard errors by which the estimate of ‖log M‖² is raised: it must not be too small
ERRORS = 3.0


class _Whitening(eqx.Module):
    """W = (I + BBᵀ)^(−½)U/σ, with rows of padding that are 0."""

    U: Float[Array, "b p pk"]
    index: Int[Array, "b pk"]
    valid: Bool[Array, "b pk"]
    B: Float[Array, "bp m"]
    V: Float[Array, "m m"]  # BᵀB = V diag(λ) Vᵀ
    shrink: Float[Array, " m"]  # ((1 + λ)^(−½) − 1)/λ
    sigma: Float[Array, ""]

    @property
    def real(self) -> Bool[Array, " bp"]:
        return self.valid[:, -self.U.shape[1] :].reshape(-1)


@jax.jit
def _half(self: _Whitening, Y: Array) -> Array:
    """(I + BBᵀ)^(−½)Y."""
    inner = self.V @ (self.shrink[:, None] * (self.V.T @ transposed_product(self.B, Y)))
    return Y + self.B @ inner


@jax.jit
def _forward(self: _Whitening, R: Array) -> Array:
    """WR, [bp, t]."""
    gathered = jnp.where(self.valid[:, :, None], R[self.index], 0.0)
    return _half(self, jnp.einsum("bpk,bkt->bpt", self.U, gathered).reshape(-1, R.shape[1])) / self.sigma


@jax.jit
def _backward(self: _Whitening, Y: Array, like: Array) -> Array:
    """WᵀY, [n, t]."""
    half = _half(self, Y).reshape(*self.U.shape[:2], Y.shape[1])
    parts = jnp.where(self.valid[:, :, None], jnp.einsum("bpk,bpt->bkt", self.U, half), 0.0)
    zero = jnp.zeros((like.shape[0], Y.shape[1]), dtype=Y.dtype)
    return zero.at[self.index].add(parts) / self.sigma


class Probes(NamedTuple):
    """Brackets of zᵀ log(M) z and estimates of ‖log(M) z‖², one per probe."""

    lower: Float[np.ndarray, " t"]
    upper: Float[np.ndarray, " t"]
    squares: Float[np.ndarray, " t"]

    @classmethod
    def none(cls) -> Probes:
        return cls(*(np.zeros(0) for _ in cls._fields))

    @property
    def spread(self) -> float:
        """At least the standard deviation of zᵀ log(M) z, from ‖log M‖² and its own standard error."""
        error = float(np.std(self.squares, ddof=1)) / len(self.squares) ** 0.5
        return float((2.0 * (np.mean(self.squares) + ERRORS * error)) ** 0.5)


class LogQuadrature:
    """Estimates log|K̂| of a system from random probes, a few at a time.

    Args:
        system: with inducing points; its arrays are concrete.
        seed: of the probes.
        blocks: of the chain; by default those of the system.
    """

    def __init__(self, system: System, seed: int = 0, blocks: Blocks | None = None):
        self._system = system
        self._rng = np.random.default_rng(seed)
        chain = whole_chain(system.gp, system.X, system.nystrom, blocks or system.blocks)
        noise = float(system.gp.noise)
        values, V = np.linalg.eigh(np.asarray(transposed_product(chain.B, chain.B)))
        values = np.maximum(values, 0.0)
        shrink = -1.0 / (np.sqrt(1.0 + values) * (1.0 + np.sqrt(1.0 + values)))
        self._whitening = _Whitening(
            chain.U, chain.index, chain.valid, chain.B, jnp.asarray(V), jnp.asarray(shrink),
            jnp.sqrt(jnp.asarray(noise)),
        )  # fmt: skip
        pivots = np.diagonal(np.asarray(chain.U)[:, :, -chain.U.shape[1] :], axis1=1, axis2=2).reshape(
            -1
        )
        real = np.asarray(self._whitening.real)
        self.logdet_P = (
            system.n * np.log(noise)
            + float(row_noise.shift(system.gp.kernel, system.gp.noise, system.X))
            - 2.0 * float(np.sum(np.log(pivots[real])))
            + float(np.sum(np.log1p(values)))
        )
        # K̂ ⪰ σ²I, and no eigenvalue of P comes near n·tr K̂
        trace = float(jnp.sum(system.nystrom.k_diag)) + system.n * noise
        self._floor = noise / (system.n * trace)
        self.found = Probes.none()
        self.products = 0

    def restarted(self, seed: int) -> LogQuadrature:
        """The same matrix with other probes and none so far."""
        other = copy.copy(self)
        other._rng = np.random.default_rng(seed)
        other.found, other.products = Probes.none(), 0
        return other

    def more(self) -> None:
        """Add `PROBES` probes: at most `MOST_STEPS` products with K̂ of so many columns."""
        real = np.asarray(self._whitening.real)
        signs = self._rng.choice([-1.0, 1.0], size=(len(real), PROBES)) * real[:, None]
        n = self._system.count
        scale = np.sqrt(float(n))
        Q, alphas, betas = [jnp.asarray(signs / scale)], [], []
        upper = lower = squares = np.zeros(PROBES)
        for _ in range(min(MOST_STEPS, n)):
            w = self._apply(Q[-1])
            self.products += 1
            alphas.append(np.asarray(dot(Q[-1], w)))
            for q in (*Q, *Q):  # twice is enough in floating point
                w = _without(w, q)
            beta = np.asarray(jnp.sqrt(dot(w, w)))
            a, b = np.array(alphas), np.array(betas).reshape(-1, PROBES)
            upper, squares = n * np.array([_gauss(a[:, t], b[:, t]) for t in range(PROBES)]).T
            lower = n * np.array([_radau(a[:, t], b[:, t], beta[t], self._floor) for t in range(PROBES)])
            spread = (2.0 * float(np.mean(squares))) ** 0.5
            if float(np.mean(upper - lower)) <= CLOSE * spread or np.any(beta < 1e-10):
                break
            betas.append(beta)
            Q.append(w / jnp.asarray(beta)[None, :])
        lower = np.minimum(lower, upper)
        new = zip(self.found, (lower, upper, squares), strict=True)
        self.found = Probes(*(np.concatenate(pair) for pair in new))

    def interval(self, quantile: float) -> tuple[float, float]:
        """log|P| and the means of both rules, ± quantile · (standard deviation of such a mean)."""
        reach = quantile * self.found.spread / len(self.found.upper) ** 0.5
        low, high = (self.logdet_P + float(np.mean(side)) for side in self.found[:2])
        return low - reach, high + reach

    def _apply(self, Y: Array) -> Array:
        system = self._system
        return _forward(self._whitening, system.fast @ _backward(self._whitening, Y, system.X))


@jax.jit
def _without(w: Array, q: Array) -> Array:
    """w without its part along q, column by column."""
    return w - dot(q, w)[None, :] * q


def _gauss(alpha: np.ndarray, beta: np.ndarray) -> tuple[float, float]:
    """e₁ᵀ log(T) e₁ and e₁ᵀ log(T)² e₁."""
    values, vectors = eigh_tridiagonal(alpha, beta)
    weights, logs = vectors[0] ** 2, np.log(np.maximum(values, np.finfo(float).tiny))
    return float(weights @ logs), float(weights @ logs**2)


def _radau(alpha: np.ndarray, beta: np.ndarray, last: float, floor: float) -> float:
    """With one more node at `floor`: the last diagonal entry is chosen so that T has that eigenvalue."""
    if last < 1e-10:  # the Krylov space is exhausted, and Gauss' rule is exact
        return _gauss(alpha, beta)[0]
    off = np.concatenate([[0.0], beta])
    bands = np.stack([off, alpha - floor, np.concatenate([beta, [0.0]])])
    right = np.zeros(len(alpha))
    right[-1] = last**2
    extra = floor + solve_banded((1, 1), bands, right)[-1]
    return _gauss(np.concatenate([alpha, [extra]]), np.concatenate([beta, [last]]))[0]
