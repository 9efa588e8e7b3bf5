"""Predictive variances with a guarantee. SGPR's variance may err on either side; these do not.

`local` conditions on the rows nearest to each test point and on those that are inducing points.
Conditioning on a part of the data can only leave more variance, so it is never below the exact one.
`bracket` encloses the exact variance: Lemma 3 with k(X, x) in place of the targets bounds kᵀK̂⁻¹k from
both sides, and CG narrows the bracket. All are for the latent f; add the noise for an observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int

from cglb.compute import assemble, triangular
from cglb.compute.backend import backend_of
from cglb.compute.programs import wide
from cglb.core.validation import boundary
from cglb.kernels import Kernel
from cglb.linalg import row_noise
from cglb.linalg.cg import Limits, Stop
from cglb.linalg.nystrom import DEFAULT_JITTER
from cglb.linalg.rounding import Rounding, gamma
from cglb.linalg.system import Solver, System
from cglb.model import GP
from cglb.posteriors.base import batch_size, batches

__all__ = ["Local", "VarianceBracket", "bracket", "bracket_at", "local"]

BATCH = 64
# CG runs at most this often per batch; the first tolerance is a guess from the prior variance
ROUNDS = 6
# CG's slack is half a width; its tolerance is a little less than half of the requested width
SHARE_OF_WIDTH = 0.4
# factors by which a round lowers the tolerance: the lower end of a wide bracket may be 0, a poor guide
STRICTEST, LOOSEST = 0.01, 0.5
# rows up to which all distances are computed, and how much farther than the nearest a tree may look
BRUTE_FORCE, NEARLY = 20_000, 0.5
# neighbours of a test row: among more rows than that, 256 are worth their time
NEIGHBOURS, MORE_NEIGHBOURS = 128, 256


class VarianceBracket(eqx.Module):
    """lower ≤ Var f(xᵢ) ≤ upper for every row.

    Attributes:
        lower: the lower ends.
        upper: the upper ends.
        tight: whether each bracket [s] has reached the requested tolerance.
        products: how many products with K̂ were computed.
    """

    lower: Float[Array, " s"] | Float[np.ndarray, " s"]
    upper: Float[Array, " s"] | Float[np.ndarray, " s"]
    tight: Any
    products: int = eqx.field(static=True)

    @property
    def middle(self) -> Any:
        """The midpoint, at most half the width from the exact variance."""
        return 0.5 * (self.lower + self.upper)


@boundary
def bracket(
    gp: GP,
    X: Float[Array, "n d"],
    Z: Float[Array, "m d"],
    X_star: Float[Array, "s d"],
    tolerance: float = 0.01,
    max_steps: int = 500,
    jitter: float = DEFAULT_JITTER,
    on_batch: Callable[[int, int], None] | None = None,
) -> VarianceBracket:
    """k_ss − (2kᵀv − vᵀK̂v + rᵀQ̂⁻¹r) ≤ Var f(x) ≤ k_ss − (2kᵀv − vᵀK̂v), for every v.

    CG solves for a batch of test rows at a time. If it stops before the tolerance, the bracket is wider
    and `tight` is False.

    Args:
        gp: the model.
        X: inputs.
        Z: inducing points.
        X_star: test rows.
        tolerance: width of the bracket relative to its lower end.
        max_steps: CG's step limit.
        jitter: added to diag(Kuu), relative to its mean.
        on_batch: called after each batch with the number of rows done and of all rows.
    """
    system = System(gp, X, Z, Solver(max_steps=max_steps, jitter=jitter))
    return bracket_at(system, X_star, tolerance, on_batch)


def bracket_at(
    system: System,
    X_star: Float[Array, "s d"],
    tolerance: float = 0.01,
    on_batch: Callable[[int, int], None] | None = None,
) -> VarianceBracket:
    """`bracket` with a given system."""
    if not tolerance > 0.0:
        raise ValueError(f"tolerance must be positive, found {tolerance}.")
    parts, products, done = [], 0, 0
    rounding = Rounding.of(system)
    for rows, real in batches(X_star, BATCH):
        found = _bracket_batch(system, rounding, rows, tolerance)
        products += found.products
        parts.append((found.lower[:real], found.upper[:real], found.tight[:real]))
        done += real
        if on_batch is not None:
            on_batch(done, X_star.shape[0])
    lower, upper, tight = (jnp.concatenate(columns) for columns in zip(*parts, strict=True))
    return VarianceBracket(lower, upper, tight, products)


def _bracket_batch(system: System, rounding: Rounding, rows: Array, tolerance: float) -> VarianceBracket:
    k, k_ss = _columns(system.gp.kernel, system.X, rows)
    v, allowed, products = jnp.zeros_like(k), 0.5 * tolerance * k_ss, 0
    for _ in range(ROUNDS):
        solution = system.solve(k, v, Limits(allowed, system.solver.max_steps))
        products += solution.products
        v = solution.v
        explained = system.quadratic(k, solution)
        lower, upper, tight, allowed = _tighten(
            k_ss, explained.lower, explained.upper, allowed, jnp.asarray(tolerance)
        )
        if bool(jnp.all(tight)) or solution.stop is not Stop.TOLERANCE:
            break
    # the columns k themselves are rounded, by at most τ√(k_ss·tr K)
    error = rounding.entry * np.sqrt(np.asarray(k_ss) * rounding.trace)
    certain = rounding.quadratic(k, solution, error)
    lower, upper, tight, _ = _tighten(
        k_ss, certain.lower, certain.upper, allowed, jnp.asarray(tolerance)
    )
    return VarianceBracket(lower, upper, tight, products)


@jax.jit
def _columns(kernel: Kernel, X: Array, rows: Array) -> tuple[Array, Array]:
    return kernel(X, rows), kernel.diag(rows)


@jax.jit
def _tighten(
    k_ss: Array, least: Array, most: Array, allowed: Array, tolerance: Array
) -> tuple[Array, Array, Array, Array]:
    """The bracket from bounds on what the data explain, whether it is tight, and CG's next tolerance."""
    # the data explain neither less than nothing nor more than everything, also where rounding says so
    upper = k_ss - jnp.where(least > 0.0, least, 0.0)
    lower = jnp.maximum(jnp.where(jnp.isnan(most), 0.0, k_ss - most), 0.0)
    upper = jnp.maximum(upper, lower)
    tight = upper - lower <= tolerance * lower
    wanted = jnp.maximum(SHARE_OF_WIDTH * tolerance * lower, STRICTEST * allowed)
    return lower, upper, tight, jnp.where(tight, allowed, jnp.minimum(wanted, LOOSEST * allowed))


