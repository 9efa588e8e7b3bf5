"""In which order training maximises bounds, from loose to tight.

A tight bound can fall into an optimum with collapsed noise from a cold start. So the chain is reached
through looser bounds: the paper's, then Hadamard's. Far from the solution CG takes many steps; a stage
without it may come first, but is no default, because it can lead to a worse optimum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cglb.auto import Auto
from cglb.bounds import UPPER
from cglb.chain import Chain
from cglb.logdet import find
from cglb.objective import Objective

__all__ = [
    "WITHOUT_CG",
    "Schedule",
    "check_schedule",
    "default_schedule",
    "share_until",
    "stage_objective",
    "stall_share",
]

# (log-det bound or WITHOUT_CG, share of the budget at most) for each stage; the shares sum to 1
Schedule = tuple[tuple[Any, float], ...]

# a stage with the quadratic term of SGPR, yᵀQ̂⁻¹y, and the paper's log-det bound
WITHOUT_CG = "sgpr"

# without CG a round ends much earlier: that stage shall lead near the solution, not to its own optimum
STALL, STALL_WITHOUT_CG = 0.005, 0.1


def default_schedule(objective: Objective) -> Schedule:
    """One stage; for the chain (and "auto") several, so that it starts from a looser one's solution."""
    if not (objective.sparse and isinstance(find(objective.logdet, UPPER), Chain | Auto)):
        return ((objective.logdet, 1.0),)
    return ("amgm", 0.5), ("hadamard", 0.1), (objective.logdet, 0.4)


def check_schedule(schedule: Schedule) -> Schedule:
    """ValueError unless the stages have known bounds and positive shares that sum to 1."""
    for logdet, _ in schedule:
        if logdet != WITHOUT_CG:
            find(logdet, UPPER)
    shares = [share for _, share in schedule]
    if not shares or min(shares) <= 0.0 or abs(sum(shares) - 1.0) > 1e-6:
        raise ValueError(f"schedule needs positive shares of the budget that sum to 1, found {shares}.")
    return tuple(schedule)


def share_until(schedule: Schedule, stage: int) -> float:
    """The share of the budget by which a stage has ended."""
    return sum(share for _, share in schedule[: stage + 1])


def stall_share(schedule: Schedule, stage: int) -> float:
    """A round of this stage ends when its last steps gained less than this share of all it gained."""
    return STALL_WITHOUT_CG if schedule[stage][0] == WITHOUT_CG else STALL


def stage_objective(objective: Objective, logdet: Any) -> Objective:
    """The objective of a stage."""
    if logdet == WITHOUT_CG:
        return replace(objective, method="sgpr", logdet="amgm")
    return replace(objective, logdet=logdet)
