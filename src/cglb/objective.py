"""What training maximises: the value and gradient of a bound at one point, as a pure function.

`evaluate` depends on its arguments alone. CG starts from the v it is given and the v it found is part of
the answer; who calls decides when to move on. So the same point evaluated twice gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb import bounds, dense, nystrom
from cglb.auto import AutoBound
from cglb.bounds import UPPER, BoundTerms
from cglb.cg import Stop, conjugate_gradients
from cglb.chain import Chain
from cglb.kernels import Kernel
from cglb.logdet import find
from cglb.model import GP
from cglb.neighbours import Blocks
from cglb.nystrom import DEFAULT_JITTER, NystromError
from cglb.operator import KernelOperator, StoredOnUse, kernel_operator
from cglb.preconditioners import NAMES, choose

__all__ = ["METHODS", "Evaluation", "Objective", "Prepared", "evaluate", "finite_or_none"]

METHODS = ("cglb", "sgpr", "exact")


@dataclass(frozen=True)
class Objective:
    """Which bound, and how hard to work for it.

    method:       "cglb", "sgpr" or "exact".
    logdet:       the upper bound on log|K̂| (cglb, sgpr); "auto" is the tightest that pays.
    cg_tolerance: nats that CG may leave on the table at each evaluation (cglb).
    cg_max_steps: CG's step limit; reaching it loosens the bound and is recorded.
    precondition: "nystrom", "chain" or "auto" (the chain where the inducing points leave much to do).
    jitter:       relative jitter on Kuu.
    mixed:        float32 products inside CG, with a float64 certificate.
    """

    method: str = "cglb"
    logdet: Any = "amgm"
    cg_tolerance: float = 1.0
    cg_max_steps: int = 1000
    precondition: str = "auto"
    jitter: float = DEFAULT_JITTER
    mixed: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(
                f"method must be one of {', '.join(METHODS)}, found {self.method!r}. (Iterative GP is "
                "GPRegressor(method='iterative') or train_iterative.)"
            )
        if not self.cg_tolerance > 0.0:
            raise ValueError(f"cg_tolerance must be positive, found {self.cg_tolerance}.")
        find(self.logdet, UPPER)
        if self.precondition not in NAMES:
            raise ValueError(
                f"precondition must be one of {', '.join(NAMES)}, found {self.precondition!r}."
            )

    def prepare(self, gp: GP, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None) -> Prepared:
        """Fix what depends on the data and roughly on the hyperparameters: blocks, neighbours and, for
        logdet="auto" with Z given, the choice."""
        logdet = find(self.logdet, UPPER).prepare(gp.kernel, X)
        if isinstance(logdet, AutoBound) and Z is not None:
            factors = nystrom.factor(gp, X, Z, self.jitter)
            logdet = logdet.settle(bounds.spectrum(gp, X, factors))
        return Prepared(self, logdet, gp.kernel, X)

    @property
    def sparse(self) -> bool:
        """Whether the method has inducing points."""
        return self.method != "exact"


@dataclass(frozen=True)
class Prepared:
    """An objective with its blocks and neighbours held fixed: a pure function of its arguments."""

    objective: Objective
    logdet: Any
    kernel: Kernel
    X: Float[Array, "n d"]

    @cached_property
    def blocks(self) -> Blocks:
        """For the preconditioner: those of the log-det bound, or, when first needed, the chain's."""
        found = getattr(self.logdet, "blocks", None)
        return Chain().prepare(self.kernel, self.X).blocks if found is None else found


class Evaluation(eqx.Module):
    """A bound (or an estimate, which has a spread) at one point, its gradient, and what CG did."""

    terms: BoundTerms
    gp_bar: GP
    Z_bar: Float[Array, "m d"] | None
    v: Float[Array, " n"] | None
    slack: float | None = eqx.field(static=True, default=0.0)  # None: there is no certificate
    jitter: float = eqx.field(static=True, default=0.0)
    cg_steps: int = eqx.field(static=True, default=0)
    products: int = eqx.field(static=True, default=0)
    cg_stop: Stop | None = eqx.field(static=True, default=None)
    spread: float | None = eqx.field(static=True, default=None)  # standard error of an estimate

    @property
    def value(self) -> float:
        """The bound in nats."""
        return float(self.terms.value)


def evaluate(
    prepared: Prepared,
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"] | None,
    v0: Float[Array, "n *k"] | None,
) -> Evaluation | None:
    """Value and gradient at (gp, Z); None where the numbers are not finite or Kuu cannot be factored,
    as at the far end of a line search."""
    try:
        found = _evaluate(prepared, gp, X, y, Z, v0)
    except (NystromError, np.linalg.LinAlgError):
        return None
    return finite_or_none(found)


def finite_or_none(found: Evaluation) -> Evaluation | None:
    """The evaluation, if its value and gradient are numbers."""
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((found.terms, found.gp_bar))]
    return found if bool(jnp.all(jnp.stack(finite))) else None


def _evaluate(
    prepared: Prepared, gp: GP, X: Array, y: Array, Z: Array | None, v0: Array | None
) -> Evaluation:
    objective, logdet = prepared.objective, prepared.logdet
    if objective.method == "exact":
        terms, gp_bar = dense.value_and_gradient(gp, X, y)
        return Evaluation(terms, gp_bar, None, None)
    assert Z is not None
    factors = nystrom.factor(gp, X, Z, objective.jitter)
    jitter = float(factors.jitter)
    if objective.method == "sgpr":
        terms, (gp_bar, Z_bar) = _value_and_grad(
            lambda gp, Z: bounds.sgpr_given(gp, X, y, Z, factors, logdet), gp, Z
        )
        return Evaluation(terms, gp_bar, Z_bar, None, jitter=jitter)
    operator = kernel_operator(gp, X)
    assert isinstance(operator, KernelOperator)
    solution = conjugate_gradients(
        operator,
        y - gp.mean,
        factors,
        precondition=choose(objective.precondition, gp, X, factors, lambda: prepared.blocks),
        v0=v0,
        tolerance=objective.cg_tolerance,
        max_steps=objective.cg_max_steps,
        fast=StoredOnUse(operator.astype(jnp.float32) if objective.mixed else operator),
    )
    v = solution.v
    Kv = solution.K_hat_v - gp.noise * v
    terms, (gp_bar, Z_bar) = _value_and_grad(
        lambda gp, Z: bounds.cglb_given(gp, X, y, Z, v, factors, Kv, logdet, operator.plan), gp, Z
    )
    return Evaluation(
        terms,
        gp_bar,
        Z_bar,
        v,
        slack=float(solution.slack),
        jitter=jitter,
        cg_steps=solution.steps,
        products=solution.products,
        cg_stop=solution.stop,
    )


def _value_and_grad(bound: Callable[..., BoundTerms], *arguments: Any) -> tuple[BoundTerms, Any]:
    def value(*arguments: Any) -> tuple[Array, BoundTerms]:
        terms = bound(*arguments)
        return jnp.asarray(terms.value), terms

    argnums = tuple(range(len(arguments)))
    (_, terms), gradient = jax.value_and_grad(value, argnums=argnums, has_aux=True)(*arguments)
    return terms, gradient