@boundary
def local(
    gp: GP,
    X: Float[Array, "n d"],
    X_star: Float[Array, "s d"],
    Z: Float[Array, "m d"] | None = None,
    neighbours: int | None = None,
) -> Float[Array, " s"]:
    """Var(f(x) | y at x's nearest rows and at the inducing points) ≥ Var(f(x) | all of y).

    Nearest in inputs divided by lengthscales. O(nm²) once, O(n·d + mk² + k³) per test row, O(nm) memory.

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
            neighbours = NEIGHBOURS if X.shape[0] <= BRUTE_FORCE else MORE_NEIGHBOURS
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
        self._others, self._search = others, _Search(rows[others] * self._scale)
        self._given = kernel, jnp.asarray(gp.noise), jax.device_put(rows[shared]), X
        self._factors = _explain(*self._given) if len(shared) else None
        count = len(shared) + self._k
        # sums over rows of sums over rows, and the six terms
        self._rounding = jnp.asarray([gp.kernel.rounding(X.shape[1]), gamma(2 * count + 8)])

    def __call__(self, X_star: Float[Array, "s d"]) -> Float[Array, " s"]:
        """The variances at the rows of X_star."""
        s, size = X_star.shape[0], batch_size(X_star.shape[0], BATCH)
        rows = np.pad(np.asarray(X_star), ((0, -s % size), (0, 0)), mode="edge")
        nearest = self._search(rows * self._scale, self._k)
        count = len(rows) // size
        index = self._others[nearest].reshape(count, size, self._k)
        parallel = backend_of(self._given, X_star).parallel.small_matrices()
        shared = (*self._given, self._factors, self._rounding)
        parts = (rows.reshape(count, size, rows.shape[1]), index)
        # one part at a time: batched factorisations from two threads at once never return
        each = (
            parallel.map(_local, shared, [part[i : i + 1] for part in parts])[0] for i in range(count)
        )
        found = np.concatenate([np.asarray(part) for part in each])[:s]
        if not np.isfinite(found).all():
            raise ValueError("X_star: the kernel's variance is not finite at some of its rows.")
        return jax.device_put(found)


class _Search:
    """The nearest of some rows: all distances if there are few, a k-d tree if there are many.

    Any rows serve as neighbours, so the tree may return rows that are nearly the nearest ones.
    """

    def __init__(self, rows: Float[np.ndarray, "n d"]):
        self._rows, self._norms = rows, np.sum(rows * rows, axis=1)
        self._tree: Any = None
        if len(rows) > BRUTE_FORCE:
            from scipy.spatial import KDTree  # slow to import

            self._tree = KDTree(rows)

    def __call__(self, X_star: Float[np.ndarray, "s d"], k: int) -> Int[np.ndarray, "s k"]:
        """The numbers of k rows for each row of X_star."""
        if k == 0 or k == len(self._rows):
            return np.broadcast_to(np.arange(k), (len(X_star), k))
        if self._tree is not None:
            index = self._tree.query(X_star, k, eps=NEARLY, workers=-1)[1]
            return np.asarray(index).reshape(len(X_star), k)
        found = []
        for start in range(0, len(X_star), BATCH):
            batch = X_star[start : start + BATCH]
            distance = self._norms[None, :] - 2.0 * batch @ self._rows.T
            found.append(np.argpartition(distance, k - 1, axis=1)[:, :k])
        return np.concatenate(found)


def _rows_of(X: np.ndarray, Z: Array | None) -> np.ndarray:
    """The row numbers of X that are inducing points, each once."""
    if Z is None:
        return np.zeros(0, dtype=int)
    number = {row.tobytes(): i for i, row in enumerate(X)}
    found = (number.get(row.tobytes()) for row in np.asarray(Z))
    return np.unique([i for i in found if i is not None]).astype(int)


class _Shared(NamedTuple):
    """Rows that all test rows condition on: K̂ = LLᵀ of them, L⁻¹, and k(X, rows)L⁻ᵀ.

    L⁻¹ only makes weights, for which any numbers serve. A product with it takes a tenth of the time of a
    solve with one right-hand side, for which XLA copies L.
    """

    K_hat: Float[Array, "m m"]
    L_inverse: Float[Array, "m m"]
    B: Float[Array, "n m"]


@jax.jit
def _explain(kernel: Kernel, noise: Array, shared: Array, X: Array) -> _Shared:
    K_hat = assemble.dense(kernel, noise, shared)
    L = jnp.linalg.cholesky(K_hat)
    return _Shared(K_hat, triangular.inverse(L), triangular.solve_right(L, kernel(X, shared)))


@wide
def _local(
    kernel: Kernel,
    noise: Array,
    shared: Array,
    X: Array,
    factors: _Shared | None,
    rounding: Array,
    X_star: Array,
    neighbours: Array,
) -> Array:
    """The variances at X_star.

    The weights α = K̂⁻¹k of the rows used are computed first, and then the variance of f − αᵀy itself,
    k_ss − 2αᵀk + αᵀK̂α. For *every* α this is at least Var(f | y), so what rounding does to α makes the
    variance larger at most, and only the rounding of this sum must be added: it is not divided by σ².

    Args:
        kernel: k.
        noise: σ².
        shared: rows that all test rows condition on.
        X: the other rows.
        factors: of the shared rows, by `_explain`; None without shared rows.
        rounding: relative errors of entries, and of sums over all rows used.
        X_star: test rows.
        neighbours: row numbers [s, k] of X that each test row conditions on.
    """

    def one(x_and_index: tuple[Array, Array]) -> Array:
        x, index = x_and_index
        row, near = x[None, :], X[index]
        prior, near_k = kernel.diag(row)[0], kernel(near, row)[:, 0]
        K_near = assemble.dense(kernel, noise, near)
        K, cross = K_near, near_k
        if factors is not None:  # covariances given the shared rows
            shared_k, B = kernel(row, shared)[0], factors.B[index]
            b = factors.L_inverse @ shared_k
            K, cross = K - B @ B.T, cross - B @ b
        w = _finite(cho_solve((jnp.linalg.cholesky(K), True), cross))
        variance = prior - 2.0 * (w @ near_k) + w @ (K_near @ w)
        weight, size = jnp.abs(w) @ jnp.sqrt(kernel.diag(near)), w @ w
        if factors is not None:
            a = _finite((b - w @ B) @ factors.L_inverse)
            variance = variance - 2.0 * (a @ shared_k) + a @ (factors.K_hat @ a)
            variance = variance + 2.0 * (w @ (kernel(near, shared) @ a))
            weight, size = weight + jnp.abs(a) @ jnp.sqrt(kernel.diag(shared)), size + a @ a
        # entries are off by τ√(k_ii k_jj), sums by γ of their terms' sizes
        margin = (rounding[0] + rounding[1]) * (jnp.sqrt(prior) + weight) ** 2
        certain = jnp.maximum(variance, 0.0) + 2.0 * (margin + rounding[1] * noise * size)
        # conditioning on nothing is allowed too, where float64 cannot say how much the rows explain
        return jnp.where(certain < prior, certain, prior)

    if X_star.shape[0] == 1:  # without a loop, and without batches of one matrix
        return one((X_star[0], neighbours[0]))[None]
    return lax.map(one, (X_star, neighbours), batch_size=min(BATCH, X_star.shape[0]))


def _finite(weights: Array) -> Array:
    """The weights, or 0 where a factorisation failed: any weights are allowed, also none."""
    return jnp.where(jnp.isfinite(weights), weights, 0.0)
