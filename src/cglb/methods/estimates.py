"""The evidence *estimated* by CG and random probes, as Wang et al. (2019) do.

With P a preconditioner of low rank, z one of t probes with E zzᵀ = P, and CG solving for e and all
probes at once,

    log p(y) ≈ −(n/2) log 2π − ½ eᵀv − ½ (log|P| + (1/t) Σ ζᵀ log(M) ζ),   v ≈ K̂⁻¹e,
    dL ≈ ½ vᵀ dK̂ v − (1/2t) Σ uᵀ dK̂ w + (Σ v) dμ,                          u ≈ K̂⁻¹z,  w = P⁻¹z,

where ζ = P^{-1/2}z and M = P^{-1/2} K̂ P^{-1/2}; `lanczos.log_quadrature` gives ζᵀ log(M) ζ from CG's
coefficients. One pass over the tiles gives the gradient for all hyperparameters.

P is the pivoted Cholesky factorisation of K, cut off at the given rank, plus σ²I. That is the Nyström
matrix whose inducing points are the pivots, so a `System` at the pivots has its solve, log-determinant
and root.

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

from cglb.bounds.terms import BoundTerms
from cglb.compute import shards
from cglb.core.errors import NystromError
from cglb.core.validation import boundary
from cglb.linalg import inducing, row_noise
from cglb.linalg.cg import Stop
from cglb.linalg.lanczos import block_cg, log_quadrature
from cglb.linalg.nystrom import DEFAULT_JITTER, Nystrom
from cglb.linalg.preconditioners import LowRankPreconditioner
from cglb.linalg.system import Solver, System
from cglb.methods.base import Evaluation, finite_or_none
from cglb.model import GP

__all__ = ["Draw", "Estimator", "draw", "estimate", "evaluate", "gradient"]

DISTRIBUTIONS = ("gaussian", "rademacher")


@dataclass(frozen=True)
class Estimator:
    """How the evidence is estimated. The defaults are Wang et al.'s and the paper's.

    Attributes:
        cg_tolerance: CG stops at this mean of ‖r‖/‖b‖ over y and the probes,
        cg_min_steps: but not before these steps (GPyTorch's own limit is 10, but its quadrature of the
            log-determinant makes it take 21 in training; with 10 the noise can collapse),
        cg_max_steps: and at the latest after these.
        rank: of the pivoted-Cholesky preconditioner.
        probes: random vectors for the log-determinant; at least 2, because their spread is reported.
        distribution: "gaussian" (on a sphere: direction is all that the trace needs, so the length is
            not left to chance) or "rademacher" (random signs through the preconditioner's root).
        jitter: relative jitter on Kuu.
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


class Draw(eqx.Module):
    """What CG found for one draw of probes, one column per probe."""

    v: Float[Array, " n"]  # ≈ K̂⁻¹e
    U: Float[Array, "n t"]  # ≈ K̂⁻¹z
    W: Float[Array, "n t"]  # P⁻¹z
    logdets: Float[np.ndarray, " t"]  # an estimate of log|K̂| from each probe
    residual: Float[np.ndarray, " t+1"]  # ‖r‖/‖b‖ of e and of the probes
    jitter: float = eqx.field(static=True)  # that the preconditioner needed
    steps: int = eqx.field(static=True)
    stop: Stop = eqx.field(static=True)


@boundary
def estimate(
    settings: Estimator,
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    seed: int | Sequence[int] = 0,
) -> Evaluation | None:
    """The log marginal likelihood and its gradient, estimated; None if they are not finite.

    Args:
        settings: how to estimate.
        gp: the model.
        X: training inputs.
        y: training targets.
        seed: decides the probes. The same numbers give the same bits.

    Returns:
        An evaluation whose `spread` is the standard error of the value over the probes.
    """
    points = inducing.pivot_rows(gp.kernel, X, settings.rank)
    return evaluate(settings, System(gp, X, points, Solver(jitter=settings.jitter)), y, seed)


def evaluate(
    settings: Estimator, system: System, y: Float[Array, " n"], seed: int | Sequence[int]
) -> Evaluation | None:
    """`estimate` with a system at the pivots, whose Nyström matrix is P."""
    try:
        found = draw(settings, system, y, seed)
    except NystromError:
        return None
    if not np.isfinite(found.residual).all():  # overflow: CG never got off the ground
        return None
    return finite_or_none(
        Evaluation(
            BoundTerms.of(system.count, system.residual(y) @ found.v, found.logdets.mean()),
            gradient(system, found, y),
            slack=None,
            jitter=found.jitter,
            cg_steps=found.steps,
            products=found.steps,
            cg_stop=found.stop,
            spread=float(0.5 * found.logdets.std(ddof=1) / np.sqrt(settings.probes)),
            system=system,
        )
    )


def draw(settings: Estimator, system: System, y: Float[Array, " n"], seed: int | Sequence[int]) -> Draw:
    """Draw the probes and solve for them and e in one block: n² kernel entries per CG step."""
    factors = system.nystrom
    precondition = LowRankPreconditioner.of(factors)
    probes, W, size = _probes(precondition, settings, seed)
    solution = block_cg(
        system.fast,
        jnp.concatenate([system.residual(y)[:, None], probes], axis=1),
        precondition,
        tolerance=settings.cg_tolerance,
        min_steps=settings.cg_min_steps,
        max_steps=settings.cg_max_steps,
    )
    system.release()
    per_unit = log_quadrature(solution.alpha[:, 1:], solution.rho[:, 1:])
    of_rows = float(row_noise.shift(system.gp.kernel, system.gp.noise, system.X))
    logdets = float(factors.logdet) + of_rows + np.asarray(size) * per_unit
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
    precondition: LowRankPreconditioner, settings: Estimator, seed: int | Sequence[int]
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
    return jnp.sqrt(factors.noise) * (shards.expand(factors.At, epsilon[:m]) + epsilon[m:])


def gradient(system: System, found: Draw, y: Float[Array, " n"]) -> GP:
    """dL in all hyperparameters from one draw, as a GP of slopes; one pass over the tiles."""
    t = found.U.shape[1]
    a = jnp.concatenate([0.5 * found.v[:, None], found.U * (-0.5 / t)], axis=1)
    b = jnp.concatenate([found.v[:, None], found.W], axis=1)
    K_hat_bar = system.operator.bilinear_gradient(a, b)
    _, pull = jax.vjp(lambda gp: (system.residual(y, gp), _shift(gp, system.X)), system.gp)
    (more,) = pull((-found.v, jnp.asarray(-0.5, dtype=found.v.dtype)))
    slopes = (K_hat_bar.kernel, K_hat_bar.noise, jnp.zeros_like(found.v[0]))
    known = eqx.tree_at(lambda g: (g.kernel, g.noise, g.mean), system.gp, slopes)
    return jax.tree.map(jnp.add, known, more)


def _shift(gp: GP, X: Array) -> Array:
    return jnp.asarray(row_noise.shift(gp.kernel, gp.noise, X), dtype=X.dtype)
