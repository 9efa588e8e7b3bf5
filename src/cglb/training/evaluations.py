"""Evaluations of what training maximises: where CG starts, and which of their systems are kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cglb.linalg.system import System
from cglb.methods.base import Prepared
from cglb.optimisers.base import Point
from cglb.training.history import Work
from cglb.training.problem import Problem

__all__ = ["RECYCLED", "Evaluations", "Trials", "recycled"]

# solutions of CG that the next evaluation starts from: along a smooth path three extrapolate it, and a
# product with three vectors costs little more than with one
RECYCLED = 3


@dataclass(frozen=True)
class Evaluations:
    """Evaluations in a round, whose function is one fixed function while `columns` do not change.

    Attributes:
        problem: what is maximised.
        stage: its number.
        round: its number.
        columns: where CG starts, [n, 3].
        work: counts them.
    """

    problem: Problem
    stage: int
    round: int
    columns: Array | None
    work: Work

    def at(self, x: np.ndarray, Z: Array | None, prepared: Prepared, draw: int = 0) -> Point | None:
        """The value and its gradient at x; None if they are not finite.

        Args:
            x: the vector that the stage optimises.
            Z: inducing points to keep, or of the shape that x holds.
            prepared: what stays fixed during the round.
            draw: which random numbers to take.
        """
        free, Z = self.problem.separate(self.stage, x, Z)
        return self.of(self.problem.system(self.stage, free, Z, prepared), x, prepared, draw)

    def of(self, system: System, x: np.ndarray, prepared: Prepared, draw: int = 0) -> Point | None:
        """The same, with the system of x at hand."""
        point = self.problem.evaluate(self.stage, prepared, system, x, self.columns, draw)
        self.work.count(None if point is None else point.found)
        return point


@dataclass
class Trials:
    """The systems of a line search's evaluations, by place.

    A system can be large: only the best so far and the newest are kept, one of which is accepted.
    """

    _kept: dict[bytes, tuple[float, System]] = field(init=False, default_factory=dict)

    def keep(self, point: Point) -> Point:
        """Keep the system of a point, if it has one, here and no longer in the point."""
        if point.found.system is None:
            return point
        best = sorted(self._kept.items(), key=lambda trial: trial[1][0])[-1:]
        self._kept = {**dict(best), point.x.tobytes(): (point.value, point.found.system)}
        return replace(point, found=replace(point.found, system=None))

    def take(self, x: np.ndarray) -> System | None:
        """The system of the evaluation at x, if it was kept; nothing is kept any longer."""
        _, system = self._kept.get(x.tobytes(), (0.0, None))
        self._kept = {}
        return system


@jax.jit
def recycled(v: Array, older: Array | None) -> Array:
    """The newest solutions as columns [n, RECYCLED], the newest first; 0 where there are none yet."""
    if older is None:
        older = jnp.zeros((v.shape[0], RECYCLED), dtype=v.dtype)
    return jnp.concatenate([v[:, None], older[:, :-1]], axis=1)
