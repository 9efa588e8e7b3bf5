"""What is odd about inputs and targets, in sentences: each can spoil a fit without an error."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

__all__ = ["remarks"]

# distances from the median, in units between the quartiles, from which a value is extreme
EXTREME = 1000.0
# a column is nearly constant if so large a share of its rows has one value
SAME = 0.999
# … or if it varies by less than this share of its size
VARIES = 1e-6
MOST_NAMES = 5


def remarks(
    X: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"], names: list[str]
) -> tuple[str, ...]:
    """Sentences about extreme outliers, nearly constant columns and contradictory rows: O(nd log n).

    Args:
        X: inputs, in the user's units.
        y: targets.
        names: of the columns.
    """
    found = []
    low, middle, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0)
    width, farthest = high - low, np.abs(X - middle).max(axis=0)
    extreme = (farthest > EXTREME * width) & (width > 0.0)
    if extreme.any():
        found.append(
            f"Extreme outliers in {_list(names, extreme)}: a value is over {EXTREME:g} times as far "
            "from the median as half of the rows. Next to it the other rows nearly coincide, and a fit "
            "may see only noise. Check these values, or transform the column."
        )
    varies = np.ptp(X, axis=0)
    size = np.abs(X).max(axis=0)
    few = np.array([np.unique(column, return_counts=True)[1].max() for column in X.T]) >= SAME * len(X)
    nearly = (varies > 0.0) & ((varies <= VARIES * size) | (few & (len(X) > 1.0 / (1.0 - SAME))))
    if nearly.any():
        found.append(
            f"Nearly constant: {_list(names, nearly)}. Standardised, what little varies counts as much "
            "as any other column. Leave it out unless it matters."
        )
    contradictory = _contradictory(X, y)
    if contradictory:
        found.append(
            f"{contradictory} inputs occur more than once with different targets: the noise cannot be "
            "smaller than their spread."
        )
    return tuple(found)


def _contradictory(X: np.ndarray, y: np.ndarray) -> int:
    """How many distinct rows have more than one target."""
    _, group = np.unique(X, axis=0, return_inverse=True)
    group = group.reshape(-1)
    least, most = np.full(group.max() + 1, np.inf), np.full(group.max() + 1, -np.inf)
    np.minimum.at(least, group, y)
    np.maximum.at(most, group, y)
    return int(np.sum(most > least))


def _list(names: list[str], chosen: np.ndarray) -> str:
    picked = [names[i] for i in np.flatnonzero(chosen)]
    more = f" and {len(picked) - MOST_NAMES} more" if len(picked) > MOST_NAMES else ""
    return ", ".join(picked[:MOST_NAMES]) + more
