"""Preconditioners of CG: Nyström's Q̂⁻¹, or one that is built if Q̂⁻¹ is not good enough.

A `Preconditioning` says when a preconditioner is worth building, and how; `OnDemand` builds it at most
once per system. The certificate does not depend on it: CG's stop rule uses Q̂.

The chain's preconditioner is for low noise. The Nyström matrix leaves out the residual E, and at low
noise that is far from K̂. The chain's blocks give a sparse factor of the residual's inverse,
R⁻¹ ≈ UᵀU (R = K̂/σ² − AᵀA), and then

    K̂⁻¹ ≈ Uᵀ(I − B(I + BᵀB)⁻¹Bᵀ)U/σ²,   B = UAᵀ,

which is positive definite for any blocks. Building it costs 2nm² to 3nm² flops, applying it O(n(m + k)),
like Nyström's.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from cglb.compute import shards, triangular
from cglb.compute.products import transposed_product
from cglb.compute.shards import RowShards
from cglb.linalg.blocks import Blocks
from cglb.linalg.krylov import Preconditioner
from cglb.linalg.nystrom import Nystrom
from cglb.linalg.vecchia import inverse_factors, split_preconditioner
from cglb.linalg.vecchia_mesh import SplitChain, apply_chain
from cglb.model import GP

if TYPE_CHECKING:
    from cglb.linalg.system import System

__all__ = [
    "ChainPreconditioner",
    "LowRankPreconditioner",
    "OnDemand",
    "Preconditioning",
    "chain_preconditioner",
    "find",
    "names",
    "whole_chain",
]

# mean δ/σ² above which Q̂ alone is a poor approximation of K̂
POOR_NYSTROM = 0.05
# a slack of up to this many tolerances may need only a few steps with Nyström's preconditioner
NEAR = 10.0


class ChainPreconditioner(Preconditioner):
    """z = Uᵀ(I − B(I + BᵀB)⁻¹Bᵀ)U r/σ².

    Attributes:
        U: the sparse factor, one block of rows after the other.
        index: the columns of each block of U.
        valid: which of these are not padding.
        B: UAᵀ.
        LC: the Cholesky factor of I + BᵀB.
        noise: σ².
    """

    U: Float[Array, "b p pk"]
    index: Int[Array, "b pk"]
    valid: Bool[Array, "b pk"]
    B: Float[Array, "bp m"]
    LC: Float[Array, "m m"]
    noise: Float[Array, ""]

    def __call__(self, R: Float[Array, "n t"]) -> Float[Array, "n t"]:
        return _apply_chain(self, R)


@jax.jit
def _apply_chain(self: ChainPreconditioner, R: Array) -> Array:
    return apply_chain((self.U, self.index, self.valid, self.B), (self.LC, self.noise), R)


def chain_preconditioner(
    gp: GP, X: Float[Array, "n d"], factors: Nystrom, blocks: Blocks
) -> Preconditioner:
    """The preconditioner of K̂ on X, 2nm² to 3nm² flops.

    Args:
        gp: the model.
        X: inputs.
        factors: of Q̂, whose residual is factored.
        blocks: blocks of rows and their neighbours.
    """
    noise = jnp.asarray(gp.noise)
    if isinstance(factors.At, RowShards):
        return split_preconditioner(gp.kernel, noise, factors.At, X, blocks)
    U, B, index, valid = inverse_factors(gp.kernel, noise, factors.At, X, blocks)
    return ChainPreconditioner(U, index, valid, B, _factor_inner(B), noise)


def whole_chain(gp: GP, X: Float[Array, "n d"], factors: Nystrom, blocks: Blocks) -> ChainPreconditioner:
    """`chain_preconditioner` with all of its factors on every device, also if those of Q̂ are split."""
    found = chain_preconditioner(gp, X, factors, blocks)
    if not isinstance(found, SplitChain):
        assert isinstance(found, ChainPreconditioner)
        return found
    return ChainPreconditioner(*found.gathered(), found.LC, found.noise)


@jax.jit
def _factor_inner(B: Array) -> Array:
    """The Cholesky factor of I + BᵀB."""
    return jnp.linalg.cholesky(transposed_product(B, B) + jnp.eye(B.shape[1], dtype=B.dtype))


class LowRankPreconditioner(Preconditioner):
    """Q̂⁻¹R = (R − Aᵀ(I + AAᵀ)⁻¹A R)/σ² by matrix products alone, O(nm) per column.

    CG applies it to a few columns at every step. A triangular solve of that size takes less time than
    LAPACK needs to start its threads.

    Attributes:
        factors: of Q̂.
        inverse: LB⁻¹.
    """

    factors: Nystrom
    inverse: Float[Array, "m m"]

    @classmethod
    def of(cls, factors: Nystrom) -> LowRankPreconditioner:
        return cls(factors, triangular.inverse(factors.LB))

    def __call__(self, R: Float[Array, "n t"]) -> Float[Array, "n t"]:
        return _apply_low_rank(self, R)


@jax.jit
def _apply_low_rank(self: LowRankPreconditioner, R: Array) -> Array:
    At = self.factors.At
    inner = (shards.project(At, R).T @ self.inverse.T) @ self.inverse
    return (R - shards.expand(At, inner.T)) / self.factors.noise


@dataclass(frozen=True)
class Preconditioning(abc.ABC):
    """When a preconditioner is built, and how.

    Subclasses register themselves by `name`; their settings, if any, are fields of a frozen dataclass.

    Attributes:
        name: how users select it.
        patience: steps with Nyström's preconditioner to take first if the slack is near its tolerance.
            Most evaluations in training start from a nearly good v and take few steps or none, while
            building costs as much as several steps.
    """

    name: ClassVar[str]
    patience: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _REGISTRY[cls.name] = cls

    def wanted(self, system: System) -> bool:
        """Whether it may be worth building for this system; otherwise CG uses Nyström's."""
        return True

    @abc.abstractmethod
    def build(self, system: System) -> Preconditioner:
        """The preconditioner of this system."""


