"""Iterative GP, the baseline of Wang et al. (2019): the evidence *estimated* by CG and random probes.

With P a preconditioner of low rank, z one of t probes with E zzᵀ = P, and CG solving for e and all
probes at once,

    log p(y) ≈ −(n/2) log 2π − ½ eᵀv − ½ (log|P| + (1/t) Σ ζᵀ log(M) ζ),   v ≈ K̂⁻¹e,
    dL ≈ ½ vᵀ dK̂ v − (1/2t) Σ uᵀ dK̂ w + (Σ v) dμ,                          u ≈ K̂⁻¹z,  w = P⁻¹z,

where ζ = P^{-1/2}z and M = P^{-1/2} K̂ P^{-1/2}; `lanczos.log_quadrature` gives ζᵀ log(M) ζ from CG's
coefficients. One pass over the tiles gives the gradient for all hyperparameters.

P is the pivoted Cholesky factorisation of K, cut off at the given rank, plus σ²I. That is the Nyström
matrix whose inducing points are the pivots, so `nystrom` has its solve, log-determinant and root.

The result is no bound. Solved exactly, it is unbiased with the spread that is reported. CG cut short
adds a bias of known direction to each term: eᵀv falls short of eᵀK̂⁻¹e, which raises the estimate, and
the quadrature overestimates log|K̂|, which lowers it. And as uᵀK̂w = zᵀP⁻¹z from the first step on, the
gradient along the overall scale of K̂ is ½eᵀv − n/2: too low for every draw, so that loose CG drives
variance and noise down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb import inducing, nystrom, tiles, triangular
from cglb.bounds import BoundTerms
from cglb.cg import Stop
from cglb.checks import boundary
from cglb.lanczos import block_cg, log_quadrature
from cglb.model import GP
from cglb.nystrom import DEFAULT_JITTER, Nystrom, NystromError
from cglb.objective import Evaluation, finite_or_none
from cglb.operator import KernelOperator, StoredOnUse, kernel_operator
from cglb.plan import plan_for

__all__ = [
    "Draw",
    "Iterative",
    "Preconditioner",
    "draw",
    "estimate",
    "gradient",
    "pivots",
    "preconditioner",
]

DISTRIBUTIONS = ("gaussian", "rademacher")


@dataclass(frozen=True)
class Iterative:
    """How the evidence is estimated. The defaults are Wang et al.'s and the paper's.

    cg_tolerance:  CG stops at this mean of ‖r‖/‖b‖ over y and the probes,
    cg_min_steps:  but not before these steps (GPyTorch's own limit is 10, but its quadrature of the
                   log-determinant makes it take 21 in training; with 10 the noise can collapse),
    cg_max_steps:  and at the latest after these.
    rank:          of the pivoted-Cholesky preconditioner.
    probes:        random vectors for the log-determinant; at least 2, as their spread is reported.
    distribution:  "gaussian" (on a sphere: direction is all that the trace needs, so the length is not
                   left to chance) or "rademacher" (random signs through the preconditioner's root).
    """

    cg_tolerance: float = 1.0
    cg_min_steps: int = 21
    cg_max_steps: int = 1000
    rank: int = 100
    probes: int = 10
    distribution: str = "gaussian"
    jitter: float = DEFAULT_JITTER

    def __post_init__(self) -> None:
        if not self.cg_tolerance > 0.0:
            raise ValueError(f"cg_tolerance must be positive, found {self.cg_tolerance}.")
        least = {"cg_min_steps": 1, "cg_max_steps": 1, "rank": 1, "probes": 2}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"{name} must be at least {smallest}, found {getattr(self, name)}.")
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(
                f"distribution must be one of {', '.join(DISTRIBUTIONS)}, found {self.distribution!r}."
            )


class Preconditioner(eqx.Module):
    """R to P⁻¹R by matrix products alone, O(nm) a column. CG takes it at every step, for a few columns:
    a triangular solve of that size costs less to compute than LAPACK's threads cost to wake."""

    factors: Nystrom
    inverse: Float[Array, "m m"]  # of LB

    def __call__(self, R: Float[Array, "n t"]) -> Float[Array, "n t"]:
        """P⁻¹R = (R − Aᵀ(I + AAᵀ)⁻¹A R)/σ²."""
        return _apply(self, R)


@jax.jit
def _apply(self: Preconditioner, R: Array) -> Array:
    At = self.factors.At
    inner = ((R.T @ At) @ self.inverse.T) @ self.inverse
    return (R - At @ inner.T) / self.factors.noise


def preconditioner(
    gp: GP, X: Float[Array, "n d"], Z: Float[Array, "m d"], jitter: float = DEFAULT_JITTER
) -> Preconditioner:
    """P of the pivots Z; the factors have its log-determinant."""
    factors = nystrom.factor(gp, X, Z, jitter)
    return Preconditioner(factors, triangular.inverse(factors.LB))


class Draw(eqx.Module):
    """What CG found for one draw of probes, a column a probe."""

    v: Float[Array, " n"]  # ≈ K̂⁻¹e
    U: Float[Array, "n t"]  # ≈ K̂⁻¹z
    W: Float[Array, "n t"]  # P⁻¹z
    logdets: Float[np.ndarray, " t"]  # an estimate of log|K̂| from every probe
    residual: Float[np.ndarray, " t+1"]  # ‖r‖/‖b‖ of e and of the probes
    jitter: float = eqx.field(static=True)  # that the preconditioner needed
    steps: int = eqx.field(static=True)
    stop: Stop = eqx.field(static=True)


@boundary
def pivots(gp: GP, X: Float[Array, "n d"], rank: int = 100) -> Float[Array, "m d"]:
    """The rows of X that pivoted Cholesky chooses: min(rank, n) distinct rows, O(n·rank²)."""
    chosen, _ = inducing.pivots(min(rank, X.shape[0]), gp.kernel, X)
    return X[chosen]


@boundary
def estimate(
    settings: Iterative,
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    seed: int | Sequence[int] = 0,
) -> Evaluation | None:
    """The log marginal likelihood and its gradient, estimated; None where they are not finite.

    `seed` decides the probes: the same numbers give the same bits. The value's standard error over the
    probes is in `spread`.
    """
    try:
        found = draw(settings, gp, X, y, seed)
    except NystromError:
        return None
    if not np.isfinite(found.residual).all():  # overflow: CG never got off the ground
        return None
    n, t = X.shape[0], settings.probes
    terms = BoundTerms(
        jnp.asarray(-0.5 * n * np.log(2.0 * np.pi)),
        -0.5 * ((y - gp.mean) @ found.v),
        jnp.asarray(-0.5 * found.logdets.mean()),
    )
    return finite_or_none(
        Evaluation(
            terms,
            gradient(gp, X, found),
            None,
            None,
            slack=None,
            jitter=found.jitter,
            cg_steps=found.steps,
            products=found.steps,
            cg_stop=found.stop,
            spread=float(0.5 * found.logdets.std(ddof=1) / np.sqrt(t)),
        )
    )


def draw(
    settings: Iterative,
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    seed: int | Sequence[int],
) -> Draw:
    """Draw the probes and solve for them and e in one block: n² kernel entries a CG step."""
    precondition = preconditioner(gp, X, pivots(gp, X, settings.rank), settings.jitter)
    factors = precondition.factors
    operator = kernel_operator(gp, X)
    assert isinstance(operator, KernelOperator)
    probes, W, size = _probes(precondition, settings, seed)
    solution = block_cg(
        StoredOnUse(operator),
        jnp.concatenate([(y - gp.mean)[:, None], probes], axis=1),
        precondition,
        tolerance=settings.cg_tolerance,
        min_steps=settings.cg_min_steps,
        max_steps=settings.cg_max_steps,
    )
    per_unit = log_quadrature(solution.alpha[:, 1:], solution.rho[:, 1:])
    logdets = float(factors.logdet) + np.asarray(size) * per_unit
    return Draw(
        solution.V[:, 0],
        solution.V[:, 1:],
        W,
        logdets,
        solution.residual,
        jitter=float(factors.jitter),
        steps=solution.steps,
        stop=solution.stop,
    )


def _probes(
    precondition: Preconditioner, settings: Iterative, seed: int | Sequence[int]
) -> tuple[Array, Array, Array]:
    """z = σ(Aᵀε₁ + ε₂), so that E zzᵀ = σ²(AᵀA + I) = P; with P⁻¹z and zᵀP⁻¹z."""
    factors = precondition.factors
    rng = np.random.default_rng(seed)
    shape = (factors.m + factors.n, settings.probes)
    signs = settings.distribution == "rademacher"
    epsilon = rng.choice([-1.0, 1.0], shape) if signs else rng.standard_normal(shape)
    z = _root(factors, jnp.asarray(epsilon))
    w = precondition(z)
    size = jnp.sum(z * w, axis=0)
    if signs:
        return z, w, size
    # ζ is Gaussian: given its direction, its length says nothing about M. Fix it to its mean, √n.
    scale = jnp.sqrt(factors.n / size)[None, :]
    return z * scale, w * scale, jnp.full_like(size, float(factors.n))


@jax.jit
def _root(factors: Nystrom, epsilon: Array) -> Array:
    m = factors.m
    return jnp.sqrt(factors.noise) * (factors.At @ epsilon[:m] + epsilon[m:])


def gradient(gp: GP, X: Float[Array, "n d"], found: Draw) -> GP:
    """dL in all hyperparameters from one draw, as a GP of slopes; one pass over the tiles."""
    t = found.U.shape[1]
    a = jnp.concatenate([0.5 * found.v[:, None], found.U * (-0.5 / t)], axis=1)
    b = jnp.concatenate([found.v[:, None], found.W], axis=1)
    plan = plan_for(X, symmetric=True)
    kernel_bar, _, _ = tiles.bilinear(plan, gp.kernel, X, X, a, b, inputs=False)
    slopes = (kernel_bar, jnp.sum(a * b), jnp.sum(found.v))
    return eqx.tree_at(lambda g: (g.kernel, g.noise, g.mean), gp, slopes)
