"""Where the Iterative GP baseline is connected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cglb.train import Fit

__all__ = ["IterativeGP", "NotAvailableError", "iterative_gp"]


class NotAvailableError(RuntimeError):
    """A method that this release does not have."""


@dataclass(frozen=True)
class IterativeGP:
    """What the experiments need of it.

    learn:     called like `cglb.train` with gp, X, y and the keywords max_steps, floor, learning_rate,
               seed, callback, checkpoint, checkpoint_seconds and max_seconds; its history rows hold at
               least step, bound (the estimate), cg_steps, evaluations, products, seconds and parameters.
    posterior: (gp, X, y, Z) to an object with `mean(X_star)` and `variance(X_star)` of the latent f; Z
               is that of the `Fit`.
    """

    learn: Callable[..., Fit]
    posterior: Callable[..., Any]


def iterative_gp() -> IterativeGP:
    """The baseline's two entry points."""
    raise NotAvailableError(
        "Iterative GP is not available in this release yet. There are exact, sgpr-M, cglb-M and chain-M."
    )
