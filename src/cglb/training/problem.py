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
from cglb.linalg.row_noise import RowNoise, Rows, plain_model
from cglb.linalg.system import System
from cglb.methods.base import Prepared
from cglb.methods.stages import Stage
from cglb.model import GP
from cglb.optimisers.base import Point
from cglb.training.free import Parameters
from cglb.training.options import Options
from cglb.training.priors import Priors, as_priors

__all__ = ["Problem", "random_rows"]

# noise up to so many times a floor may have been held up by it, and how much less is tried then
NEAR_FLOOR, LESS_NOISE = 2.0, 0.1
# lengthscales so many times the shortest one have left the data, and how long they are to come back
LOST, BACK = 1000.0, 300.0
# a value so many times its floor hardly depends on it
FAR_ABOVE = 10.0


def random_rows(n: int, size: int, seed: int) -> np.ndarray:
    """The numbers of `size` of n rows, drawn at random, in their order."""
    return np.sort(np.random.default_rng(seed).permutation(n)[:size])


@dataclass(frozen=True)
class Problem:
    """What a fit maximises, on which data and in which stages.

    Attributes:
        X: training inputs.
        y: training targets.
        noise: what is known of the noise of each row.
        Z: inducing points to start from; None to select them.
        stages: of training.
        parameters: between a model and the vector that is optimised.
        options: those of the fit.
    """

    X: Float[Array, "n d"]
    y: Float[Array, " n"]
    noise: RowNoise
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

    def data(self, stage: int) -> Rows:
        """The rows of a stage, as its method sees them."""
        return self._parts[self.rows(stage), self.stages[stage].method.padded]

    @cached_property
    def _parts(self) -> dict[tuple[int, bool], Rows]:
        """The data by the number of rows and padding: stages with the same share them."""
        X, y = np.asarray(self.X), np.asarray(self.y)
        parts = {}
        for stage in range(len(self.stages)):
            size, padded = self.rows(stage), self.stages[stage].method.padded
            if (size, padded) not in parts:
                chosen = slice(None) if size == self.n else random_rows(self.n, size, self.options.seed)
                noise = self.noise.of_rows(chosen)
                parts[size, padded] = Rows.of(X[chosen], y[chosen], noise, padded)
        return parts

    def fingerprint(self, gp: GP) -> str:
        """Changes if anything that decides the path of the optimisation changes."""
        values, structure = jax.tree.flatten(gp)
        path = (self.options.path(self.stages), self.parameters.floor, str(structure))
        digest = hashlib.sha256(repr(path).encode())
        for array in (self.X, self.y, *self.noise, self.Z, *values):
            digest.update(b"none" if array is None else np.asarray(array).tobytes())
        return digest.hexdigest()

    # ---- models ----

    @cached_property
    def log_prior(self) -> Priors:
        """Of a model, with its gradient; 0 without priors."""
        return Priors.of(as_priors(self.options.priors, self.X.shape[1]), self.parameters)

    def parameters_of(self, stage: int) -> Parameters:
        """The parameters with the noise floor of a stage."""
        return self._parameters[self.stages[stage].noise_floor]

    @cached_property
    def _parameters(self) -> dict[float, Parameters]:
        floors = {stage.noise_floor for stage in self.stages}
        return {floor: self.parameters.with_noise_floor(floor) for floor in floors}

    def flatten(self, stage: int, gp: GP) -> np.ndarray:
        """The free vector of a model in a stage."""
        return np.asarray(self.parameters_of(stage).flatten(gp))

    def unflatten(self, stage: int, free: Any) -> GP:
        """The model of a free vector of a stage; differentiable."""
        return self.parameters_of(stage).model(free)

    def carried(self, free: np.ndarray, before: int, stage: int) -> np.ndarray:
        """The same model as a free vector of another stage, whose noise floor may differ."""
        if self.parameters_of(before) is self.parameters_of(stage):
            return free
        return self.flatten(stage, self.unflatten(before, free))

    def same_meaning(self, free: np.ndarray, stage: int) -> np.ndarray:
        """Which entries [p] of a free vector mean nearly the same in the next stage: those whose floor
        does not change, and those that are far above it."""
        before, after = (self.parameters_of(one).floors for one in (stage, stage + 1))
        values = np.array(list(self.natural(stage, free).values()))
        return (before == after) | (values > FAR_ABOVE * np.maximum(before, after))

    def with_less_noise(self, stage: int, free: np.ndarray) -> np.ndarray | None:
        """The free vector with a tenth of the noise where the floor of earlier stages may have held it
        up; None if the noise is well above that floor, near its own, or fixed."""
        if not self.stages[stage].method.needs_points:
            return None
        held = max((one.noise_floor for one in self.stages[:stage]), default=0.0)
        parameters, gp = self.parameters_of(stage), self.unflatten(stage, free)
        less = LESS_NOISE * float(gp.noise)
        if float(gp.noise) > NEAR_FLOOR * held or less < NEAR_FLOOR * parameters.noise_floor:
            return None
        found = self.flatten(stage, GP(gp.kernel, jnp.asarray(less), gp.mean))
        return None if np.array_equal(found, free) else found

    def with_columns_back(self, stage: int, free: np.ndarray) -> np.ndarray:
        """The free vector with lengthscales that are LOST times the shortest one of their kernel made
        BACK times as long: there, a column matters little, but its gradient says whether it should."""

        def nearer(path: tuple, value: Any) -> Any:
            if getattr(path[-1], "name", "") != "lengthscale" or np.ndim(value) == 0:
                return value
            shortest = jnp.min(value)
            return jnp.where(value > LOST * shortest, BACK * shortest, value)

        gp = self.unflatten(stage, free)
        same, moved = self.flatten(stage, gp), jax.tree_util.tree_map_with_path(nearer, gp)
        back = self.flatten(stage, moved)
        return np.where(back == same, free, back)

    def start(self, stage: int) -> np.ndarray:
        """The free vector at which a stage that has a start begins.

        All rows decide: a column may be constant on a part of them.
        """
        begin = self.stages[stage].start
        assert begin is not None
        return self.flatten(stage, begin(self.parameters.template, self.X, self.y))

    def natural(self, stage: int, free: np.ndarray) -> dict[str, float]:
        """The hyperparameters of a free vector by name."""
        return self.by_name(self.unflatten(stage, free))

    def by_name(self, gp: GP) -> dict[str, float]:
        """The hyperparameters of a model by name."""
        return self.parameters.values_by_name(gp)

    def select(self, free: np.ndarray, stage: int, round_number: int) -> Array:
        """Greedy inducing points at these hyperparameters, as many as can matter.

        log|Q̂| ≤ log|K̂| ≤ log|Q̂| + tr(K − Q)/σ², so tr(K − Q)/2σ² nats are all that more points can
        gain.
        """
        rows = self.data(stage)
        m = min(self.options.num_inducing, rows.n)
        gp = self.unflatten(stage, free)
        enough = 2.0 * float(gp.noise) * self.options.enough
        seed = self.options.seed + round_number
        chosen = inducing.greedy_rows(rows.model(gp).kernel, rows.X, m, seed, enough)
        return jax.device_put(np.asarray(rows.plain(np.asarray(rows.X)))[chosen])

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
        rows = self.data(stage)
        gp = rows.model(self.unflatten(stage, free))
        return self.stages[stage].method.system(gp, rows.X, rows.at(Z), prepared)

    def evaluate(
        self, stage: int, prepared: Prepared, system: System, x: np.ndarray, v0: Array | None, draw: int
    ) -> Point | None:
        """Value with the log prior and gradient at x, with the `Evaluation`, which has no prior, as
        `found`; None if they are not finite.

        Args:
            system: that of x.
            draw: which random numbers to take, for a method that does.
        """
        rows = self.data(stage)
        seed = (self.options.seed, stage, draw)
        found = self.stages[stage].method.evaluate(prepared, system, rows.y, v0, seed)
        if found is None:
            return None
        free = x[: x.shape[0] - rows.plain(system.Z).size] if self.stages[stage].joint else x
        log_prior, prior_bar = self.log_prior(plain_model(system.gp))
        gp_bar = rows.slopes(self.parameters.template, found.gp_bar)
        gp_bar = gp_bar if prior_bar is None else jax.tree.map(jnp.add, gp_bar, prior_bar)
        free_bar = self.parameters_of(stage).pull(free, gp_bar)
        gradient = self.join(stage, free_bar, rows.plain(found.Z_bar))
        value = found.value + log_prior
        return Point(x, value, gradient, found) if np.isfinite(gradient).all() else None
