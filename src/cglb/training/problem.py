"""What does not change during a fit: data, stages, parameters and options."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.linalg import inducing
from cglb.linalg.system import System
from cglb.methods.base import Prepared, Stage
from cglb.model import GP
from cglb.optimisers.base import Point
from cglb.training.free import Parameters
from cglb.training.options import Options

__all__ = ["Problem", "random_rows"]


def random_rows(n: int, size: int, seed: int) -> np.ndarray:
    """The numbers of `size` of n rows, drawn at random, in their order."""
    return np.sort(np.random.default_rng(seed).permutation(n)[:size])


@dataclass(frozen=True)
class Problem:
    """What a fit maximises, on which data and in which stages.

    Attributes:
        X: training inputs.
        y: training targets.
        Z: inducing points to start from; None to select them.
        stages: of training.
        parameters: between a model and the vector that is optimised.
        options: those of the fit.
    """

    X: Float[Array, "n d"]
    y: Float[Array, " n"]
    Z: Float[Array, "m d"] | None
    stages: tuple[Stage, ...]
    parameters: Parameters
    options: Options

    @property
    def n(self) -> int:
        """All training rows."""
        return self.X.shape[0]

    def rows(self, stage: int) -> int:
        """Training rows of a stage."""
        wanted = self.stages[stage].rows
        return self.n if wanted is None else min(wanted, self.n)

    def data(self, stage: int) -> tuple[Array, Array]:
        """X and y of a stage."""
        return self._parts[self.rows(stage)]

    @cached_property
    def _parts(self) -> dict[int, tuple[Array, Array]]:
        """The data by the number of rows: stages with the same number share them."""
        parts = {self.n: (self.X, self.y)}
        for stage in range(len(self.stages)):
            size = self.rows(stage)
            if size not in parts:
                chosen = random_rows(self.n, size, self.options.seed)
                parts[size] = (self.X[chosen], self.y[chosen])
        return parts

    def fingerprint(self, gp: GP) -> str:
        """Changes if anything that decides the path of the optimisation changes."""
        values, structure = jax.tree.flatten(gp)
        path = (self.options.path(self.stages), self.parameters.floor, str(structure))
        digest = hashlib.sha256(repr(path).encode())
        for array in (self.X, self.y, self.Z, *values):
            digest.update(b"none" if array is None else np.asarray(array).tobytes())
        return digest.hexdigest()

    # ---- models ----

    def flatten(self, gp: GP) -> np.ndarray:
        """The free vector of a model."""
        return np.asarray(self.parameters.flatten(gp))

    def unflatten(self, free: Any) -> GP:
        """The model of a free vector; differentiable."""
        return self.parameters.model(jnp.asarray(free))

    def natural(self, free: np.ndarray) -> dict[str, float]:
        """The hyperparameters of a free vector by name."""
        return self.parameters.values_by_name(self.unflatten(free))

    def select(self, free: np.ndarray, stage: int, round_number: int) -> Array:
        """Greedy inducing points at these hyperparameters."""
        X, _ = self.data(stage)
        m = min(self.options.num_inducing, X.shape[0])
        kernel = self.unflatten(free).kernel
        return X[inducing.greedy_rows(kernel, X, m, self.options.seed + round_number)]

    # ---- the vector that a stage optimises ----

    def join(self, stage: int, free: Any, Z: Any) -> np.ndarray:
        """The free vector, followed by Z if the stage optimises it too."""
        if not self.stages[stage].joint:
            return np.asarray(free)
        return np.concatenate([np.asarray(free), np.asarray(Z).ravel()])

    def separate(self, stage: int, x: np.ndarray, Z: Array | None) -> tuple[np.ndarray, Array | None]:
        """The inverse of `join`; Z is the one to keep, or of the shape to restore."""
        if not self.stages[stage].joint or Z is None:
            return x, Z
        p = x.shape[0] - Z.size
        return x[:p], jnp.asarray(x[p:].reshape(Z.shape))

    def system(self, stage: int, free: Any, Z: Array | None, prepared: Prepared | None = None) -> System:
        """K̂ of a free vector on the rows of a stage."""
        X, _ = self.data(stage)
        return self.stages[stage].method.system(self.unflatten(free), X, Z, prepared)

    def evaluate(
        self, stage: int, prepared: Prepared, system: System, x: np.ndarray, v0: Array | None, draw: int
    ) -> Point | None:
        """Value and gradient at x, with the `Evaluation` as `found`; None if they are not finite.

        Args:
            system: that of x.
            draw: which random numbers to take, for a method that does.
        """
        _, y = self.data(stage)
        seed = (self.options.seed, stage, draw)
        found = self.stages[stage].method.evaluate(prepared, system, y, v0, seed)
        if found is None:
            return None
        free = x[: x.shape[0] - system.Z.size] if self.stages[stage].joint else x
        free_bar = self.parameters.pull(jnp.asarray(free), found.gp_bar)
        gradient = self.join(stage, free_bar, found.Z_bar)
        return Point(x, found.value, gradient, found) if np.isfinite(gradient).all() else None
