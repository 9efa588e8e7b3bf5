"""How much each input column matters to a kernel."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from cglb.kernels import Columns, Kernel, Linear, Periodic, Product, Scaled, Stationary, Sum

__all__ = ["raw_relevance", "relevance"]


def relevance(kernel: Kernel, varies: Bool[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """`raw_relevance` with its largest entry scaled to 1; 0 for a column that does not vary, whose
    lengthscale nothing was learned about."""
    raw = np.where(varies, raw_relevance(kernel, len(varies)), 0.0)
    top = raw.max(initial=0.0)
    return raw / top if top > 0.0 else raw


def raw_relevance(kernel: Kernel, d: int) -> Float[np.ndarray, " d"]:
    """Inverse lengthscale of each column; 0 for a column the kernel ignores."""
    if isinstance(kernel, Stationary | Periodic):
        return np.broadcast_to(1.0 / np.asarray(kernel.lengthscale), (d,)).copy()
    if isinstance(kernel, Linear):
        return np.broadcast_to(np.sqrt(np.asarray(kernel.variance)), (d,)).copy()
    if isinstance(kernel, Sum | Product):
        return np.maximum(raw_relevance(kernel.left, d), raw_relevance(kernel.right, d))
    if isinstance(kernel, Scaled):
        return raw_relevance(kernel.kernel, d)
    out = np.zeros(d)
    if isinstance(kernel, Columns):
        out[list(kernel.columns)] = raw_relevance(kernel.kernel, len(kernel.columns))
    return out
