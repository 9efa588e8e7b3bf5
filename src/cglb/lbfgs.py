"""One run of SciPy's L-BFGS-B that can be replayed from its log."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.optimize import minimize

from cglb.clock import Clock
from cglb.fitting import Work
from cglb.model import GP
from cglb.objective import Evaluation
from cglb.store import StoreError

__all__ = ["START_NOT_FINITE", "Round", "RoundResult", "free_gradient"]

# pairs of steps that L-BFGS remembers: more than there are hyperparameters, so that it knows all of
# their curvature
MEMORY = 50
# a round that stalls is one whose last steps gained little
STALL_STEPS = 5
# solutions of CG that the next evaluation starts from: along a smooth path three extrapolate it, and a
# product with three vectors costs little more than with one
RECYCLED = 3
START_NOT_FINITE = (
    "The bound is not finite at the starting point. Look at the units of X and y, or start from larger "
    "noise."
)


@dataclass(frozen=True)
class RoundResult:
    """Where a round ended and why."""

    free: Array
    Z: Array | None
    v: Array | None
    bound: float
    stop: str  # "converged", "stalled", "step limit", "time limit" or what `on_accept` gave
    message: str


class _Interrupt(Exception):
    """Leaves SciPy's loop."""


@dataclass
class Round:
    """L-BFGS-B from (free, Z, v) on −bound.

    evaluate:  (free, Z, v) to an `Evaluation`, or None where the numbers are not finite.
    unflatten: free parameters to the model.
    replay:    arrays of `log_arrays` from a run that was cut off: its values are used before new ones.
    metric:    L [p, p], with L Lᵀ near the inverse Hessian, from the round before: the optimiser sees u
               in x = x₀ + L u, where its first step of length 1 is a sensible one. None for x itself.
    stall:     end when the last STALL_STEPS steps gained less than this share of all the round has
               gained, so that something better than further steps can be done (new inducing points, a
               tighter bound); 0 for never.
    """

    evaluate: Callable[[Array, Array | None, Array | None], Evaluation | None]
    unflatten: Callable[[Array], GP]
    free: Array
    Z: Array | None
    v: Array | None
    optimize_inducing: bool
    replay: dict[str, np.ndarray] | None
    clock: Clock
    work: Work
    metric: np.ndarray | None = None
    stall: float = 0.0
    accepted: tuple[Array, Array | None, Array | None, float] | None = None
    _values: list[float] = field(default_factory=list)
    _gradients: list[np.ndarray] = field(default_factory=list)
    _bounds: list[float] = field(default_factory=list)  # after each accepted step
    _path: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # and where: x, gradient
    _logged: int = 0  # evaluations up to the last accepted step
    _caught_up: bool = False  # the replay has ended, and where it should
    _trials: dict[bytes, Evaluation] = field(default_factory=dict)
    _stop: str | None = None

    def run(self, limit: int, on_accept: Callable[[Evaluation, Array], str | None]) -> RoundResult:
        """Up to `limit` accepted steps; `on_accept` after each, with a reason to stop or None."""
        self._on_accept = on_accept
        self._replayed = len(self.replay["log_values"]) if self.replay else 0
        self._v = None if self.v is None else _recycle(self.v, None)
        self._x0 = self._join(self.free, self.Z)
        start = self._x0 if self.metric is None else np.zeros_like(self._x0)
        message, converged = "", False
        with self.clock.running():
            try:
                result = minimize(
                    self._negative,
                    start,
                    jac=True,
                    method="L-BFGS-B",
                    callback=self._accept,
                    options={
                        "maxiter": limit,
                        "maxfun": 100 * limit + 100,
                        "maxls": 30,
                        "maxcor": MEMORY,
                    },
                )
                converged = result.status != 1
                message = _explain(result.status, str(result.message))
            except _Interrupt:
                message = {
                    "callback": "Stopped by the callback.",
                    "time limit": "Stopped at the time limit.",
                    "stalled": "The bound has all but stopped rising.",
                }.get(self._stop or "", "")
        self._check_replay()
        if self.accepted is None:  # not one step: the start is the answer
            first = self._trials.get(self._x0.tobytes())
            value = first.value if first is not None else self.first
            v = first.v if first is not None else self._newest
            self.accepted = (self.free, self.Z, v, value)
        stop = self._stop or ("converged" if converged else "step limit")
        return RoundResult(*self.accepted, stop=stop, message=message)

    def log_arrays(self) -> dict[str, np.ndarray]:
        """The round up to its last accepted step, for `replay`."""
        if self.accepted is None:
            return {}
        arrays = {
            "log_values": np.array(self._values[: self._logged]),
            "log_gradients": np.stack(self._gradients[: self._logged]),
            "log_steps": np.array(len(self._bounds)),
            "log_x": self._join(self.accepted[0], self.accepted[1]),
        }
        if self._v is not None:
            arrays["log_v"] = np.asarray(self._v)
        return arrays

    @property
    def first(self) -> float:
        """The bound at the start."""
        return -self._values[0]

    def next_metric(self) -> np.ndarray | None:
        """The metric for a round that begins where this one ended: BFGS over the accepted steps, begun
        with this round's own. None where nothing is known."""
        inverse = None if self.metric is None else self.metric @ self.metric.T
        points = [(self._x0, self._gradients[0]), *self._path]
        for (x, g), (x_next, g_next) in itertools.pairwise(points):
            s, y = x_next - x, g_next - g
            if s @ y <= 1e-10 * np.linalg.norm(s) * np.linalg.norm(y):
                continue
            if inverse is None:
                inverse = np.eye(len(s)) * (s @ y) / (y @ y)
            project = np.eye(len(s)) - np.outer(s, y) / (s @ y)
            inverse = project @ inverse @ project.T + np.outer(s, s) / (s @ y)
        if inverse is None:
            return None
        values, vectors = np.linalg.eigh(inverse)
        # in C order, as it comes back from a checkpoint: bits depend on it
        return np.ascontiguousarray(vectors * np.sqrt(np.maximum(values, 1e-10 * values[-1])))

    def _position(self, u: np.ndarray) -> np.ndarray:
        return u if self.metric is None else self._x0 + self.metric @ u

    def _join(self, free: Array, Z: Array | None) -> np.ndarray:
        parts = [np.asarray(free)]
        if self.optimize_inducing and Z is not None:
            parts.append(np.asarray(Z).ravel())
        return np.concatenate(parts)

    def _separate(self, x: np.ndarray) -> tuple[Array, Array | None]:
        p = self.free.shape[0]
        if not self.optimize_inducing or self.Z is None:
            return jnp.asarray(x[:p]), self.Z
        return jnp.asarray(x[:p]), jnp.asarray(x[p:].reshape(self.Z.shape))

    def _negative(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """−bound and its gradient in u, from the log while there is one."""
        position = len(self._values)
        if position < self._replayed:
            assert self.replay is not None
            value = float(self.replay["log_values"][position])
            gradient = self.replay["log_gradients"][position]
        else:
            self._check_replay()
            if self.clock.expired and self.accepted is not None:
                self._stop = "time limit"
                raise _Interrupt
            value, gradient = self._compute(self._position(u))
        self._values.append(value)
        self._gradients.append(gradient)
        return value, gradient.copy() if self.metric is None else self.metric.T @ gradient

    def _compute(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        free, Z = self._separate(x)
        found = self.evaluate(free, Z, self._v)
        self.work.count(found)
        if found is None:
            return self._too_far(x)
        gradient = -self._join(free_gradient(self.unflatten, free, found), found.Z_bar)
        if not np.isfinite(gradient).all():
            return self._too_far(x)
        self._trials[x.tobytes()] = found
        return -found.value, gradient

    def _too_far(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """A wall: far above the values so far and flat, so that the line search takes a shorter step."""
        if not self._values:
            raise ValueError(START_NOT_FINITE)
        return max(self._values) + 1e3 * (1.0 + abs(self._values[0])), np.zeros_like(x)

    def _accept(self, u: np.ndarray) -> None:
        """SciPy accepted u: what CG starts from advances here, and only here."""
        x = self._position(u)
        self._logged = len(self._values)
        self._path.append((x.copy(), self._gradients[-1]))
        free, Z = self._separate(x)
        if self._logged <= self._replayed and not self._trials:
            if self._logged == self._replayed:
                self._catch_up(x)
            self.accepted = (free, Z, self._newest, -self._values[-1])
            self._bounds.append(-self._values[-1])
            self._stop_if(self._stalled)
            return
        found = self._trials[x.tobytes()]
        self._trials = {x.tobytes(): found}  # SciPy does not evaluate x again for a step of length 0
        if found.v is not None:
            self._v = _recycle(found.v, self._v)
        self.accepted = (free, Z, found.v, found.value)
        self._bounds.append(found.value)
        self._stop_if(self._on_accept(found, free) or self._stalled)

    def _stop_if(self, reason: str | None) -> None:
        if reason is not None:
            self._stop = reason
            raise _Interrupt

    @property
    def _stalled(self) -> str | None:
        """Asked of replayed steps too: a round cut off just as it stalled must not go on."""
        if len(self._bounds) <= STALL_STEPS:
            return None
        newest = self._bounds[-1]
        least = self.stall * (newest - self.first)
        return "stalled" if newest - self._bounds[-1 - STALL_STEPS] < least else None

    @property
    def _newest(self) -> Array | None:
        return None if self._v is None else self._v[:, 0]

    def _catch_up(self, x: np.ndarray) -> None:
        """The last replayed step: from here on the run is the one that was cut off."""
        assert self.replay is not None
        self._caught_up = x.tobytes() == self.replay["log_x"].tobytes()
        if "log_v" in self.replay:
            self._v = jnp.asarray(self.replay["log_v"])

    def _check_replay(self) -> None:
        """A log is worth nothing if the optimiser does not walk the same way along it."""
        if self._replayed and not self._caught_up:
            raise StoreError(
                "The optimiser does not repeat the steps of the checkpoint: another release of SciPy "
                "or another kind of machine wrote it. Go on there, or delete it to start anew."
            )


def _recycle(v: Array, older: Array | None) -> Array:
    """The newest solutions as columns [n, RECYCLED], the newest first; 0 where there are none yet."""
    if older is None:
        older = jnp.zeros((v.shape[0], RECYCLED), dtype=v.dtype)
    return jnp.concatenate([v[:, None], older[:, :-1]], axis=1)


def free_gradient(unflatten: Callable[[Array], GP], free: Array, found: Evaluation) -> Array:
    """The bound's gradient in the free parameters: by the chain rule through `unflatten`."""
    _, pull = jax.vjp(unflatten, free)
    (free_bar,) = pull(found.gp_bar)
    return free_bar


def _explain(status: int, message: str) -> str:
    if status == 1:
        return "The round's step limit was reached."
    if status == 2:
        return "The line search found no further improvement."
    if "PROJECTED GRADIENT" in message.upper():
        return "The gradient is zero to within its tolerance."
    return "The bound no longer improves by more than rounding."
