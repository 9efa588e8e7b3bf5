"""The rows nearest to each test row, or nearly: any rows may serve as neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

__all__ = ["Nearest"]

# rows up to which all distances are computed
FEW = 2_000
# columns, counted by how much they vary, from which a tree looks at most of its leaves
MANY_COLUMNS = 12.0
# how much farther than the nearest rows those of a tree may be
NEARLY = 0.25
# entries of the matrix of distances that is in memory at a time
DISTANCES = 2_000_000


class Nearest:
    """A search by a k-d tree, or by all distances among few rows and in many columns.

    What it finds for a test row does not depend on the others. All distances cost O(nd) per test row,
    the tree far less.

    Args:
        rows: inputs [n, d], in units of the kernel's lengthscales.
    """

    def __init__(self, rows: Float[np.ndarray, "n d"]):
        self._rows, self._norms = rows, np.sum(rows * rows, axis=1)
        self._tree: Any = None
        if len(rows) > FEW and _columns(rows) < MANY_COLUMNS:
            from scipy.spatial import KDTree  # slow to import

            self._tree = KDTree(rows)

    def __call__(self, X_star: Float[np.ndarray, "s d"], k: int) -> Int[np.ndarray, "s k"]:
        """The numbers of k rows for each row of X_star."""
        s, n = len(X_star), len(self._rows)
        if k == n:
            return np.tile(np.arange(k), (s, 1))
        if self._tree is not None:
            index = self._tree.query(X_star, k, eps=NEARLY, workers=-1 if s > 1 else 1)[1]
            return np.asarray(index).reshape(s, k)
        found = np.empty((s, k), dtype=np.intp)
        size = max(1, DISTANCES // n)
        for start in range(0, s, size):
            distance = self._norms - 2.0 * X_star[start : start + size] @ self._rows.T
            found[start : start + size] = np.argpartition(distance, k - 1, axis=1)[:, :k]
        return found


def _columns(rows: np.ndarray) -> float:
    """How many columns of equal variance would spread as the rows do: (Σⱼ vⱼ)²/Σⱼ vⱼ²."""
    variance = rows.var(axis=0)
    return float(np.sum(variance) ** 2 / max(float(np.sum(variance**2)), np.finfo(float).tiny))
