"""When a round of training stalls, and when a stage has converged."""

from __future__ import annotations

from collections.abc import Sequence

from cglb.methods.stages import Stage

__all__ = ["converged", "stalled"]

# a round that converged and gained less than this many nats ends its stage
SMALLEST_GAIN = 0.1
# a stage before the last has converged when a round gained less than this share of all it has gained
STAGE_SHARE = 0.05
# the gain of a stage is for so many steps
STALL_STEPS = 5


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
