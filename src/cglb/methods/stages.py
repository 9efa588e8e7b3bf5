"""Stages of training as data, and the two ways to put them together.

`direct` trains on all rows from the given start, as the paper does. `progressive` searches on few rows
from several starts, goes on from the best of them on more rows, and takes as few steps on all rows as
convergence needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Float

from cglb.model import GP
from cglb.optimisers.base import Optimiser
from cglb.optimisers.lbfgs import LBFGS

if TYPE_CHECKING:
    from cglb.methods.base import Method

__all__ = ["GIVEN", "STARTS", "Stage", "Start", "first_on_part", "progressive", "search", "worthwhile"]

Rows = Float[Array, "n d"] | Float[np.ndarray, "n d"]
Targets = Float[Array, " n"] | Float[np.ndarray, " n"]

# a round ends when its last steps gained less than this share of all it has gained
STALL = 0.005
# a column that varies by less than this share of its size is constant but for rounding
CONSTANT = 1e-9


@dataclass(frozen=True)
class Start:
    """Where a search begins: y's own mean and variance, lengthscales by the spread of the inputs.

    Attributes:
        lengthscale: in units of the typical distance between rows, √d times the standard deviation of
            the column, d columns that vary; None leaves the model as it was given.
        noise: the noise variance, in units of the variance of y.
    """

    lengthscale: float | None
    noise: float = 0.1

    def __call__(self, gp: GP, X: Rows, y: Targets) -> GP:
        """The model to begin with. Parameters that are not lengthscales or variances stay."""
        if self.lengthscale is None:
            return gp
        spread = np.std(np.asarray(X), axis=0)
        varies = spread > CONSTANT * np.max(np.abs(np.asarray(X)), axis=0)
        columns = max(1, int(np.sum(varies)))
        spread = np.where(varies, spread, 1.0) * np.sqrt(columns) * self.lengthscale
        scale = float(np.var(np.asarray(y))) or 1.0

        def begin(path: tuple, value: Any) -> Any:
            name = getattr(path[-1], "name", "")
            if name == "lengthscale":
                fits = np.shape(value) == spread.shape
                return spread if fits else np.full(np.shape(value), np.mean(spread))
            # a combination has several variances, whose relations are the user's
            return np.asarray(scale) if name == "variance" and single and value.ndim == 0 else value

        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(gp.kernel)]
        single = sum(getattr(path[-1], "name", "") == "variance" for path in paths) == 1
        kernel = jax.tree_util.tree_map_with_path(begin, gp.kernel)
        return GP(kernel, np.asarray(self.noise * scale), np.asarray(np.mean(np.asarray(y))))


GIVEN = Start(None)
# smooth with some noise; nearly linear with much noise; nearly linear with little; rough with little
STARTS = (Start(1.0, 0.1), Start(4.0, 0.5), Start(4.0, 0.01), Start(0.35, 0.001))


@dataclass(frozen=True)
class Stage:
    """A part of training: what is maximised, by which optimiser, on which rows and for how long.

    A stage ends when it has converged, after `steps`, or at its share of the budget.

    Attributes:
        method: what is maximised.
        optimiser: how.
        rows: train on this many rows, drawn at random; None for all.
        steps: steps at most; None for no limit of its own.
        share: of the budget of steps and of seconds. The shares of the stages so far say when a stage
            ends at the latest; 1 sets no limit but the budget itself.
        stall: a round ends when its last steps gained less than this share of all it has gained, so
            that something better than further steps can be done: new inducing points, a tighter bound.
            0 for never. The last stage ignores it if nothing better follows.
        gain: converged when the last steps gained fewer nats than this per five steps.
        window: how many steps are the last steps.
        inherits: begin with the curvature that the stage before has seen, times the ratio of their rows.
        joint: optimise inducing points with the hyperparameters, instead of selecting them in rounds.
        extra: its steps are taken in addition to `max_steps`, and its share is not added to the others.
        start: where it begins; None for where the stage before ended or, after stages with a start, at
            the best of their ends by this stage's own bound.
        noise_floor: the smallest noise variance in this stage, if it is above that of the fit.
        brings_back: at its beginning, try columns again that earlier stages have lost.
    """

    method: Method
    optimiser: Optimiser = LBFGS()  # noqa: RUF009 (frozen)
    rows: int | None = None
    steps: int | None = None
    share: float = 1.0
    stall: float = STALL
    gain: float = 0.0
    window: int = 5
    inherits: bool = False
    joint: bool = False
    extra: bool = False
    start: Start | None = None
    noise_floor: float = 0.0
    brings_back: bool = False

    def __post_init__(self) -> None:
        for name, value in {"rows": self.rows, "steps": self.steps}.items():
            if value is not None and value < 1:
                raise ValueError(f"A stage's {name} must be at least 1, found {value}.")
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"A stage's share must be between 0 and 1, found {self.share}.")

    @property
    def in_one_go(self) -> bool:
        """Whether everything is optimised together, without selections of Z in between."""
        return self.joint or not self.method.needs_points


# ---- from the given start, on all rows ----

# steps on a part of the rows, and the share of the time they get at most
PART_STEPS, PART_SHARE = 20, 0.25


def first_on_part(stage: Stage, n: int, part: int | None) -> tuple[Stage, ...]:
    """Up to 20 steps as in `stage` but on a part of the rows, in addition to the others.

    On many rows the first steps are the most expensive, because they are far from the solution. The
    part pays if there are more than twice as many rows.
    """
    if part is None or n <= 2 * part:
        return ()
    return (replace(stage, rows=part, steps=PART_STEPS, share=PART_SHARE, extra=True),)


# ---- from few rows to all ----

# a part of the rows pays if there are at least this many times as many
GROWTH = 1.5
# rows up to which a step with the exact likelihood takes less time than one with a bound
EXACT_ROWS = 4000
# a search from one start: steps at most, and the share of the time by which it has ended
SEARCH_STEPS, SEARCH_SHARE = 60, 0.1
# by when a stage on a part has ended, as a share of the time
GROWN_STEPS, GROWN_SHARE = 60, 0.4
# On a part of the rows noise can seem to vanish, and lead astray all that follows.
SEARCH_FLOOR = 1e-3
# Nats that five steps must gain. A part of the rows knows the optimum of all rows to within some nats.
# On all rows steps are cheap while the exact method is, and the cheaper the fewer rows: LAST_GAIN is the
# limit for EXACT_ROWS. Above, fewer nats per row change no prediction.
SEARCH_GAIN, GROWN_GAIN, LAST_GAIN, LAST_GAIN_PER_ROW = 1.0, 2.0, 0.02, 1e-3
# Steps by which that is judged on many rows, where three more steps cost a minute or so. Before the end
# on few rows, a step is not taken either if curvature promises less than its share, a fifth.
MANY_ROWS_WINDOW, SHARE_OF_A_STEP = 2, 0.2


def _until(gain: float) -> LBFGS:
    """Steps that promise to gain at least a fifth of what five must."""
    return LBFGS(worth=SHARE_OF_A_STEP * gain)


def worthwhile(parts: Sequence[int], n: int) -> tuple[int, ...]:
    """Those parts of n rows that are so much smaller that training on them first pays."""
    return tuple(part for part in parts if n >= GROWTH * part)


def search(exact: Method, n: int, part: int) -> Stage:
    """A search on a part of n rows, or on all of them if there are not many more."""
    rows = part if n >= GROWTH * part else None
    return Stage(
        exact,
        _until(SEARCH_GAIN),
        rows=rows,
        steps=SEARCH_STEPS,
        share=SEARCH_SHARE,
        gain=SEARCH_GAIN,
        extra=True,
        noise_floor=SEARCH_FLOOR if rows else 0.0,
    )


def progressive(
    method: Method,
    n: int,
    parts: Sequence[int],
    exact: Callable[[], Method],
    starts: Sequence[Start] = (GIVEN, *STARTS),
    joint: bool = False,
) -> tuple[Stage, ...]:
    """Stages on growing parts of the rows: exact on few, then `method`; all rows last.

    Args:
        method: what is maximised on all rows.
        n: training rows.
        parts: numbers of rows to train on before all of them, growing.
        exact: makes the exact method, for few rows.
        starts: where the searches on the fewest rows begin.
        joint: whether a last stage polishes inducing points together with the hyperparameters.
    """
    method = method.in_training
    sizes = worthwhile(parts, n)

    def on(rows: int) -> Method:
        return exact() if rows <= EXACT_ROWS else method

    def end(rows: int, least: float) -> dict[str, Any]:
        gain = LAST_GAIN * min(1.0, rows / EXACT_ROWS) + LAST_GAIN_PER_ROW * max(0, rows - EXACT_ROWS)
        gain = max(gain, least)
        if rows == n and n <= EXACT_ROWS:  # steps cost little, and the end is what counts
            return {"gain": gain}
        if rows <= EXACT_ROWS:
            return {"gain": gain, "optimiser": _until(gain)}
        # so many rows know their noise
        settings = {"window": MANY_ROWS_WINDOW, "optimiser": _until(gain), "noise_floor": 0.0}
        return {"gain": gain, **settings}

    # the best search need not be the last one, so only the stages after the next inherit
    last = Stage(method, inherits=len(sizes) > 1, brings_back=True, **end(n, 0.0))
    first = sizes[0] if sizes else n
    begin = search(on(first), n, first)
    grown = replace(begin, steps=GROWN_STEPS, share=GROWN_SHARE, brings_back=True)
    return (
        *(replace(begin, start=start) for start in starts),
        *(
            replace(grown, method=on(rows), rows=rows, inherits=i > 0, **end(rows, GROWN_GAIN))
            for i, rows in enumerate(sizes[1:])
        ),
        last,
        *((replace(last, joint=True, inherits=False),) if joint else ()),
    )
