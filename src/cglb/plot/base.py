"""What displays share."""

from __future__ import annotations

from typing import Any

from cglb.diagnostics import Held, held_out, leave_one_out
from cglb.regressor import GPRegressor

__all__ = ["Display", "held_by"]

BLUE, GREY = "#1f5fa8", "#8a8a8a"


class Display:
    """A picture on one set of axes.

    Attributes:
        ax_: the axes, once drawn.
        figure_: their figure.
    """

    ax_: Any
    figure_: Any

    def _axes(self, ax: Any, **labels: str) -> Any:
        """The axes to draw on, new ones if there are none."""
        import matplotlib.pyplot as plt  # slow, and needed only to draw

        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        ax.set(**labels)
        ax.spines[["top", "right"]].set_visible(False)
        self.ax_, self.figure_ = ax, ax.figure
        return ax


def held_by(model: GPRegressor, X: Any, y: Any) -> Held:
    """Predictions of the given rows, or of the training rows left out in turn."""
    if (X is None) != (y is None):
        raise ValueError("Give both X and y, or neither of them.")
    return leave_one_out(model) if X is None else held_out(model, X, y)


def target_name(model: GPRegressor) -> str:
    """The name of the target, or "y"."""
    return model.target_name_ or "y"
