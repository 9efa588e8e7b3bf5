"""The interface of posteriors, and test rows in batches.

Every posterior has `mean`, `variance` and `covariance` of the latent f at new inputs; add the noise for
observations. Means and variances are computed in batches of test rows, which limits memory.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from cglb.compute.programs import wide
from cglb.core.precision import is_traced
from cglb.core.validation import boundary
from cglb.linalg.operator import KernelOperator
from cglb.linalg.row_noise import bucket
from cglb.model import GP

__all__ = [
    "BATCH_ROWS",
    "Posterior",
    "batch_size",
    "batches",
    "cross_mean",
    "filled_up",
    "find",
    "in_batches",
    "points_mean",
]

BATCH_ROWS = 1024
BATCH_SIZES = (1, 8, 64, 256, BATCH_ROWS)
# test rows, and their kernel entries, up to which means are made without tiles
FEW_ROWS, FEW_ENTRIES = 64, 4_000_000

_REGISTRY: dict[str, type[Posterior]] = {}


class Posterior(eqx.Module):
    """A model conditioned on data. Subclasses register themselves by class name, for model files.

    Their fields are a model, arrays, None, or values that JSON supports, so that they can be saved.

    Attributes:
        exact: whether its variances are those of the exact posterior.
        gp: the model.
    """

    exact: ClassVar[bool] = False

    @property
    def solved(self) -> bool:
        """Whether its mean is that of the exact posterior, to CG's tolerance, but its variance not."""
        return False

    gp: eqx.AbstractVar[GP]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__name__.startswith("_"):
            _REGISTRY[cls.__name__] = cls

    @boundary
    def mean(self, X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
        """E f(X_star)."""
        return self._mean(X_star)

    @boundary
    def variance(self, X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
        """Var f(xᵢ) for each row, never negative."""
        return self._variance(X_star)

    @boundary
    def covariance(self, X_star: Float[Array, "s d"]) -> Float[Array, "s s"]:
        """Cov(f(xᵢ), f(xⱼ)) for all pairs of rows."""
        C = self.gp.kernel(X_star, X_star) - self._explained(X_star)
        # rounding can make C slightly asymmetric and its diagonal slightly negative
        C = 0.5 * (C + C.T)
        return C + jnp.diag(jnp.maximum(-jnp.diagonal(C), 0.0))

    def mean_terms(self) -> tuple[tuple[Array, Array], ...]:
        """Pairs (points P, weights w) with E f(x) = Σ k(x, P)w + μ, for gradients in x.

        Raises:
            ValueError: if the posterior does not say.
        """
        raise ValueError(f"{type(self).__name__} has no gradient: it does not define `mean_terms`.")

    @boundary
    def explained(self, X_star: Float[Array, "s d"]) -> Float[Array, "s s"]:
        """How much the data reduce the prior covariance [s, s], differentiable in X_star."""
        return self._explained(X_star)

    @abc.abstractmethod
    def _mean(self, X_star: Array) -> Array: ...

    @abc.abstractmethod
    def _variance(self, X_star: Array) -> Array: ...

    @abc.abstractmethod
    def _explained(self, X_star: Array) -> Array:
        """How much the data reduce the prior covariance [s, s]."""


def find(name: str) -> type[Posterior]:
    """The class with this name.

    Raises:
        ValueError: if there is none; the message lists the registered names.
    """
    if name not in _REGISTRY:
        raise ValueError(f"No posterior is called {name!r}. Registered: {', '.join(_REGISTRY)}.")
    return _REGISTRY[name]


def cross_mean(gp: GP, terms: Sequence[tuple[Array, Array]], X_star: Array) -> Array:
    """Σ K(X_star, P)w + μ over pairs (points P, weights w): for few rows one program."""
    entries = X_star.shape[0] * sum(points.shape[0] for points, _ in terms)
    if X_star.shape[0] <= FEW_ROWS and entries <= FEW_ENTRIES:
        return in_batches(points_mean, (gp, tuple(terms)), X_star)
    operators = [(KernelOperator.of(gp, points), weights) for points, weights in terms]

    def mean(rows: Array) -> Array:
        return sum((operator.cross(rows, w) for operator, w in operators), start=jnp.asarray(gp.mean))

    return filled_up(mean, X_star)


def points_mean(given: tuple[GP, tuple[tuple[Array, Array], ...]], X_star: Array) -> Array:
    """Σ K(X_star, P)w + μ, with all entries in memory."""
    gp, terms = given
    # few rows second: around them distances are precise, and their features cost nothing
    found = (weights @ gp.kernel(points, X_star) for points, weights in terms)
    return sum(found, start=jnp.asarray(gp.mean))


def filled_up(function: Callable[[Array], Array], X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
    """`function(X_star)`, one number per row, with rows added up to the size of a bucket.

    So that compiled code serves every number of rows of the bucket.
    """
    if is_traced(X_star):
        return function(X_star)
    rows = np.asarray(X_star)
    return jax.device_put(np.asarray(function(_more_rows(rows, bucket(len(rows)))))[: len(rows)])


def in_batches(
    function: Callable[[Any, Array], Array], shared: Any, X_star: Float[Array, "s d"]
) -> Float[Array, " s"]:
    """`function(shared, rows)` on batches of one of a few sizes, which the last batch is filled up to.

    So the compiled code does not depend on the number of rows.

    Args:
        function: gives one number per row.
        shared: its first argument, the same for all batches.
        X_star: the rows.
    """
    s = X_star.shape[0]
    size = batch_size(s)
    if is_traced(shared, X_star):
        count = -(-s // size)
        padded = jnp.pad(X_star, ((0, count * size - s), (0, 0)))
        parts = padded.reshape(count, size, -1)
        return lax.map(lambda rows: function(shared, rows), parts).reshape(-1)[:s]
    if s == size:
        return _one_batch(function, shared, X_star)
    rows = np.asarray(X_star)
    parts = [_more_rows(rows[i : i + size], size) for i in range(0, s, size)]
    found = [np.asarray(_one_batch(function, shared, part)) for part in parts]
    return jax.device_put(np.concatenate(found)[:s])


def batch_size(s: int, most: int = BATCH_ROWS) -> int:
    """The smallest size of a batch that takes s rows at once, or the largest."""
    return next((size for size in BATCH_SIZES if size >= min(s, most)), most)


def _more_rows(rows: np.ndarray, size: int) -> Array:
    """The rows, and copies of the last one up to `size` rows."""
    return jax.device_put(np.pad(rows, ((0, size - len(rows)), (0, 0)), mode="edge"))


@partial(wide, static_argnums=0)
def _one_batch(function: Callable[[Any, Array], Array], shared: Any, rows: Array) -> Array:
    return function(shared, rows)


def batches(X_star: Float[Array, "s d"], size: int) -> list[tuple[Float[Array, "b d"], int]]:
    """Batches of rows for a loop on the host, each with its number of rows before padding.

    All have the same size, unless there is only one. The last is padded with copies of its last row.
    """
    s = X_star.shape[0]
    found = []
    for start in range(0, s, size):
        rows = X_star[start : start + size]
        missing = size - rows.shape[0] if s > size else 0
        found.append((jnp.pad(rows, ((0, missing), (0, 0)), mode="edge"), rows.shape[0]))
    return found
