"""Squared distances between rows, to full relative precision where the kernel can tell.

By one matrix product, r² = |s|² + |s'|² − 2sᵀs' with s = (x − origin)/scale, tiles are fast. But it
leaves an error of order 1e-16·(|s|² + |s'|²), which is far more than r² itself where rows are close and
the origin is far away. So this form is used only where its error cannot change an entry of the kernel by
more than `LIMIT` times the error of the best one. Elsewhere the tile is made again from differences of
the inputs, r² = Σⱼ ((xⱼ − x'ⱼ)/scaleⱼ)²: a rounding of a few units in the last place of r², whatever the
origin. The origin is near the data to make this rare; no result depends on it beyond rounding.

Whether a tile has to be made again is decided when it has been used, so that entries come from one pass
over the matrix product, as if nothing were checked. Where all rows are near the origin the norms of the
rows decide, and no entry is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from cglb.core.parameters import Numbers

__all__ = [
    "Rows",
    "by_differences",
    "entry_rounding",
    "far_apart",
    "from_distance",
    "middle",
    "squared_distance",
]

# columns up to which differences cost no more than a matrix product
DIRECT = 4
# |s|² + |s'|² up to which, and multiple of r² up to which, the matrix product is precise enough
LIMIT = 64.0
# units in the last place of |s|² + |s'|² up to which a distance is too small for a gradient by products
ROUNDING = 16.0
UNIT = 2.0**-53


class Rows(NamedTuple):
    """What distances need of rows: scaled and shifted inputs, their squared norms, and the inputs."""

    scaled: Float[Array, "_ d"]
    norms: Float[Array, " _"]
    raw: Float[Array, "_ d"]

    @classmethod
    def of(cls, X: Float[Array, "n d"], origin: Float[Array, "1 d"], scale: Numbers | float) -> Rows:
        """The rows X in units of `scale` (one, or one per column) around an origin."""
        scaled = (X - lax.stop_gradient(origin)) / scale
        return cls(scaled, jnp.sum(scaled * scaled, axis=1), X)


def middle(X: Float[Array, "n d"]) -> Float[Array, "1 d"]:
    """A point near most of the rows, whatever a few of them are: O(d), without a gradient.

    In each column the median of nine rows. A mean, or any one row, would follow an outlier. By a sort,
    which XLA makes once: it would fuse comparisons into the loop over all rows.
    """
    rows = jnp.asarray([(i * (X.shape[0] - 1)) // 8 for i in range(9)])
    return jnp.sort(lax.stop_gradient(X)[rows], axis=0)[4:5]


def from_distance(
    function: Callable[[Float[Array, "n1 n2"]], Any],
    F1: Rows,
    F2: Rows,
    scale: Numbers | float,
    rough: bool = True,
) -> Any:
    """function(r²) for r² between all rows, never negative; rows that coincide have 0.

    n1·n2·d flops times two, or times three and at half the speed where differences are needed.
    Differentiable through the scaled inputs and their norms.

    Args:
        function: of r²; the smaller what it returns, the less a check costs.
        F1: the first rows.
        F2: the second rows, around the same origin.
        scale: the unit of the scaled inputs, one number or [1, d].
        rough: whether the slope of the kernel in r² may be unbounded at 0, as that of exp(−r) is. If
            not, its size is at most 3/2.
    """
    d = F1.raw.shape[1]
    # a loop of one step would be inlined, and made again for every entry of a product with the tile
    missing = max(0, 2 - d)
    inverse = jnp.broadcast_to(1.0 / jnp.asarray(scale, dtype=F1.raw.dtype), (1, d))[0]
    inverse = lax.stop_gradient(jnp.pad(inverse, (0, missing)))
    if d <= DIRECT:
        return function(_distance(False, F1, F2, inverse))
    return lax.cond(
        _precise(rough, F1, F2),
        lambda known: known,
        lambda known: function(_distance(False, F1, F2, inverse)),
        function(_distance(True, F1, F2, inverse)),
    )


def _precise(rough: bool, F1: Rows, F2: Rows) -> Array:
    """Whether r² by a matrix product is precise enough for every entry of the tile."""
    F1, F2 = lax.stop_gradient((F1, F2))
    # the product that `_distance` makes, which is compiled once; r² itself is not kept for the check
    cross = F1.scaled @ F2.scaled.T

    def checked() -> Array:
        norms = F1.norms[:, None] + F2.norms[None, :]
        r2 = norms - 2.0 * cross
        precise = LIMIT * r2 >= norms  # false where norms are not finite
        if rough:  # an error of `norms` in r² is one of norms/(2r) in r
            precise = precise | (9.0 * LIMIT**2 * r2 >= norms * norms)
        else:
            precise = precise | (norms <= LIMIT)
        return jnp.all(jnp.all(precise, axis=0))  # whole rows at a time: far quicker than all at once

    if rough:
        return checked()
    near = jnp.max(F1.norms) + jnp.max(F2.norms) <= LIMIT  # almost every tile of standardised inputs
    return lax.cond(near, lambda: jnp.asarray(True), checked)


def far_apart(r2: Float[Array, "n1 n2"], F1: Rows, F2: Rows) -> Array:
    """Where r² is above the rounding of matrix products with the scaled inputs [n1, n2].

    Gradients by such products count only there: a slope of order 1/r would multiply their rounding.
    """
    norms = F1.norms[:, None] + F2.norms[None, :]
    return r2 > ROUNDING * jnp.finfo(r2.dtype).eps * norms


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _distance(product: bool, F1: Rows, F2: Rows, inverse: Array) -> Array:
    """r², by a matrix product or from differences."""
    if not product:
        return _differences(F1.raw, F2.raw, inverse)
    norms = F1.norms[:, None] + F2.norms[None, :]
    return jnp.maximum(norms - 2.0 * (F1.scaled @ F2.scaled.T), 0.0)


@_distance.defjvp
def _distance_jvp(product: bool, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """d r² = d|s|² + d|s'|² − 2(dsᵀs' + sᵀds'), through the scaled inputs alone."""
    F1, F2, _ = primals
    dF1, dF2, _ = tangents
    r2 = _distance(product, *primals)
    cross = dF1.scaled @ F2.scaled.T + F1.scaled @ dF2.scaled.T
    change = dF1.norms[:, None] + dF2.norms[None, :] - 2.0 * cross
    return r2, jnp.where(far_apart(r2, F1, F2), change, 0.0)


