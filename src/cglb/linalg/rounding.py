"""How far rounding can move what is computed from K̂: the numbers by which certificates are widened.

u = 2⁻⁵³ and γ(k) = ku/(1 − ku) bound the error of sums of k products, in any order. τ bounds the error
of an entry of K relative to √(kᵢᵢkⱼⱼ) (`Kernel.rounding`). Norms of matrices are Frobenius norms: one
with entries of at most c√(aᵢᵢaⱼⱼ) has a norm of at most c·tr A. The proofs are in docs/bounds.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from cglb.compute import shards
from cglb.compute.shards import RowShards, Tall
from cglb.kernels.base import Kernel
from cglb.linalg.nystrom import Nystrom
from cglb.linalg.quadratic import QuadraticInterval, quadratic_interval
from cglb.linalg.row_noise import log_size

if TYPE_CHECKING:
    from cglb.linalg.cg import Solution
    from cglb.linalg.system import System

__all__ = ["Rounding", "dense_rounding", "gamma", "provable_jitter"]

UNIT = 2.0**-53
# operations per entry that are not part of a long sum
FEW = 16


def gamma(terms: float) -> float:
    """γ(k) = ku/(1 − ku), with a few more operations; infinite where it says nothing."""
    share = (terms + FEW) * UNIT
    return share / (1.0 - share) if share < 1.0 else np.inf


def _ratio(error: float, floor: float) -> float:
    """error/(floor − error): the relative change of numbers that were at least `floor`."""
    return error / (floor - error) if error < floor else np.inf


def provable_jitter(kernel: Kernel, d: int, m: int) -> float:
    """The jitter, relative to the mean of diag Kuu, that outweighs the rounding of Kuu and of L."""
    return 4.0 * m * (kernel.rounding(d) + gamma(m))


class DenseRounding(NamedTuple):
    """Bounds on the errors of a Cholesky factorisation of K̂.

    Attributes:
        logdet: of log|K̂|.
        quadratic: of eᵀK̂⁻¹e.
    """

    logdet: float
    quadratic: float


def dense_rounding(
    kernel: Kernel,
    noise: float,
    X: Float[Array, "n d"],
    e: Float[Array, " n"],
    norm: float,
) -> DenseRounding:
    """Of log|K̂| and of eᵀα by a Cholesky factor of K̂, for an α = K̂⁻¹e of at most this norm: O(n).

    The factor and the solve are exact for K̂ + Δ with ‖Δ‖ ≤ B = (τ + γ(3n))·tr K̂. The eigenvalues of K̂,
    all at least σ², move by Δ in the sum of squares: |Δ log|K̂|| ≤ √n·B/(σ² − B). The form moves by
    αᵀΔα' with (K̂ + Δ)α' = e. Infinite where B reaches σ²: there float64 says nothing.
    """
    n = X.shape[0]
    trace = float(_prior_trace(kernel, X)) + n * noise
    error = (kernel.rounding(X.shape[1]) + gamma(3 * n)) * trace
    growth = _ratio(error, noise)
    form = error * norm**2 * (1.0 + growth) + 4.0 * gamma(n) * norm * float(_norms(e))
    logdet = float(np.sqrt(n)) * growth + 4.0 * gamma(n) * log_size(kernel, noise, X)
    return DenseRounding(logdet, form if np.isfinite(growth) else np.inf)


@dataclass(frozen=True)
class Rounding:
    """What rounding can change in bounds that use K̂ by products and Q̂ by its factors.

    Attributes:
        n: rows.
        m: inducing points.
        entry: τ.
        noise: σ².
        trace: tr K.
        largest: the largest prior variance.
        logs: Σ (1 + |log Dᵢ|), Dᵢ the noise variance of each row.
        explained: ‖A‖².
        missing: ε, a bound on the trace of a P ⪰ 0 with K̂ + P ⪰ Q̂ for the computed factors of Q̂.
        separation: at most the smallest eigenvalue of I + AAᵀ scaled to a unit diagonal; 0 if unknown.
    """

    n: int
    m: int
    entry: float
    noise: float
    trace: float
    largest: float
    logs: float
    explained: float
    missing: float
    separation: float

    @classmethod
    def of(cls, system: System) -> Rounding:
        """For a system with concrete arrays: O(nm + m³), or O(nm²) where its jitter proves nothing."""
        kernel, factors = system.gp.kernel, system.nystrom
        d, diag = system.X.shape[1], np.asarray(factors.k_diag)
        trace, entry = float(np.sum(diag)), kernel.rounding(d)
        missing = _missing(factors, kernel, system.Z, trace, entry)
        explained = _explained(factors.At)
        noise = float(system.gp.noise)
        logs = log_size(kernel, noise, system.X)
        separation = _separation(factors)
        sizes = entry, noise, trace, float(diag.max()), logs, explained, missing, separation
        return cls(system.n, system.m, *sizes)

    @cached_property
    def product(self) -> float:
        """B: ‖computed K̂v − K̂v‖ ≤ B‖v‖."""
        return (self.entry + gamma(self.n)) * (self.trace + self.n * self.noise)

    @cached_property
    def lost(self) -> float:
        """ε/σ², infinite from 1 on."""
        return self.missing / self.noise if self.missing < self.noise else np.inf

    @cached_property
    def logdet_B(self) -> float:
        """Of log|I + AAᵀ|: √m·D/(1 − D), D = γ(n + m)·min(m/λ, m + ‖A‖²), λ the separation.

        Rounding changes entry (i, j) of B = I + AAᵀ by at most γ(n + m)√(bᵢᵢbⱼⱼ). In units of its
        diagonal, the change has a norm of at most γ(n + m)m and the smallest eigenvalue of B is λ. With
        greedy points the rows of A shrink from first to last, and λ is far from 0 although B is
        ill-conditioned.
        """
        scaled = self.m / self.separation if self.separation > 0.0 else np.inf
        return self._sum_of_logs(min(scaled, self.m + self.explained))

    @cached_property
    def eigenvalues_B(self) -> float:
        """Of Σ log λᵢ(I + AAᵀ), one by one: √m·D/(1 − D), D = γ(n + m)(m + ‖A‖²), for I + AAᵀ ⪰ I."""
        return self._sum_of_logs(self.m + self.explained)

    def _sum_of_logs(self, size: float) -> float:
        """√m·D/(1 − D), D = γ(n + m)·size."""
        return float(np.sqrt(self.m)) * _ratio(gamma(self.n + self.m) * size, 1.0)

    @cached_property
    def logdet(self) -> float:
        """Of a bound on log|K̂| by log|Q̂| and diag(K − Q), from above or from below."""
        return 2.0 * self.logdet_B + self._residual

    @cached_property
    def spectrum(self) -> float:
        """The same for a bound by all eigenvalues of Q̂ instead of log|Q̂|."""
        return 2.0 * self.eigenvalues_B + self._residual

    @cached_property
    def _residual(self) -> float:
        """What E = K − Q and sums add.

        What E lacks to be positive semi-definite, ε, and the rounding of its diagonal, γ(m)·tr K, change
        log|I + E/σ²| and its bounds by at most their sum over σ².
        """
        diagonal = (self.entry + 2.0 * gamma(self.m)) * self.trace / self.noise
        lost = -float(np.log1p(-self.lost)) if self.lost < 1.0 else np.inf
        size = self.logs + self.m * (1.0 + float(np.log1p(self.explained)))
        return lost + diagonal + 4.0 * gamma(self.n) * size

    def precise_quadratic(
        self, system: System, e: Float[Array, " n"], solution: Solution
    ) -> QuadraticInterval:
        """`quadratic` with K̂v made again as precisely as float64 can: one more pass over K̂."""
        K_hat_v, terms = system.operator.precise(solution.v)
        r = e - K_hat_v
        slack = 0.5 * jnp.vdot(r, system.nystrom.solve(r))
        entry = system.gp.kernel.rounding(system.X.shape[1], differences=True)
        product = (entry + gamma(terms)) * (self.trace + self.n * self.noise)
        return self.quadratic(e, replace(solution, K_hat_v=K_hat_v, slack=slack), product=product)

    def quadratic(
        self,
        e: Float[Array, "n *t"],
        solution: Solution,
        error: float | np.ndarray = 0.0,
        product: float | None = None,
    ) -> QuadraticInterval:
        """2eᵀv − vᵀK̂v ≤ eᵀK̂⁻¹e ≤ 2eᵀv − vᵀK̂v + rᵀQ̂⁻¹r, certain in floating point, column by column.

        Args:
            e: the vectors of the form.
            solution: of K̂v ≈ e.
            error: a bound on the norm of the rounding of e itself, one number or one per column.
            product: a B with ‖computed K̂v − K̂v‖ ≤ B‖v‖; by default that of any product.
        """
        B = self.product if product is None else product
        v, K_hat_v, r = _norms(solution.v), _norms(solution.K_hat_v), _norms(e - solution.K_hat_v)
        size, noise = _norms(e), self.noise
        middle = np.asarray(quadratic_interval(e, solution.v, solution.K_hat_v, solution.slack).lower)
        off = B * v**2 + gamma(self.n) * v * (3.0 * size + K_hat_v) + 2.0 * error * v
        # rᵀQ̂⁻¹r in floating point, or without Q̂
        form = 2.0 * np.asarray(solution.slack)
        change = 2.0 * gamma(self.n + 3 * self.m) * (self.m + self.explained)
        rest = r**2 / noise
        if self.lost < 1.0:
            rest = np.minimum(rest, (form + change * rest) / (1.0 - self.lost))
        moved = (error + B * v + gamma(0) * (size + K_hat_v)) / np.sqrt(noise)
        upper = middle + off + (np.sqrt(rest) + moved) ** 2
        return QuadraticInterval(jnp.asarray(middle - off), jnp.asarray(upper))


def _norms(V: Array) -> np.ndarray:
    return np.asarray(_norm_by_column(V))


@jax.jit
def _norm_by_column(V: Array) -> Array:
    return jnp.sqrt(jnp.sum(V * V, axis=0))


@jax.jit
def _prior_trace(kernel: Kernel, X: Array) -> Array:
    """tr K."""
    return jnp.sum(kernel.diag(X))


def _missing(factors: Nystrom, kernel: Kernel, Z: Array, trace: float, entry: float) -> float:
    """ε: by the jitter if that outweighs the rounding of Kuu, otherwise by the weights W = Kuu⁻¹Kuf.

    LLᵀ = Kuu + jI + G and LσA = Kuf + F with ‖G‖ ≤ g = (τ + γ(m))·tr Kuu and
    ‖F‖ ≤ f = (τ + γ(m))√(tr Kuu·tr K). If g ≤ j/2, then ε = 2f²/j. In any case ε = g‖W‖² + 2f‖W‖.
    """
    m, prior = factors.m, float(_prior_trace(kernel, Z))
    error = entry + gamma(m)
    in_kuu, in_kuf = error * prior, error * float(np.sqrt(prior * trace))
    jitter = float(factors.jitter) * prior / m
    if in_kuu <= 0.5 * jitter:
        return 2.0 * in_kuf**2 / jitter
    weights = float(_weights_norm(factors))
    return in_kuu * weights**2 + 2.0 * in_kuf * weights


def _explained(At: Tall) -> float:
    """‖A‖²."""
    if isinstance(At, RowShards):
        return float(_squared_norm(At))
    rows = np.asarray(At)
    return float(np.vdot(rows, rows))


_squared_norm = jax.jit(shards.squared_norm)


def _separation(factors: Nystrom) -> float:
    """λ: the smallest eigenvalue of (D⁻¹LB)(D⁻¹LB)ᵀ, D² = diag(I + AAᵀ), less its own rounding.

    The factor differs from that of I + AAᵀ by γ(n + m)m, the eigenvalues by γ(10m) of a norm of at most
    m.
    """
    scaled = np.asarray(factors.LB)
    scaled = scaled / np.sqrt(np.sum(scaled * scaled, axis=1))[:, None]
    smallest = float(np.linalg.eigvalsh(scaled @ scaled.T)[0])
    rounding = (gamma(factors.n + factors.m) + gamma(10 * factors.m)) * factors.m
    return max(smallest - rounding, 0.0)


@jax.jit
def _weights_norm(factors: Nystrom) -> Array:
    """‖Kuu⁻¹Kuf‖ = ‖L⁻ᵀσA‖."""

    def squares(At: Array, L: Array) -> Array:
        W = solve_triangular(L, At.T, lower=True, trans="T")
        return jnp.sum(W * W)

    return jnp.sqrt(factors.noise * shards.total(squares, factors.At, factors.L))
