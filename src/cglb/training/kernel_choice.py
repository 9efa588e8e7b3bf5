"""`kernel="auto"`: families of kernels compared on few rows by their exact log p(y).

Matérn-3/2 is searched from several starts. Every other family begins at the best model found so far,
with its lengthscales, variance, noise and mean, so it needs few steps. The best family is then compared
with itself plus a linear function of all columns.

What is best on few rows need not be best on more. Where there are many, Matérn-3/2 and the best of the
others are trained on and compared on the next part of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from jaxtyping import Array, Float

from cglb.core.validation import boundary
from cglb.kernels import Linear, Stationary
from cglb.kernels.base import find
from cglb.methods import Exact
from cglb.methods.stages import STARTS, Stage, Start, search, worthwhile
from cglb.model import GP
from cglb.training.options import PARTS
from cglb.training.trainer import train

__all__ = ["FAMILIES", "KernelChoice", "Ranking", "choose_kernel"]

# the first one is searched; the others follow in this order
FAMILIES = ("matern32", "matern52", "rbf", "rational_quadratic", "matern12")
LINEAR = " + linear"
# the variance of the linear part at first, in units of that of the rest
LINEAR_SHARE = 0.1
# rounds of comparison at most, the first with all kernels and the second with two
ROUNDS = 2

Ranking = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class KernelChoice:
    """The best kernel, and how the others compare.

    Attributes:
        gp: the best model, trained on the rows of the last round.
        begin: the same trained on the rows of the first round only. A fit starts here, since a stage
            that takes some steps of its own knows the curvature for the next.
        rounds: of comparison: how many rows were used, and (name, log p(y) of these rows in nats), the
            best first. The last one decides.
    """

    gp: GP
    begin: GP
    rounds: tuple[tuple[int, Ranking], ...]

    @property
    def name(self) -> str:
        """That of the best kernel."""
        return self.rounds[-1][1][0][0]


@boundary
def choose_kernel(
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    *,
    families: Sequence[str] = FAMILIES,
    starts: Sequence[Start] = STARTS,
    noise: float | None = None,
    parts: Sequence[int] = PARTS,
    **options: Any,
) -> KernelChoice:
    """Compare families of kernels by exact log p(y), with priors if there are any, on few rows.

    Args:
        X: inputs.
        y: targets.
        families: names of stationary kernels; the first is searched from all starts.
        starts: of that search.
        noise: the noise variance of the given model (`GIVEN`); None for 1.
        parts: rows to use, drawn at random, in the first round and in the second; a part that is not
            much smaller than all rows stands for all of them, or is left out.
        **options: for `train`, such as floor, priors and seed.
    """
    n, d = X.shape
    used = worthwhile(parts[:ROUNDS], n) or (n,)

    def fit(gp: GP, stage: Stage, starts: Sequence[Start] = ()) -> tuple[float, GP]:
        # the last stage goes on from the best end of the others
        stages = (
            *(replace(stage, start=start) for start in starts),
            replace(stage, share=1.0, extra=False),
        )
        done = train(gp, X, y, Exact(), stages=stages, **options)
        return done.bound, done.gp

    first = search(Exact(), n, used[0])
    given = GP(find(families[0]).default(d), np.asarray(1.0 if noise is None else noise))
    found = {families[0]: fit(given, first, starts)}
    for name in families[1:]:
        found[name] = fit(_of_family(name, _best(found)[1]), first)
    name, gp = _best(found)
    found[name + LINEAR] = fit(_with_linear(gp, d), first)
    begin, rounds = found, [(used[0], _ranking(found))]
    for rows in used[1:]:
        stage = search(Exact(), n, rows)
        found = {name: fit(found[name][1], stage) for name in _finalists(found)}
        rounds.append((rows, _ranking(found)))
    name, gp = _best(found)
    return KernelChoice(gp, begin[name][1], tuple(rounds))


def _ranking(found: dict[str, tuple[float, GP]]) -> Ranking:
    values = ((name, value) for name, (value, _) in found.items())
    return tuple(sorted(values, key=lambda pair: -pair[1]))


def _finalists(found: dict[str, tuple[float, GP]]) -> tuple[str, str]:
    """The first family, so that the choice is never worse than without one, and the best other."""
    first, *others = found
    return first, max(others, key=lambda name: found[name][0])


def _best(found: dict[str, tuple[float, GP]]) -> tuple[str, GP]:
    name = max(found, key=lambda name: found[name][0])
    return name, found[name][1]


def _of_family(name: str, gp: GP) -> GP:
    """A model with another kernel and the parameters of this one."""
    kernel = cast(Stationary, gp.kernel)
    family = cast(type[Stationary], find(name))
    return GP(family(lengthscale=kernel.lengthscale, variance=kernel.variance), gp.noise, gp.mean)


def _with_linear(gp: GP, d: int) -> GP:
    """The same model and a linear function, with one variance per column."""
    share = LINEAR_SHARE * float(cast(Stationary, gp.kernel).variance) / d
    return GP(gp.kernel + Linear(np.full(d, share)), gp.noise, gp.mean)
