"""Training rows as a `System` sees them: with their own noise, and filled up to a common size.

Row i has the noise variance Dᵢ = σ²/wᵢ + tᵢ for a weight w and a known part t. `Rows` extends the inputs
by what `RowScaled` needs and fills them up with rows that count for nothing, so that all numbers of rows
of a bucket run the same compiled code. The functions below say what bounds need to know of rows: how
many count, e = S(y − μ), and how log|K + D| differs from log|SKS + σ²I|, which is what bounds on log|K̂|
are about. For a plain kernel these are all rows, y − μ and 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from cglb.core.precision import Number, is_traced
from cglb.kernels.base import Kernel
from cglb.kernels.rows import RowScaled
from cglb.model import GP

__all__ = [
    "EQUAL",
    "RowNoise",
    "Rows",
    "bucket",
    "counts",
    "log_size",
    "log_units",
    "number",
    "plain_model",
    "plain_rows",
    "residual",
    "scales",
    "shift",
]

# sizes per doubling: many where a row costs much, few where only the number of programs counts
FINE, MEDIUM, COARSE = 32, 8, 4
COARSE_BELOW, MEDIUM_BELOW = 1000, 8000


def bucket(n: int) -> int:
    """The size that n rows are filled up to: at most 3 % more from 8,000 rows on, 13 % from 1,000."""
    per_doubling = COARSE if n < COARSE_BELOW else MEDIUM if n < MEDIUM_BELOW else FINE
    step = max(1, 1 << max(0, (n - 1).bit_length() - 1) >> per_doubling.bit_length() - 1)
    return -(-n // step) * step


class RowNoise(NamedTuple):
    """What is known of the noise of each row: its variance is σ²/weight + known."""

    weight: Float[np.ndarray, " n"] | None = None  # 1 by default
    known: Float[np.ndarray, " n"] | None = None  # 0 by default

    def of_rows(self, chosen: Any) -> RowNoise:
        """That of some of the rows."""
        return RowNoise(*(None if part is None else np.asarray(part)[chosen] for part in self))

    def followed_by(self, n: int, other: RowNoise, more: int) -> RowNoise:
        """That of n rows with this noise and `more` rows with another."""
        parts = []
        for mine, theirs, default in zip(self, other, (1.0, 0.0), strict=True):
            both = ((mine, n), (theirs, more))
            filled = [np.full(size, default) if part is None else part for part, size in both]
            parts.append(None if mine is None and theirs is None else np.concatenate(filled))
        return RowNoise(*parts)

    def check(self, n: int) -> None:
        """Check that there is one finite number per row, and that variances are positive.

        Raises:
            ValueError: if not.
        """
        for name, part in self._asdict().items():
            if part is None:
                continue
            array = np.asarray(part)
            if array.shape != (n,) or not np.isfinite(array).all():
                raise ValueError(
                    f"row_noise.{name} must be {n} finite numbers, found shape {array.shape}."
                )
            if (array < 0.0).any() or (name == "weight" and not array.all()):
                least = "positive" if name == "weight" else "at least 0"
                raise ValueError(f"row_noise.{name} must be {least}, found {array.min():g}.")


EQUAL = RowNoise()  # σ² for every row


@dataclass(frozen=True)
class Rows:
    """Training data of a system.

    Attributes:
        X: inputs, with the columns of `RowScaled` if there are any, [N, d + extra].
        y: targets, 0 on rows of padding, [N].
        n: rows that are not padding: the first ones.
        extra: columns that were added: 0, 1 (weights or padding) or 2 (known noise).
    """

    X: Float[Array, "n d"]
    y: Float[Array, " n"]
    n: int
    extra: int = 0

    @classmethod
    def of(
        cls,
        X: Any,
        y: Any,
        noise: RowNoise = EQUAL,
        padded: bool = False,
    ) -> Rows:
        """The rows (X, y).

        Args:
            X: inputs [n, d].
            y: targets [n].
            noise: of each row.
            padded: whether to fill up to the size of the bucket.
        """
        n, (weight, known) = len(y), noise
        size = bucket(n) if padded else n
        if weight is None and known is None and not padded:
            return cls(jax.device_put(X), jax.device_put(y), n)
        root = np.ones(n) if weight is None else np.sqrt(weight)
        columns = [root] if known is None else [root, known]
        rows = np.empty((size, X.shape[1] + len(columns)))
        # NumPy's: JAX would compile each cut for each number of rows
        rows[:n] = np.column_stack([np.asarray(X), *columns])
        rows[n:] = rows[n - 1]  # no outliers
        rows[n:, X.shape[1]] = 0.0
        targets = np.zeros(size)
        targets[:n] = y
        return cls(jax.device_put(rows), jax.device_put(targets), n, len(columns))

    def model(self, gp: GP) -> GP:
        """The model on these rows."""
        if not self.extra:
            return gp
        kernel = RowScaled(gp.kernel, gp.noise, self.extra == 2)
        return eqx.tree_at(lambda g: g.kernel, gp, kernel)  # unchecked: a line search may go too far

    def slopes(self, gp: GP, gp_bar: GP) -> GP:
        """The gradient in the plain model `gp`, from that in `model(gp)`."""
        if not self.extra:
            return gp_bar
        outer: Any = gp_bar.kernel
        leaves = jax.tree.leaves((outer.kernel, outer.noise + gp_bar.noise, gp_bar.mean))
        return jax.tree.unflatten(jax.tree.structure(gp), leaves)

    def at(self, X: Any) -> Any:
        """Inducing points or test rows [m, d] as rows of weight 1 without noise of their own."""
        if X is None:
            return None
        if not self.extra:
            return X if isinstance(X, jax.Array) else jax.device_put(X)
        more = np.zeros((X.shape[0], self.extra))
        more[:, 0] = 1.0
        return jax.device_put(np.concatenate([np.asarray(X), more], axis=1))

    def plain(self, X: Any) -> Any:
        """Rows without the added columns."""
        return X if X is None or not self.extra else X[:, : -self.extra]

    def start(self, gp: GP, v: Any) -> Any:
        """Where CG starts on these rows, from a v ≈ (K + D)⁻¹(y − μ) of as many or fewer rows."""
        if v is None:
            return None
        filled = np.zeros(len(self.y))
        filled[: len(v)] = v
        s = self._scale(gp)
        if s is not None:
            filled = np.divide(filled, s, out=np.zeros_like(filled), where=s > 0.0)
        return jax.device_put(filled)

    def solution(self, gp: GP, v: Any) -> Float[np.ndarray, " n"] | None:
        """(K + D)⁻¹(y − μ) ≈ Sv of the rows that count, from CG's v on these rows."""
        if v is None:
            return None
        s, found = self._scale(gp), np.asarray(v)
        return np.array((found if s is None else found * s)[: self.n])

    def _scale(self, gp: GP) -> np.ndarray | None:
        return scales(self.model(gp).kernel, self.X)


