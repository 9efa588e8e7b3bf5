"""An experiment is data set × split × method, frozen; the defaults are the paper's protocol.

Identity and budget are separate. A `Spec` is everything that determines the path of the optimisation,
and so the name of the run in the store. A `Budget` only says where to stop on that path, so a run with a
larger budget resumes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cglb.data import datasets
from cglb.experiments.kinds import KINDS, Manner, Method, items
from cglb.training.options import STEPS_PER_ROUND

__all__ = ["PAPER_DATA", "Budget", "Spec", "parse_data", "plan"]

PAPER_DATA = ("bike", "elevators", "pol", "kin40k", "protein")
PAPER_SPLITS = 5
PAPER_STEPS = 2000
# steps by which `Budget.gain` is judged
GAIN_STEPS = 20
TWO_THIRDS = 2 / 3


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
    def manner(self) -> Manner:
        """How it is trained."""
        if KINDS[self.method.kind].progressive:
            return Manner.PROGRESSIVE
        return Manner.LETTER if self.optimize_inducing else Manner.DIRECT

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
    return items(text, "data set", datasets.names())
