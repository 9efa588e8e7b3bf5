"""Variances given the nearest rows: never below the exact ones, at the cost of a small matrix per row.

The shared rows, which are inducing points, explain what is far; the neighbours of a test row, given the
shared rows, explain what is near. Conditioning on a part of the data can only leave more variance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.compute import assemble, triangular
from cglb.compute.backend import backend_of
from cglb.compute.each_row import Small
from cglb.core.validation import boundary
from cglb.kernels import Kernel
from cglb.linalg import row_noise
from cglb.linalg.rounding import gamma
from cglb.model import GP
from cglb.posteriors.nearest import Nearest

__all__ = ["Local", "local"]

# neighbours of a test row: among more rows than that, 256 are worth their time
NEIGHBOURS, MORE_NEIGHBOURS, MANY_ROWS = 128, 256, 20_000
# test rows whose neighbours are in memory at a time
CHUNK = 1024


@boundary
def local(
    gp: GP,
    X: Float[Array, "n d"],
    X_star: Float[Array, "s d"],
    Z: Float[Array, "m d"] | None = None,
    neighbours: int | None = None,
) -> Float[Array, " s"]:
    """Var(f(x) | y at x's nearest rows and at the inducing points) ≥ Var(f(x) | all of y).

    Nearest, or nearly, in inputs divided by lengthscales. O(nm²) once, O(m² + mk² + k³) and a search per
    test row, O(nm) memory.

    Args:
        gp: the model.
        X: inputs.
        X_star: test rows.
        Z: inducing points. Every x conditions on those that are rows of X (as greedy ones are), and its
            neighbours are chosen from the other rows, so that no observation counts twice. Inducing
            points that are not rows of X are not observations and are ignored.
        neighbours: rows that each test row conditions on, in addition to those at inducing points; by
            default 128, and 256 of more than 20,000 rows.
    """
    return Local(gp, X, Z, neighbours)(X_star)


class Local:
    """`local` for one model and data, with the search and what the inducing points explain set up once.

    Args:
        gp: the model.
        X: inputs.
        Z: inducing points, as in `local`.
        neighbours: rows that each test row conditions on, in addition to those at inducing points; by
            default 128, and 256 of more than 20,000 rows.
    """

    def __init__(
        self,
        gp: GP,
        X: Float[Array, "n d"],
        Z: Float[Array, "m d"] | None = None,
        neighbours: int | None = None,
    ):
        if neighbours is None:
            neighbours = NEIGHBOURS if X.shape[0] <= MANY_ROWS else MORE_NEIGHBOURS
        if neighbours < 1:
            raise ValueError(f"neighbours must be at least 1, found {neighbours}.")
        kernel, rows = gp.kernel, np.asarray(X)
        self._scale = kernel.relevance(X.shape[1])[None, :]
        points = None if Z is None else row_noise.plain_rows(kernel, Z)
        real = np.flatnonzero(row_noise.counts(kernel, X))
        shared = real[_rows_of(np.asarray(row_noise.plain_rows(kernel, X))[real], points)]
        # one row at least is a neighbour, so that all test rows go one way
        shared = shared[: len(real) - 1]
        others = np.setdiff1d(real, shared)
        # rows that count for nothing change nothing where there are few others, but keep the shapes
        spare = np.setdiff1d(np.arange(len(rows)), real)
        others = np.concatenate([others, spare[: max(0, neighbours - len(others))]])
        self._k = min(neighbours, len(others))
        self._others, self._nearest = others, Nearest(rows[others] * self._scale)
        # sums over rows of sums over rows, and the six terms
        count = len(shared) + self._k
        rounding = jnp.asarray([kernel.rounding(X.shape[1]), gamma(4 * count + 8)])
        model = kernel, jnp.asarray(gp.noise), X
        # of all rows, so that their number stays that of the bucket
        self._given = (*model, _explain(*model, jax.device_put(rows[shared])), rounding)

    def __call__(self, X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
        """The variances at the rows of X_star."""
        rows, backend, found = np.asarray(X_star), backend_of(self._given, X_star), []
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            index = self._others[self._nearest(part * self._scale, self._k)]
            found.append(backend.each_row(_entries, _variances, self._given, (part, index)))
        variances = np.concatenate(found)
        if not np.isfinite(variances).all():
            raise ValueError("X_star: the kernel's variance is not finite at some of its rows.")
        return jax.device_put(variances)


def _rows_of(X: np.ndarray, Z: Array | None) -> np.ndarray:
    """The row numbers of X that are inducing points, each once."""
    if Z is None:
        return np.zeros(0, dtype=int)
    number = {row.tobytes(): i for i, row in enumerate(X)}
    found = (number.get(row.tobytes()) for row in np.asarray(Z))
    return np.unique([i for i in found if i is not None]).astype(int)


class _Shared(NamedTuple):
    """What the shared rows explain of the others: K̂ = LLᵀ of them and B = k(X, rows)L⁻ᵀ."""

    rows: Float[Array, "m d"]
    L: Float[Array, "m m"]
    B: Float[Array, "n m"]
    sizes: Float[Array, " m"]  # of the rows of L, at least √k(x, x)
    sizes_of_all: Float[Array, " n"]  # of the rows of B, at least √k(x, x)


@jax.jit
def _explain(kernel: Kernel, noise: Array, X: Array, shared: Array) -> _Shared:
    def sizes(factor: Array, X: Array) -> Array:
        return jnp.sqrt(jnp.maximum(jnp.sum(factor * factor, axis=1), kernel.diag(X)))

    if not len(shared):  # kernels may not take no rows
        L, B = jnp.zeros((0, 0), dtype=X.dtype), jnp.zeros((len(X), 0), dtype=X.dtype)
        return _Shared(shared, L, B, L.reshape(0), sizes(B, X))
    L = jnp.linalg.cholesky(assemble.dense(kernel, noise, shared))
    B = triangular.solve_right(L, kernel(X, shared))
    return _Shared(shared, L, B, sizes(L, shared), sizes(B, X))


class _Entries(NamedTuple):
    """The kernel's entries for one test row x."""

    prior: Float[Array, ""]
    K_near: Float[Array, "k k"]  # K̂ of the neighbours
    k_near: Float[Array, " k"]  # of x and its neighbours
    k_shared: Float[Array, " m"]


def _entries(
    kernel: Kernel, noise: Array, X: Array, shared: _Shared, rounding: Array, x: Array, index: Array
) -> _Entries:
    row, near = x[None, :], X[index]
    K_near, k_near = assemble.dense(kernel, noise, near), kernel(near, row)[:, 0]
    k_shared = kernel(shared.rows, row)[:, 0] if len(shared.rows) else jnp.zeros(0, dtype=x.dtype)
    return _Entries(kernel.diag(row)[0], K_near, k_near, k_shared)


def _variances(small: Small, given: Any, found: _Entries, rows: Any, index: Any) -> Any:
    """The variances of a group of test rows, given the shared rows and the neighbours `index`.

    The weights α = K̂⁻¹k of the rows used are computed first, and then the variance of f − αᵀy itself,
    k_ss − 2αᵀk + αᵀK̂α. For *every* α this is at least Var(f | y), so what rounding does to α makes the
    variance larger at most, and only the rounding of this sum must be added: it is not divided by σ².

    With weights w of the neighbours C = B[index], a of the shared rows, u = Cᵀw and t = Lᵀa,

        αᵀK̂α = wᵀK̂w + 2wᵀk(near, shared)a + aᵀK̂a = wᵀK̂w + 2uᵀt + tᵀt

    up to the errors of factors and substitution. Each is exact for entries of K̂, of k(near, shared) and
    of t that differ by at most γ(m + 1)|L||Lᵀ|, γ(m)|B||Lᵀ| and γ(m)|Lᵀ||a|. So the norms of rows of L
    and B take the place of √k(x, x) in the margin where they are larger, and neither k(near, shared) nor
    t = L⁻¹k − u is made again.
    """
    _, noise, _, shared, (entry, sums) = given
    xp = small.arrays
    b = small.solve_rows(shared.L, found.k_shared)
    w, u = small.solve(found.K_near, found.k_near, shared.B, index, b)
    a = small.solve_rows(shared.L, b - u, transposed=True)
    known = xp.all(xp.isfinite(a), axis=1)[:, None]
    a, t = xp.where(known, a, 0.0), xp.where(known, b - u, 0.0)  # any weights are allowed
    K_w = (found.K_near @ w[:, :, None])[:, :, 0]
    linear = xp.sum(w * found.k_near, axis=1) + xp.sum(a * found.k_shared, axis=1)
    square = xp.sum(w * K_w, axis=1) + xp.sum(t * (t + 2.0 * u), axis=1)
    variance = found.prior - 2.0 * linear + square
    # entries are off by τ√(k_ii k_jj), sums by γ of their terms' sizes
    size = xp.sum(xp.abs(w) * shared.sizes_of_all[index], axis=1) + xp.abs(a) @ shared.sizes
    margin = (entry + sums) * (xp.sqrt(found.prior) + size) ** 2
    margin = margin + sums * noise * (xp.sum(w * w, axis=1) + xp.sum(a * a, axis=1))
    certain = xp.maximum(variance, 0.0) + 2.0 * margin
    # conditioning on nothing is allowed too, where float64 cannot say how much the rows explain
    return xp.where(certain < found.prior, certain, found.prior)
