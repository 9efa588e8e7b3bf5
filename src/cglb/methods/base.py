"""A method: what training maximises, in which stages, and how a trained model is conditioned on data.

A subclass is a frozen dataclass whose fields are its settings. Its `name` in the class statement
registers it, so that `GPRegressor(method=name)` and saved models find it:

    @dataclass(frozen=True)
    class Mine(Method, name="mine"):
        tolerance: float = 1.0
        ...

`evaluate` is a pure function of its arguments. CG starts from the v0 it is given and the v it found is
part of the answer; the caller decides when to move on. So the same point evaluated twice gives the same
bits.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from cglb.bounds.logdet import LogdetBound
from cglb.bounds.terms import BoundTerms
from cglb.core.validation import boundary
from cglb.linalg.blocks import Neighbours
from cglb.linalg.cg import Solution, Stop
from cglb.linalg.system import Solver, System
from cglb.methods.stages import Stage
from cglb.model import GP
from cglb.posteriors.base import Posterior

__all__ = [
    "Conditioned",
    "Evaluation",
    "Method",
    "Prepared",
    "condition",
    "find",
    "finite_or_none",
    "names",
]

# bytes per float64, and arrays [n, m] that are alive at once: A, its chunked copy and a gradient, with
# some room
FLOAT, ALIVE = 8, 4
# inducing points that `num_inducing="auto"` takes at most
AUTO_POINTS = 512


@dataclass(frozen=True)
class Prepared:
    """What stays fixed during a round.

    Attributes:
        label: what bounds (or estimates) log|K̂|, for the history.
        logdet: the bound on log|K̂|, with its blocks; None if there is none.
        neighbours: for preconditioners, shared by the systems of the round.
    """

    label: str
    logdet: LogdetBound | None = None
    neighbours: Neighbours | None = None


class Evaluation(eqx.Module):
    """A bound (or an estimate, which has a spread) at one point, its gradient, and what CG did.

    Attributes:
        terms: the value in its terms.
        gp_bar: the gradient in the hyperparameters, as a GP of slopes.
        Z_bar: the gradient in the inducing points, [m, d].
        v: CG's solution, [n].
        slack: certified nats that v costs; None if nothing certifies it.
        jitter: relative jitter that Kuu needed.
        cg_steps: steps of CG.
        products: products with K̂.
        cg_stop: why CG stopped; None if there was none.
        spread: the standard error of an estimate; None for a bound.
        system: of this point, for the newest accepted evaluation only: others are dropped.
    """

    terms: BoundTerms
    gp_bar: GP
    Z_bar: Float[Array, "m d"] | None = None
    v: Float[Array, " n"] | None = None
    slack: float | None = eqx.field(static=True, default=0.0)
    jitter: float = eqx.field(static=True, default=0.0)
    cg_steps: int = eqx.field(static=True, default=0)
    products: int = eqx.field(static=True, default=0)
    cg_stop: Stop | None = eqx.field(static=True, default=None)
    spread: float | None = eqx.field(static=True, default=None)
    system: System | None = eqx.field(static=True, default=None)

    @property
    def value(self) -> float:
        """The bound in nats."""
        terms = self.terms
        return float(terms.constant) + float(terms.quadratic) + float(terms.logdet)


class Conditioned(eqx.Module):
    """A model conditioned on data.

    Attributes:
        posterior: its predictions.
        solution: CG's answer at the tolerance for predictions; None if there was no CG.
    """

    posterior: Posterior
    solution: Solution | None = None


@dataclass(frozen=True)
class Method(abc.ABC):
    """What training maximises.

    Attributes:
        name: under which the class is registered.
        needs_points: whether training selects inducing points for it.
        noise_floor: the smallest noise variance, in units of the target's variance.
        exact_first: whether the exact likelihood of a part of the rows leads to its optimum.
        is_exact: whether its value is log p(y) itself, not a bound or an estimate.
        padded: whether its systems may have rows that count for nothing (see `cglb.linalg.row_noise`),
            so that few programs serve every number of rows.
    """

    name: ClassVar[str] = ""
    needs_points: ClassVar[bool] = True
    noise_floor: ClassVar[float] = 1e-6
    exact_first: ClassVar[bool] = False
    is_exact: ClassVar[bool] = False
    padded: ClassVar[bool] = False

    def __init_subclass__(cls, name: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if name is not None:
            cls.name = name
            _METHODS[name] = cls

    @property
    def solver(self) -> Solver:
        """How this method solves with K̂."""
        return Solver()

    def system(
        self,
        gp: GP,
        X: Float[Array, "n d"],
        Z: Float[Array, "m d"] | None,
        prepared: Prepared | None = None,
    ) -> System:
        """K̂ of a model on data, for this method.

        Args:
            prepared: what to share with the other systems of a round.
        """
        return System(gp, X, Z, self.solver, neighbours=prepared and prepared.neighbours)

    @abc.abstractmethod
    def prepare(self, system: System) -> Prepared:
        """Fix what depends on the data and roughly on the hyperparameters, such as neighbours."""

    @abc.abstractmethod
    def evaluate(
        self,
        prepared: Prepared,
        system: System,
        y: Float[Array, " n"],
        v0: Float[Array, "n *k"] | None = None,
        seed: Sequence[int] = (0,),
    ) -> Evaluation | None:
        """Value and gradient at the model and the inducing points of a system; None if the numbers are
        not finite or a matrix cannot be factored, as at the far end of a line search.

        Args:
            prepared: from `prepare`, at this or at a nearby model.
            y: training targets.
            v0: where CG starts: one vector, or several whose best combination is taken.
            seed: decides what is random. The same numbers give the same bits.
        """

    @abc.abstractmethod
    def condition(
        self, system: System, y: Float[Array, " n"], v0: Float[Array, " n"] | None = None
    ) -> Conditioned:
        """The posterior given all data, with CG at the tolerance for predictions."""

    def stages(self, n: int, part: int | None, joint: bool) -> tuple[Stage, ...]:
        """The stages of training from the given start alone (`schedule="direct"`).

        Args:
            n: training rows.
            part: rows to begin on if that pays; None to begin on all rows.
            joint: whether inducing points are optimised with the hyperparameters.
        """
        return (Stage(self, joint=joint),)

    def points(self, n: int, wanted: int | str, memory_gb: float | None) -> int:
        """How many inducing points to use for n rows.

        Args:
            n: training rows.
            wanted: a number, or "auto" for as many as are useful and fit.
            memory_gb: the budget for arrays [n, m]; None for no limit.

        Raises:
            ValueError: if `wanted` is not a number of points, or if they do not fit.
        """
        per_point = ALIVE * FLOAT * n / 2**30
        fitting = n if memory_gb is None else int(memory_gb / per_point)
        if wanted == "auto":
            return max(1, min(n, self.auto_points, fitting))
        if isinstance(wanted, str) or wanted < 1:
            raise ValueError(f"num_inducing must be a positive integer or 'auto', found {wanted!r}.")
        m = min(int(wanted), n)
        if m > fitting:
            raise ValueError(
                f"num_inducing={m} with {n} rows needs about {m * per_point:.1f} GB, more than "
                f"memory_gb={memory_gb}. At most {fitting} inducing points fit."
            )
        return m

    @property
    def auto_points(self) -> int:
        """How many points "auto" takes at most."""
        return AUTO_POINTS

    @property
    def in_training(self) -> Method:
        """This method for a progressive schedule: itself unless it can save work there."""
        return self

    def with_points(self, m: int) -> Method:
        """This method for m points; itself unless their number is one of its settings."""
        return self

    def points_at(self, gp: GP, X: Float[Array, "n d"]) -> Float[Array, "m d"] | None:
        """The points of a trained model if training had none, such as those of a preconditioner."""
        return None


_METHODS: dict[str, type[Method]] = {}


def names() -> tuple[str, ...]:
    """The names of all registered methods."""
    return tuple(_METHODS)


def find(method: str | Method, settings: Mapping[str, Any] | None = None) -> Method:
    """The method of a name; a method passes through.

    Args:
        method: a registered name, or a method.
        settings: for a method given by name; those that it does not have are left out.

    Raises:
        ValueError: if no method has this name, with the names there are.
    """
    if isinstance(method, Method):
        return method
    if method not in _METHODS:
        raise ValueError(f"method must be one of auto, {', '.join(_METHODS)}, found {method!r}.")
    cls = _METHODS[method]
    known = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: value for name, value in (settings or {}).items() if name in known})


@boundary
def condition(
    method: Method,
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"] | None = None,
    v0: Float[Array, " n"] | None = None,
) -> Conditioned:
    """`method.condition` for data from outside: they are checked, and the result holds NumPy arrays
    unless the caller is in the float64 scope."""
    return method.condition(method.system(gp, X, Z), y, v0)


def finite_or_none(found: Evaluation) -> Evaluation | None:
    """The evaluation, if its value and gradient are finite numbers."""
    leaves = jax.tree.leaves((found.terms, found.gp_bar))
    return found if all(np.isfinite(np.asarray(leaf)).all() for leaf in leaves) else None
