"""When a round of training stalls, when a stage has converged, and the work that such rules count."""

from __future__ import annotations

from collections.abc import Sequence

from cglb.methods.stages import Stage
from cglb.training.history import HistoryRow

__all__ = ["converged", "effort", "effort_per_evaluation", "stalled"]

# a round that converged and gained less than this many nats ends its stage
SMALLEST_GAIN = 0.1
# a stage before the last has converged when a round gained less than this share of all it has gained
STAGE_SHARE = 0.05
# the gain of a stage is for so many steps
STALL_STEPS = 5
# products with K̂ that take as long as all else in an evaluation
PRODUCTS = 35


def stalled(stage: Stage, last: bool, bounds: Sequence[float], effort: float) -> bool:
    """Whether the newest steps gained little of what their round has gained.

    Where everything is optimised in one go to the end, nothing better than further steps can be done.

    Args:
        stage: that of the round.
        last: whether it is the last one.
        bounds: at the start of the round and after each step.
        effort: ordinary evaluations that the newest steps took, as many as are judged. A step that takes
            several, or one with many steps of CG, must gain as much more.
    """
    share = 0.0 if stage.in_one_go and (last or stage.gain > 0.0) else stage.stall
    if len(bounds) <= stage.window + 1:
        return False
    newest = bounds[-1]
    needed = stage.gain * max(stage.window, effort) / STALL_STEPS
    least = max(needed, share * (newest - bounds[0]))
    return newest - bounds[-1 - stage.window] < least


def converged(stage: Stage, last: bool, gain: float, gained: float) -> bool:
    """Whether a stage has converged.

    Args:
        stage: the stage.
        last: whether it is the last one.
        gain: nats that its newest round gained, with its selection of inducing points.
        gained: nats that all of its rounds gained.
    """
    least = max(SMALLEST_GAIN, stage.gain)
    if not last:
        least = max(least, STAGE_SHARE * gained)
    return stage.in_one_go or gain < least


def effort(stage: Stage, history: Sequence[HistoryRow]) -> float:
    """Ordinary evaluations that took as long as the newest steps, as many as a stage judges."""
    evaluations, products = _newest_work(stage, history)
    return max(evaluations, products / PRODUCTS)


def effort_per_evaluation(stage: Stage, history: Sequence[HistoryRow]) -> float:
    """The same for one evaluation of these steps, which is at least an ordinary one."""
    evaluations, products = _newest_work(stage, history)
    return max(1.0, products / PRODUCTS / max(1, evaluations))


def _newest_work(stage: Stage, history: Sequence[HistoryRow]) -> tuple[int, int]:
    """Evaluations and products of the newest steps, as many as a stage judges."""
    rows = history[-1 - stage.window :]
    if not rows:
        return 0, 0
    first, last = rows[0], rows[-1]
    return last["evaluations"] - first["evaluations"], last["products"] - first["products"]