_REGISTRY: dict[str, type[Preconditioning]] = {}


class NystromPreconditioning(Preconditioning):
    """Q̂⁻¹, which CG uses by default."""

    name = "nystrom"

    def wanted(self, system: System) -> bool:
        return False

    def build(self, system: System) -> Preconditioner:
        return LowRankPreconditioner.of(system.nystrom)


class ChainPreconditioning(Preconditioning):
    """The chain's preconditioner, from the first step."""

    name = "chain"

    def build(self, system: System) -> Preconditioner:
        return chain_preconditioner(system.gp, system.X, system.nystrom, system.blocks)


class AutoPreconditioning(ChainPreconditioning):
    """The chain's preconditioner if it is likely to pay, otherwise Nyström's.

    It pays if the inducing points leave much unexplained compared with the noise, and if a few steps
    with Nyström's preconditioner were not enough.
    """

    name = "auto"
    patience = 3

    def wanted(self, system: System) -> bool:
        unexplained = float(jnp.sum(system.nystrom.residual_diag)) / system.count
        return unexplained > POOR_NYSTROM * float(system.gp.noise)


def names() -> tuple[str, ...]:
    """The names of the registered preconditioners."""
    return tuple(_REGISTRY)


def find(precondition: str | Preconditioning) -> Preconditioning:
    """The preconditioning with this name; objects pass through.

    Raises:
        ValueError: if the name is unknown; the message lists the registered names.
    """
    if isinstance(precondition, Preconditioning):
        return precondition
    if precondition not in _REGISTRY:
        raise ValueError(f"precondition must be one of {', '.join(_REGISTRY)}, found {precondition!r}.")
    return _REGISTRY[precondition]()


class OnDemand:
    """A preconditioner that is built when CG needs it, and then kept.

    Args:
        build: makes the preconditioner.
        patience: steps with Nyström's preconditioner to take first if the slack is near its tolerance.
    """

    def __init__(self, build: Callable[[], Preconditioner], patience: int = 0):
        self._build = build
        self._patience = patience
        self.built: Preconditioner | None = None

    def next(self, ratio: float) -> tuple[Preconditioner | None, int | None]:
        """The preconditioner to use now, and for how many steps.

        Args:
            ratio: the slack in units of its tolerance.

        Returns:
            The preconditioner (None for Nyström's) and the number of steps (None for any number).
        """
        if self.built is None and self._patience > 0 and ratio <= NEAR:
            patience, self._patience = self._patience, 0
            return None, patience
        if self.built is None:
            self.built = self._build()
        return self.built, None
