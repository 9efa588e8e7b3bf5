"""The methods of an experiment by their names, and how each kind is trained."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from cglb import methods
from cglb.methods import CGLB, SGPR, Exact, Iterative
from cglb.methods.cglb import Slopes
from cglb.training.free import DEFAULT_FLOOR, LOG, SOFTPLUS
from cglb.training.options import Schedule

__all__ = ["KINDS", "PAPER_METHODS", "Kind", "Manner", "Method", "items", "parse_methods"]

PAPER_METHODS = ("iterative", "sgpr-4096", "cglb-4096", "cglb-2048", "cglb-1024")


class Manner(StrEnum):
    """How a run is trained.

    `PROGRESSIVE`: as `GPRegressor` does, from few rows to all and from several starts. `DIRECT`: on all
    rows from one start, inducing points selected in rounds. `LETTER`: the same, but inducing points
    optimised with everything else and every setting the paper's.
    """

    PROGRESSIVE = "progressive"
    DIRECT = "direct"
    LETTER = "letter"


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
# it is while steps are small, and L-BFGS ends at the best model for that v.
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


def parse_methods(text: str) -> list[Method]:
    """Methods from a list with commas; "iterative-grid" stands for the supplement's four."""
    methods: list[Method] = []
    for item in items(text, "method", [POSSIBLE]):
        if item == "iterative-grid":
            methods += [Method("iterative", None, floor, rate) for rate, floor in ITERATIVE_GRID]
        else:
            methods.append(Method.parse(item))
    return list(dict.fromkeys(methods))


def items(text: str, what: str, possible: Iterable[str]) -> list[str]:
    """The items of a list with commas, each once; `what` and `possible` are for the message."""
    found = [item.strip() for item in text.split(",") if item.strip()]
    if not found:
        raise ValueError(f"No {what} was named in {text!r}. Possible are: {', '.join(possible)}.")
    return list(dict.fromkeys(found))
