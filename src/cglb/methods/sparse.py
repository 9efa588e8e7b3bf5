"""What the methods with inducing points share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from cglb.bounds.logdet import LogdetBound, Side, find
from cglb.bounds.terms import BoundTerms
from cglb.linalg.blocks import Neighbours
from cglb.linalg.system import System
from cglb.methods.base import Prepared
from cglb.methods.stages import Stage

__all__ = ["prepare", "prepared_bound", "tightening", "value_and_gradient"]

# shares of the budget for the looser bounds that lead to a tight one, which gets what is left
LOOSE_SHARES = (0.5, 0.1)


def prepare(logdet: str | LogdetBound, system: System) -> Prepared:
    """Find blocks and neighbours and, for the automatic bound, settle its choice."""
    bound = find(logdet, Side.ABOVE).prepare(system).settle(system)
    blocks = bound.shared_blocks
    return Prepared(bound.name, bound, system.neighbours if blocks is None else Neighbours.given(blocks))


def prepared_bound(prepared: Prepared) -> LogdetBound:
    """The bound on log|K̂| that `prepare` fixed."""
    if prepared.logdet is None:
        raise ValueError("There is no bound on log|K̂| here: prepare with a method that has one.")
    return prepared.logdet


def tightening(method: Any, joint: bool) -> tuple[Stage, ...]:
    """Stages from looser bounds on log|K̂| to the method's own, as that bound asks for.

    A tight bound can fall into an optimum with collapsed noise from a cold start, so it starts from the
    solutions of looser ones.
    """
    loose = find(method.logdet, Side.ABOVE).after
    # the first of the looser bounds leads most of the way, the others share what is left of theirs
    others = [LOOSE_SHARES[1] / (len(loose) - 1)] * (len(loose) - 1) if len(loose) > 1 else []
    shares = [LOOSE_SHARES[0], *others] if loose else []
    methods = [replace(method, logdet=key) for key in loose]
    stages = [Stage(one, share=share, joint=joint) for one, share in zip(methods, shares, strict=True)]
    return (*stages, Stage(method, share=1.0 - sum(shares), joint=joint))


def value_and_gradient(bound: Callable[..., BoundTerms], *arguments: Any) -> tuple[BoundTerms, Any]:
    """The terms of a bound and the gradient of its value in all arguments."""

    def value(*arguments: Any) -> tuple[Array, BoundTerms]:
        terms = bound(*arguments)
        return jnp.asarray(terms.value), terms

    argnums = tuple(range(len(arguments)))
    (_, terms), gradient = jax.value_and_grad(value, argnums=argnums, has_aux=True)(*arguments)
    return terms, gradient