# ---- what a model says about rows of either kind ----


def number(kernel: Kernel, X: Float[Array, "n d"]) -> Any:
    """How many rows count; a JAX number inside a trace."""
    if not isinstance(kernel, RowScaled):
        return X.shape[0]
    if is_traced(X):
        return jnp.sum(X[:, -kernel.extra] != 0.0).astype(X.dtype)
    return int(np.count_nonzero(counts(kernel, X)))


def counts(kernel: Kernel, X: Float[Array, "n d"]) -> Bool[np.ndarray, " n"]:
    """Whether each row counts, for concrete arrays."""
    if not isinstance(kernel, RowScaled):
        return np.ones(X.shape[0], dtype=bool)
    return np.asarray(X)[:, -kernel.extra] != 0.0


def residual(gp: GP, X: Float[Array, "n d"], y: Float[Array, " n"]) -> Float[Array, " n"]:
    """e = S(y − μ), differentiable in gp."""
    return _residual(gp, X, y) if isinstance(gp.kernel, RowScaled) else y - gp.mean


def log_units(kernel: Kernel, X: Float[Array, "n d"]) -> Number | float:
    """log|K + D| − log|SKS + σ²I| of the rows that count: −2 Σ log s, differentiable."""
    return _log_units(kernel, X) if isinstance(kernel, RowScaled) else 0.0


def shift(kernel: Kernel, noise: Number, X: Float[Array, "n d"]) -> Number | float:
    """log|K + D| of the rows that count minus log|SKS + σ²I| of *all* rows, differentiable.

    That is `log_units`, minus log σ² for each of the rows that count for nothing.
    """
    if not isinstance(kernel, RowScaled):
        return 0.0
    others = X.shape[0] - number(kernel, X)
    return _log_units(kernel, X) - others * jnp.log(noise)


def log_size(kernel: Kernel, noise: float, X: Float[Array, "n d"]) -> float:
    """Σ (1 + |log Dᵢ|), by which the rounding of Σ log Dᵢ is measured."""
    size = X.shape[0] * (1.0 + abs(float(np.log(noise))))
    if not isinstance(kernel, RowScaled):
        return size
    s = np.asarray(_scales(kernel, X))[counts(kernel, X)]
    return size + 2.0 * float(np.sum(np.abs(np.log(s))))


def scales(kernel: Kernel, X: Float[Array, "n d"]) -> Float[np.ndarray, " n"] | None:
    """s of each row, for concrete arrays; None for a plain kernel."""
    return np.asarray(_scales(kernel, X)) if isinstance(kernel, RowScaled) else None


def plain_model(gp: GP) -> GP:
    """The model of f itself, without what belongs to rows."""
    if not isinstance(gp.kernel, RowScaled):
        return gp
    return eqx.tree_at(lambda g: g.kernel, gp, gp.kernel.kernel)


def plain_rows(kernel: Kernel, X: Float[Array, "n d"]) -> Any:
    """Inputs without what belongs to rows."""
    if not isinstance(kernel, RowScaled):
        return X
    return jax.device_put(np.ascontiguousarray(np.asarray(X)[:, : -kernel.extra]))


@jax.jit
def _scales(kernel: RowScaled, X: Array) -> Array:
    return kernel.scale(X)


@jax.jit
def _residual(gp: GP, X: Array, y: Array) -> Array:
    kernel: Any = gp.kernel
    return kernel.scale(X) * (y - gp.mean)


@jax.jit
def _log_units(kernel: RowScaled, X: Array) -> Array:
    real = X[:, -kernel.extra] != 0.0
    return -2.0 * jnp.sum(jnp.log(jnp.where(real, kernel.scale(X), 1.0)))
