"""What the methods with inducing points share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxtyping import Array

from cglb.bounds.logdet import LogdetBound, Side, find
from cglb.bounds.terms import BoundTerms
from cglb.compute.backend import one_program
from cglb.core.precision import everywhere
from cglb.linalg import parts
from cglb.linalg.blocks import Neighbours
from cglb.linalg.nystrom import Nystrom
from cglb.linalg.system import System
from cglb.methods.base import Prepared
from cglb.methods.stages import Stage
from cglb.model import GP

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


def value_and_gradient(
    bound: Callable[..., BoundTerms], system: System, *operands: Any, logdet: LogdetBound
) -> tuple[BoundTerms, tuple[GP, Array]]:
    """The terms of a bound and the gradient of its value in the model and in Z.

    Args:
        bound: a function (system, gp, Z, *operands, logdet) at the values of the system.
        system: the model, the rows and the factors of Q̂.
        operands: what else the bound needs, such as the targets.
        logdet: the bound on log|K̂|.
    """
    operands = (*operands, logdet)
    found = _value_and_gradient(bound, system.gp, system.X, system.Z, system.nystrom, operands)
    return everywhere(found)


@one_program
def _value_and_gradient(
    bound: Callable[..., BoundTerms], gp: GP, X: Array, Z: Array, factors: Nystrom, operands: Any
) -> tuple[BoundTerms, tuple[GP, Array]]:
    system = System.known(gp, X, Z, factors)
    return parts.value_and_gradient(bound, system, operands, operands[-1].rows)
