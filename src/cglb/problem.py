"""What a fit maximises, on which data and in which stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb import inducing
from cglb import schedule as stages
from cglb.constraints import Parameters
from cglb.fitting import fingerprint, random_rows
from cglb.model import GP
from cglb.objective import Evaluation, Objective, Prepared, evaluate
from cglb.schedule import Schedule

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """What does not change during a fit."""

    X: Float[Array, "n d"]
    y: Float[Array, " n"]
    objective: Objective
    schedule: Schedule
    parameters: Parameters
    optimize_inducing: bool
    num_inducing: int
    seed: int

    def stage_objective(self, stage: int) -> Objective:
        """What a stage maximises."""
        return stages.stage_objective(self.objective, self.schedule[stage][0])

    def sparse(self, stage: int) -> bool:
        """Whether a stage has inducing points."""
        return self.stage_objective(stage).sparse

    @property
    def first_bound(self) -> Any:
        """What the schedule begins with."""
        return self.schedule[0][0]

    def part(self, size: int | None, fewest: int = 0) -> np.ndarray | None:
        """The rows to begin on, where that saves time: a step's cost grows faster than they do.

        fewest: rows that there must be, for given inducing points.
        """
        n = self.X.shape[0]
        linear = self.stage_objective(0).method == "sgpr"
        if size is None or size < fewest or n <= 2 * size or linear or self.optimize_inducing:
            return None
        return random_rows(n, size, self.seed)

    def joint(self, stage: int) -> bool:
        """Whether a stage optimises everything in one go, without selections of Z in between."""
        return self.optimize_inducing or not self.sparse(stage)

    def fingerprint(self, gp: GP, Z: Array | None, path: Any) -> str:
        """Changes if anything that decides the path of the optimisation changes."""
        values, structure = jax.tree.flatten(gp)
        settings = (
            self.objective,
            self.schedule,
            self.optimize_inducing,
            self.num_inducing,
            self.seed,
            path,
            self.parameters.floor,
            self.parameters.fixed,
            str(structure),
        )
        return fingerprint(settings, (self.X, self.y, Z, *values))

    def select(self, gp: GP, round_number: int) -> Array:
        """Greedy inducing points at these hyperparameters."""
        m = min(self.num_inducing, self.X.shape[0])
        return jnp.asarray(inducing.greedy(gp.kernel, self.X, m, seed=self.seed + round_number))

    def prepare(self, free: Array, Z: Array | None, stage: int) -> Prepared:
        """The objective of a stage, its blocks and neighbours for these hyperparameters."""
        objective = self.stage_objective(stage)
        return objective.prepare(self.parameters.unflatten(free), self.X, Z)

    def evaluate(
        self, prepared: Prepared, free: Array, Z: Array | None, v: Array | None
    ) -> Evaluation | None:
        """The bound and its gradient at a free vector."""
        return evaluate(prepared, self.parameters.unflatten(free), self.X, self.y, Z, v)
