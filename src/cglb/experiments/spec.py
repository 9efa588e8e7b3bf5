"""An experiment is data set × split × method, frozen; the defaults are the paper's protocol.

Identity and budget are separate. A `Spec` is everything that determines the path of the optimisation,
and so the name of the run in the store. A `Budget` only says where to stop on that path, so a run with a
larger budget resumes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cglb import methods
from cglb.data import datasets
from cglb.methods import CGLB, SGPR, Exact, Iterative
from cglb.methods.cglb import Slopes
from cglb.training.free import DEFAULT_FLOOR, LOG, SOFTPLUS
from cglb.training.options import STEPS_PER_ROUND, Schedule

__all__ = [
    "PAPER_DATA",
    "PAPER_METHODS",
    "Budget",
    "Method",
    "Spec",
    "parse_data",
    "parse_methods",
    "plan",
]

PAPER_DATA = ("bike", "elevators", "pol", "kin40k", "protein")
PAPER_METHODS = ("iterative", "sgpr-4096", "cglb-4096", "cglb-2048", "cglb-1024")
PAPER_SPLITS = 5
PAPER_STEPS = 2000
# steps by which `Budget.gain` is judged
GAIN_STEPS = 20
TWO_THIRDS = 2 / 3


@dataclass(frozen=True)
class Kind:
    """What a kind of method trains, and how.

    Attributes:
        method: what is maximised.
        progressive: train as `GPRegressor` does, from few rows to all and from several starts, with
            logarithms as free parameters. Otherwise as in the paper: all rows from one start, softplus.
        letter: what replaces `method` where inducing points are optimised jointly, as in the paper:
            training then has the paper's settings. None for the same.
    """

    method: methods.Method
    progressive: bool = False
    letter: methods.Method | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The options of `train` that say how."""
        if self.progressive:
            return {"schedule": Schedule.PROGRESSIVE, "transform": LOG.name}
        return {"schedule": Schedule.DIRECT, "transform": SOFTPLUS.name}


# The methods of the paper are trained as in the paper, exact and the chain as well as we can. CGLB has
# the bound of the paper, but CG to 0.1 nats and slopes at its solution: with CG to 1 nat v stays where
# it is while steps are small, and L-BFGS ends at the best model for that v (on elevators, 100 nats short
# with 512 points).
KINDS: Mapping[str, Kind] = {
    "exact": Kind(Exact(), progressive=True),
    "sgpr": Kind(SGPR("trace")),
    "cglb": Kind(CGLB("amgm", cg_tolerance=0.1, slopes=Slopes.SOLUTION), letter=CGLB("amgm")),
    "chain": Kind(CGLB("chain"), progressive=True),
    "iterative": Kind(Iterative()),
}
SPARSE = tuple(name for name, kind in KINDS.items() if kind.method.needs_points)
# the paper found this floor necessary for stability; the supplement tries the other pairs
ITERATIVE_FLOOR, ITERATIVE_RATE = Iterative.noise_floor, Iterative().rate
ITERATIVE_GRID = tuple((rate, floor) for rate in (0.1, 0.01) for floor in (1e-4, 1e-6))

POSSIBLE = (
    "exact, sgpr-M, cglb-M, chain-M (M inducing points, such as cglb-1024), iterative, "
    "iterative-lrR-floorF (such as iterative-lr0.01-floor1e-6), iterative-grid (the supplement's four)"
)


@dataclass(frozen=True)
class Method:
    """How hyperparameters are learned and predictions are made.

    Attributes:
        kind: "exact", "sgpr", "cglb", "chain" (cglb with the chain's log-det) or "iterative".
        num_inducing: M, for sparse methods.
        noise_floor: the smallest noise variance.
        learning_rate: Adam's, for "iterative".
    """

    kind: str
    num_inducing: int | None = None
    noise_floor: float = DEFAULT_FLOOR
    learning_rate: float | None = None

    @property
    def name(self) -> str:
        """The name on the command line; `parse` is the inverse."""
        if self.num_inducing is not None:
            return f"{self.kind}-{self.num_inducing}"
        if self.learning_rate is None:
            return self.kind
        if (self.learning_rate, self.noise_floor) == (ITERATIVE_RATE, ITERATIVE_FLOOR):
            return self.kind
        return f"{self.kind}-lr{self.learning_rate:g}-floor{self.noise_floor:g}"

    @property
    def trained(self) -> methods.Method:
        """The method that is trained, with its settings."""
        found = KINDS[self.kind].method
        return found if self.learning_rate is None else replace(found, rate=self.learning_rate)

    def as_trained(self, jointly: bool) -> methods.Method:
        """The same where inducing points are optimised `jointly`, to the letter of the paper."""
        return (KINDS[self.kind].letter if jointly else None) or self.trained

    @property
    def sparse(self) -> bool:
        """Whether it has inducing points."""
        return KINDS[self.kind].method.needs_points

    @classmethod
    def parse(cls, text: str) -> Method:
        """A method from its name.

        Raises:
            ValueError: if no method has this name; the message lists the possible names.
        """
        if text == "exact":
            return cls("exact")
        if found := re.fullmatch(rf"({'|'.join(SPARSE)})-(\d+)", text):
            if int(found[2]) < 1:
                raise ValueError(f"{text!r} needs at least one inducing point.")
            return cls(found[1], int(found[2]))
        if found := re.fullmatch(r"iterative(?:-lr([^-]+))?(?:-floor(.+))?", text):
            rate = _positive(text, found[1], ITERATIVE_RATE)
            floor = _positive(text, found[2], ITERATIVE_FLOOR)
            return cls("iterative", None, floor, rate)
        raise ValueError(f"No method is called {text!r}. Possible are: {POSSIBLE}.")