def _differences(X1: Array, X2: Array, inverse: Array) -> Array:
    """Σⱼ ((xⱼ − x'ⱼ)·inverseⱼ)², one column after the other."""
    missing = ((0, 0), (0, inverse.shape[0] - X1.shape[1]))
    columns1, columns2 = jnp.pad(X1, missing).T, jnp.pad(X2, missing).T

    def add(j: Array, r2: Array) -> Array:
        step = (columns1[j][:, None] - columns2[j][None, :]) * inverse[j]
        return r2 + step * step

    start = jnp.zeros((X1.shape[0], X2.shape[0]), dtype=X1.dtype)
    return lax.fori_loop(0, inverse.shape[0], add, start)


def by_differences(features: Any) -> Any:
    """Features of rows whose distances are all made from differences: slower, and as precise as can be.

    Their norms are not a number, which no check of `from_distance` finds precise enough.
    """

    def without_norms(leaf: Any) -> Any:
        return (
            leaf._replace(norms=jnp.full_like(leaf.norms, jnp.nan)) if isinstance(leaf, Rows) else leaf
        )

    return jax.tree.map(without_norms, features, is_leaf=lambda leaf: isinstance(leaf, Rows))


def entry_rounding(d: int, differences: bool = False) -> float:
    """An upper bound on the error of an entry k(x, x') relative to k(x, x), on d columns, in float64.

    The product of d columns, the norms and the scaling err by at most (2d + 8) units of |s|² + |s'|².
    The slope of a profile is at most 3/2 where LIMIT bounds that sum, and at most 0.4/r² elsewhere.
    Differences err by (d + 6) units of r². The profile itself has a few units.

    Args:
        d: columns.
        differences: whether all distances are made from differences.
    """
    product = d > DIRECT and not differences
    return (16.0 + (1.5 * LIMIT * (2.0 * d + 8.0) if product else d + 6.0)) * UNIT


def squared_distance(X1: Float[Array, "n1 d"], X2: Float[Array, "n2 d"]) -> Float[Array, "n1 n2"]:
    """r² between all rows of X1 and X2, up to a rounding that changes no choice of neighbours."""
    origin = middle(X2)
    F1, F2 = Rows.of(X1, origin, 1.0), Rows.of(X2, origin, 1.0)
    return from_distance(lambda r2: r2, F1, F2, 1.0, rough=False)
