"""Log-normal priors on hyperparameters: training then maximises bound + log prior.

A prior is a normal density of the *logarithm* of a parameter, so its highest point is its median, in
whatever way the parameter is made free. The prior is no part of a bound on log p(y): history and
results keep the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from cglb.model import GP
from cglb.training.free import Parameters

__all__ = ["DIMENSION", "Priors", "as_priors"]

# median and spread, as (exp of the mean, standard deviation) of the logarithm
LogNormal = tuple[float, float]
DIMENSION = "dimension"
# of log ℓ in "dimension": a factor of 5.7 in either direction is one standard deviation
DIMENSION_SPREAD = math.sqrt(3.0)


def as_priors(given: Mapping[str, Any] | str | None, d: int) -> tuple[tuple[str, LogNormal], ...]:
    """Priors by name, as (name, (median, spread)).

    Args:
        given: None for none; pairs (median, spread of the logarithm) by the names of parameters; or
            "dimension": lengthscales of about √d, the distance between two rows of d standardised
            columns, so that functions of many columns are not rougher than those of few.
        d: columns.

    Raises:
        ValueError: if it is none of these.
    """
    if given is None:
        return ()
    if isinstance(given, str):
        if given != DIMENSION:
            raise ValueError(f"priors must be {DIMENSION!r}, pairs by name or None, found {given!r}.")
        return (("lengthscale", (math.sqrt(d), DIMENSION_SPREAD)),)
    found = []
    for name, pair in given.items():
        try:
            median, spread = map(float, pair)
        except (TypeError, ValueError):
            median = spread = math.nan
        if not (0.0 < median < math.inf and 0.0 < spread < math.inf):
            raise ValueError(
                f"The prior of {name!r} must be a pair of positive numbers, the median and the spread "
                f"of the logarithm, found {pair!r}."
            )
        found.append((name, (median, spread)))
    return tuple(found)


@dataclass(frozen=True)
class Priors:
    """The priors of a model's parameters.

    Attributes:
        by_leaf: (median, spread) of each array of a model, in their order; None for no prior.
    """

    by_leaf: tuple[LogNormal | None, ...]

    @classmethod
    def of(cls, given: tuple[tuple[str, LogNormal], ...], parameters: Parameters) -> Priors:
        """Those of `as_priors` for these parameters. A later name overrides an earlier one.

        Raises:
            ValueError: if a name matches no positive parameter.
        """
        by_leaf: list[LogNormal | None] = [None] * len(jax.tree.leaves(parameters.template))
        for name, prior in given:
            for leaf in parameters.positive(name):
                by_leaf[leaf] = prior
        return cls(tuple(by_leaf))

    def __call__(self, gp: GP) -> tuple[float, GP | None]:
        """Σ log N(log θ; log median, spread²) over all θ with a prior, and its gradient in the model."""
        if not any(self.by_leaf):
            return 0.0, None
        leaves, structure = jax.tree.flatten(gp)
        total, slopes = 0.0, []
        for leaf, prior in zip(leaves, self.by_leaf, strict=True):
            value = np.asarray(leaf)
            if prior is None:
                slopes.append(np.zeros_like(value))
                continue
            median, spread = prior
            z = np.log(value / median) / spread
            total -= float(np.sum(0.5 * z * z + math.log(spread * math.sqrt(2.0 * math.pi))))
            slopes.append(-z / (spread * value))
        return total, jax.tree.unflatten(structure, slopes)