def _positive(text: str, number: str | None, default: float) -> float:
    if number is None:
        return default
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not (value > 0.0 and math.isfinite(value)):
        raise ValueError(f"{text!r}: {number!r} is not a positive number. Possible are: {POSSIBLE}.")
    return value


@dataclass(frozen=True)
class Spec:
    """One run. The split's number seeds the split and every random choice of the training.

    Attributes:
        data: the name of the data set.
        split: the number of the split.
        method: what is trained.
        fraction: share of the rows for training.
        steps_per_round: as in `cglb.training.options.Options`.
        optimize_inducing: as in `cglb.training.options.Options`.
    """

    data: str
    split: int
    method: Method
    fraction: float = TWO_THIRDS
    steps_per_round: int = STEPS_PER_ROUND
    optimize_inducing: bool = False

    def __post_init__(self) -> None:
        if self.data not in datasets.names():
            raise ValueError(
                f"No data set is called {self.data!r}. Possible are: {', '.join(datasets.names())}."
            )
        if not 0.0 < self.fraction < 1.0:
            raise ValueError(
                f"The fraction for training must be between 0 and 1, found {self.fraction}."
            )
        if self.split < 0:
            raise ValueError(f"Splits are numbered from 0, found {self.split}.")
        if self.steps_per_round < 1:
            raise ValueError(f"A round needs at least one step, found {self.steps_per_round}.")

    @property
    def variant(self) -> str:
        """What differs from the default protocol, in words."""
        parts = []
        if not math.isclose(self.fraction, TWO_THIRDS):
            parts.append(f"{self.fraction:g} for training")
        if self.optimize_inducing:
            parts.append("joint Z")
        if self.steps_per_round != STEPS_PER_ROUND:
            parts.append(f"rounds of {self.steps_per_round}")
        return ", ".join(parts)

    @property
    def group(self) -> tuple[str, str, str]:
        """The same for runs that differ only in their split: one row of the table, one curve."""
        return self.data, self.method.name, self.variant

    @property
    def name(self) -> str:
        """A readable folder name; a hash of all fields and of the method's settings makes it unique."""
        settings = repr(self.method.as_trained(self.optimize_inducing))
        fields = json.dumps(self.to_json() | {"settings": settings}, sort_keys=True)
        digest = hashlib.sha256(fields.encode()).hexdigest()
        return f"{self.data}-split{self.split}-{self.method.name}-{digest[:8]}"

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Spec:
        """The inverse of `to_json`."""
        return cls(**{**document, "method": Method(**document["method"])})


@dataclass(frozen=True)
class Budget:
    """Where training stops.

    Attributes:
        max_steps: optimiser steps.
        max_minutes: minutes of training, without metrics; None for no limit.
        gain: nats; training also stops when `GAIN_STEPS` steps on all rows gained less.
    """

    max_steps: int = PAPER_STEPS
    max_minutes: float | None = None
    gain: float = 0.0

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"A run needs at least one step, found {self.max_steps}.")
        if self.max_minutes is not None and not self.max_minutes > 0.0:
            raise ValueError(f"The minutes of a run must be positive, found {self.max_minutes}.")
        if not self.gain >= 0.0:
            raise ValueError(f"The nats that a run must gain cannot be negative, found {self.gain}.")

    @property
    def max_seconds(self) -> float | None:
        """The limit in seconds."""
        return None if self.max_minutes is None else 60.0 * self.max_minutes


def plan(
    data: Iterable[str],
    methods: Iterable[Method],
    splits: Iterable[int],
    *,
    fraction: float = TWO_THIRDS,
    steps_per_round: int = STEPS_PER_ROUND,
    optimize_inducing: bool = False,
) -> list[Spec]:
    """Every combination, one split at a time, so that the first results compare methods on one split.

    A setting that a method does not use keeps its default, so that it does not make a different run.
    """
    methods = list(methods)
    data = list(data)
    return [
        Spec(
            name,
            split,
            method,
            fraction,
            steps_per_round if method.sparse and not optimize_inducing else STEPS_PER_ROUND,
            optimize_inducing and method.sparse,
        )
        for split in splits
        for name in data
        for method in methods
    ]


def parse_data(text: str) -> list[str]:
    """Names of data sets from a list with commas; `Spec` checks them."""
    return _items(text, "data set", datasets.names())


def parse_methods(text: str) -> list[Method]:
    """Methods from a list with commas; "iterative-grid" stands for the supplement's four."""
    methods: list[Method] = []
    for item in _items(text, "method", [POSSIBLE]):
        if item == "iterative-grid":
            methods += [Method("iterative", None, floor, rate) for rate, floor in ITERATIVE_GRID]
        else:
            methods.append(Method.parse(item))
    return list(dict.fromkeys(methods))


def _items(text: str, what: str, possible: Iterable[str]) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise ValueError(f"No {what} was named in {text!r}. Possible are: {', '.join(possible)}.")
    return list(dict.fromkeys(items))
