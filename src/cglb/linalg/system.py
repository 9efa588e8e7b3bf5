"""K̂ of one model on one data set, and everything needed to solve with it, computed once.

CG and every bound, posterior, variance bracket and certificate of (gp, X, Z) share a `System`: its
operator, Nyström factors, blocks of neighbours, preconditioner and stored matrix are computed when first
needed and then kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from cglb.compute.backend import few_rows
from cglb.core.validation import boundary
from cglb.linalg import nystrom, preconditioners
from cglb.linalg.blocks import Blocks, Neighbours
from cglb.linalg.cg import Limits, Solution, conjugate_gradients
from cglb.linalg.krylov import Preconditioner
from cglb.linalg.nystrom import DEFAULT_JITTER, Nystrom
from cglb.linalg.operator import STORE_GB, KernelOperator, Operator, StoredOnUse
from cglb.linalg.preconditioners import OnDemand, Preconditioning
from cglb.linalg.quadratic import QuadraticInterval, quadratic_interval
from cglb.linalg.row_noise import log_units, number, residual
from cglb.linalg.view import View, linearise
from cglb.model import GP

__all__ = ["PRODUCTS", "Solver", "System", "solve"]

# Rows from which products in float32 save more time than compiling them takes.
MANY_ROWS = 4000


def _auto(system: System) -> tuple[Operator, ...]:
    return (system.rounded, system.fast) if system.n >= MANY_ROWS else (system.fast,)


# what CG multiplies with, from the fastest operator to the most precise, by the name of the choice
PRODUCTS: dict[str, Callable[[System], tuple[Operator, ...]]] = {
    "auto": _auto,
    "float64": lambda system: (system.fast,),
    "float32": lambda system: (system.rounded,),
}


@dataclass(frozen=True)
class Solver:
    """How to solve with K̂.

    Attributes:
        tolerance: nats that an inexact v may cost.
        max_steps: CG's step limit. If it is reached, the bound is looser and the solution says so.
        precondition: "auto", "nystrom", "chain", another registered name, or a `Preconditioning`.
        products: the precision of products inside CG: "float64", "float32", or "auto": for many rows
            float32 until it no longer lowers the certified slack, then float64. The certificate is
            always in float64.
        jitter: added to diag(Kuu), relative to its mean.
        memory_gb: memory for K̂, which is stored if it fits and CG takes many steps.
    """

    tolerance: float = 1.0
    max_steps: int = 1000
    precondition: str | Preconditioning = "auto"
    products: str = "auto"
    jitter: float = DEFAULT_JITTER
    memory_gb: float = STORE_GB

    def __post_init__(self) -> None:
        Limits(self.tolerance, self.max_steps)
        preconditioners.find(self.precondition)
        if self.products not in PRODUCTS:
            raise ValueError(f"products must be one of {', '.join(PRODUCTS)}, found {self.products!r}.")


class System:
    """K̂ = K(X, X) + σ²I of one model on one data set, and Q̂ ⪯ K̂ of its inducing points Z.

    The mathematics (`operator`, `nystrom`) is fixed. The aids (`blocks`, `preconditioner`, `fast`)
    change results only by rounding and within CG's tolerance. A system is not a pytree: it stays on the
    host and belongs to one (gp, X, Z). Under `jit` or `grad` it may hold tracers; then it must not
    outlive the trace.

    Args:
        gp: the model, as JAX arrays.
        X: inputs.
        Z: inducing points; None if nothing needs them.
        solver: how to solve.
        neighbours: blocks of neighbours to share; by default they are found with this kernel.
    """

    def __init__(
        self,
        gp: GP,
        X: Float[Array, "n d"],
        Z: Float[Array, "m d"] | None,
        solver: Solver = Solver(),
        *,
        neighbours: Neighbours | None = None,
    ):
        self.gp, self.X, self.solver = gp, X, solver
        self._Z = Z
        self.neighbours = neighbours or Neighbours.near(gp.kernel, X)

    @classmethod
    def known(cls, gp: GP, X: Float[Array, "n d"], Z: Float[Array, "m d"], factors: Nystrom) -> System:
        """The system whose factors of Q̂ are known."""
        system = cls(gp, X, Z)
        system.__dict__["nystrom"] = factors
        return system

    @property
    def n(self) -> int:
        """Rows, those that count for nothing included."""
        return self.X.shape[0]

    @cached_property
    def count(self) -> Any:
        """Rows that count (see `cglb.linalg.row_noise`)."""
        return number(self.gp.kernel, self.X)

    def residual(self, y: Float[Array, " n"], gp: GP | None = None) -> Float[Array, " n"]:
        """e = y − μ, in units of each row's own noise if it has one.

        Args:
            y: targets.
            gp: the model, at the values of this system, to differentiate in.
        """
        return residual(self.gp if gp is None else gp, self.X, y)

    def log_units(self, gp: GP | None = None) -> Any:
        """What bounds on log|K̂| lack where rows have noise of their own; 0 otherwise."""
        return log_units((self.gp if gp is None else gp).kernel, self.X)

    @property
    def m(self) -> int:
        """The number of inducing points."""
        return 0 if self._Z is None else self._Z.shape[0]

    @property
    def Z(self) -> Float[Array, "m d"]:
        if self._Z is None:
            raise ValueError("This system has no inducing points: pass Z.")
        return self._Z

    @cached_property
    def operator(self) -> KernelOperator:
        """K̂ in float64 without storing it, for certificates."""
        return KernelOperator.of(self.gp, self.X)

    @cached_property
    def nystrom(self) -> Nystrom:
        """The factors of Q̂: 2nm² flops by BLAS, 3nm² by XLA; O(nm) memory."""
        return nystrom.factor(self.gp, self.X, self.Z, self.solver.jitter)

    @property
    def blocks(self) -> Blocks:
        """Blocks of rows and their neighbours, for the chain bound and its preconditioner."""
        return self.neighbours.blocks

    @cached_property
    def preconditioner(self) -> OnDemand | None:
        """The preconditioner that CG may build to replace Q̂⁻¹; None if Q̂⁻¹ is good enough."""
        kind = preconditioners.find(self.solver.precondition)
        if not kind.wanted(self):
            return None
        # a cycle would keep a stored K̂ until Python looks for cycles, which may be far too late
        this = weakref.ref(self)

        def build() -> Preconditioner:
            system = this()
            assert system is not None  # who solves with a system holds it
            return kind.build(system)

        return OnDemand(build, kind.patience)

    @cached_property
    def fast(self) -> Operator:
        """K̂ for many products: stored after a few of them unless there are so few rows that CG's loop
        is one program."""
        return self._stored(self.operator)

    @cached_property
    def rounded(self) -> Operator:
        """The same in float32, for products inside CG."""
        return self._stored(self.operator.astype(jnp.float32))

    def _stored(self, operator: KernelOperator) -> Operator:
        return operator if few_rows(operator) else StoredOnUse(operator, self.solver.memory_gb)

    def release(self) -> None:
        """Free the stored K̂ and the preconditioner; keep the factors."""
        for aid in ("fast", "rounded", "preconditioner"):
            self.__dict__.pop(aid, None)

    def again(self, solver: Solver | None = None, neighbours: Neighbours | None = None) -> System:
        """The same K̂ and Q̂ with another solver or other neighbours; existing factors are shared.

        Args:
            solver: by default that of this system.
            neighbours: by default found by a new search.
        """
        other = System(self.gp, self.X, self._Z, solver or self.solver, neighbours=neighbours)
        kept = ("operator", "nystrom") if other.solver.jitter == self.solver.jitter else ("operator",)
        for part in kept:
            if part in self.__dict__:
                other.__dict__[part] = self.__dict__[part]
        return other

    def solve(
        self,
        e: Float[Array, "n *t"],
        v0: Float[Array, "n *k"] | None = None,
        limits: Limits | None = None,
    ) -> Solution:
        """v with K̂v ≈ e, by CG.

        Args:
            e: right-hand sides.
            v0: where to start, as in `conjugate_gradients`.
            limits: by default those of the solver.
        """
        inside = PRODUCTS[self.solver.products](self)
        return conjugate_gradients(
            # what is stored in float64 certifies as well as tiles that are computed again
            self.fast if inside[0] is self.fast else self.operator,
            e,
            self.nystrom,
            v0=v0,
            limits=limits or Limits(self.solver.tolerance, self.solver.max_steps),
            preconditioner=self.preconditioner,
            inside=inside,
        )

    def quadratic(self, e: Float[Array, "n *t"], solution: Solution) -> QuadraticInterval:
        """An interval that contains eᵀK̂⁻¹e, from the solution of K̂v ≈ e."""
        return quadratic_interval(e, solution.v, solution.K_hat_v, 2.0 * solution.slack)

    # ---- the same values as functions of gp and Z ----

    @property
    def view(self) -> View:
        """The input of bounds on log|K̂|, as values."""
        factors, noise = self.nystrom, jnp.asarray(self.gp.noise)
        return View(self.gp.kernel, noise, self.X, factors.G, factors.LB, factors.At)

    def linearised(
        self, gp: GP, Z: Float[Array, "m d"], r: Float[Array, " n"], rows: bool
    ) -> tuple[View, Float[Array, ""]]:
        """The view and rᵀQ̂⁻¹r, differentiable in gp, Z and r at the values of this system."""
        return linearise(self.nystrom, gp, self.X, Z, r, rows)

    def known_product(
        self, gp: GP, v: Float[Array, " n"], K_hat_v: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        """K̂v, differentiable in gp at the values of this system; v is held fixed.

        The value is known, so the forward pass is free; the backward pass goes over the tiles once.
        """
        return KernelOperator.of(gp, self.X).known_product(v, K_hat_v)


@boundary
def solve(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"],
    v0: Float[Array, " n"] | None = None,
    solver: Solver = Solver(),
    **options: float | int | bool | str,
) -> Solution:
    """A good v for `bounds.cglb`: K̂v = y − μ by preconditioned CG, to `tolerance` nats.

    Args:
        gp: the model.
        X: inputs.
        y: targets.
        Z: inducing points.
        v0: where to start; CG starts at 0 instead if that gives the better bound.
        solver: how to solve.
        **options: fields of `solver` to replace, such as `tolerance=1e-3`.
    """
    system = System(gp, X, Z, replace(solver, **options))
    return system.solve(system.residual(y), v0)
