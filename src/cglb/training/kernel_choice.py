"""`kernel="auto"`: families of kernels compared on few rows by their exact log p(y).

Matérn-3/2 is searched from several starts. Every other family begins at the best model found so far,
with its lengthscales, variance, noise and mean, so it needs few steps. The best family is then compared
with itself plus a linear function of all columns.
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
from cglb.methods.stages import STARTS, Start, search
from cglb.model import GP
from cglb.training.trainer import train

__all__ = ["FAMILIES", "KernelChoice", "choose_kernel"]

# the first one is searched; the others follow in this order
FAMILIES = ("matern32", "matern52", "rbf", "rational_quadratic", "matern12")
LINEAR = " + linear"
# the variance of the linear part at first, in units of that of the rest
LINEAR_SHARE = 0.1


@dataclass(frozen=True)
class KernelChoice:
    """The best kernel, and how the others compare.

    Attributes:
        gp: the best model on the rows that were used.
        ranking: (name, log p(y) of these rows in nats), the best first.
        rows: how many rows were used.
    """

    gp: GP
    ranking: tuple[tuple[str, float], ...]
    rows: int


@boundary
def choose_kernel(
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    *,
    families: Sequence[str] = FAMILIES,
    starts: Sequence[Start] = STARTS,
    noise: float | None = None,
    part: int = 500,
    **options: Any,
) -> KernelChoice:
    """Compare families of kernels by exact log p(y), with priors if there are any, on few rows.

    Args:
        X: inputs.
        y: targets.
        families: names of stationary kernels; the first is searched from all starts.
        starts: of that search.
        noise: the noise variance of the given model (`GIVEN`); None for 1.
        part: rows to use, drawn at random; all of them if there are not many more.
        **options: for `train`, such as floor, priors and seed.
    """
    n, d = X.shape
    stage = search(Exact(), n, part)

    def fit(gp: GP, starts: Sequence[Start] = ()) -> tuple[float, GP]:
        # the last stage goes on from the best end of the others
        stages = (
            *(replace(stage, start=start) for start in starts),
            replace(stage, share=1.0, extra=False),
        )
        done = train(gp, X, y, Exact(), stages=stages, **options)
        return done.bound, done.gp

    given = GP(find(families[0]).default(d), np.asarray(1.0 if noise is None else noise))
    found = {families[0]: fit(given, starts)}
    for name in families[1:]:
        found[name] = fit(_of_family(name, _best(found)[1]))
    name, gp = _best(found)
    found[name + LINEAR] = fit(_with_linear(gp, d))
    ranking = sorted(((name, value) for name, (value, _) in found.items()), key=lambda pair: -pair[1])
    return KernelChoice(_best(found)[1], tuple(ranking), stage.rows or n)


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
