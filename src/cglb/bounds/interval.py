"""An interval that contains log p(y), as narrow as requested: `certify`.

`certificate.py` says how it is found. Here it is refined until it is narrow enough, the budget is spent,
or nothing more can be gained; the message says which.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from jaxtyping import Array, Float

from cglb.bounds.certificate import Certificate
from cglb.core.validation import boundary
from cglb.kernels import Kernel
from cglb.linalg import inducing
from cglb.linalg.system import Solver, System
from cglb.model import GP

__all__ = ["Evidence", "certify"]

FIRST_INDUCING = 512


@dataclass(frozen=True)
class Evidence:
    """lower ≤ log p(y) ≤ upper, in nats, for y in the user's units.

    Attributes:
        lower: the lower bound.
        upper: the upper bound.
        message: how the interval was found.
        rounding: the part of half its width that is there for floating-point rounding.
        likely: an interval inside this one that contains log p(y) with probability `confidence`, up to
            the normality of a mean over random probes; None if it was not asked for.
        confidence: that probability.
    """

    lower: float
    upper: float
    message: str = ""
    rounding: float = 0.0
    likely: tuple[float, float] | None = None
    confidence: float | None = None

    @property
    def width(self) -> float:
        """upper − lower, in nats."""
        return self.upper - self.lower

    def shifted(self, nats: float) -> Evidence:
        """The same interval for targets in other units, which add `nats` to log p(y)."""
        likely = None if self.likely is None else (self.likely[0] + nats, self.likely[1] + nats)
        return replace(self, lower=self.lower + nats, upper=self.upper + nats, likely=likely)

    def __str__(self) -> str:
        text = f"log p(y) is between {self.lower:.2f} and {self.upper:.2f}"
        if self.likely is not None:
            low, high = self.likely
            text += f", with {self.confidence:.0%} confidence between {low:.2f} and {high:.2f}"
        return text


@boundary
def certify(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    Z: Float[Array, "m d"] | None = None,
    v: Float[Array, " n"] | None = None,
    *,
    tolerance: float | None = None,
    exact: bool = False,
    confidence: float | None = None,
    max_seconds: float | None = None,
    memory_gb: float = 4.0,
) -> Evidence:
    """An interval that contains log p(y).

    Args:
        gp: the model.
        X: inputs.
        y: targets.
        Z: inducing points of the first level; by default greedy ones.
        v: where CG starts; by default 0.
        tolerance: refine until the interval is at most this many nats wide, or the budget is spent; the
            message says which. Without a tolerance, one level is computed.
        exact: use Cholesky: n² memory, n³/3 flops; the width of the interval is that of rounding.
        confidence: also give an interval that contains log p(y) with this probability. One certain level
            is then computed, and `tolerance` is the width of the likely interval, by default 1 nat per
            1,000 rows, at least 1.
        max_seconds: stop before a level, or a batch of probes, that would take longer.
        memory_gb: memory for the n × m arrays, and for K̂ while CG runs.

    Raises:
        ValueError: if the tolerance or the time is not positive.
    """
    if Z is None and not exact:
        Z = first_points(gp.kernel, X)
    found = Certificate(System(gp, X, Z, Solver(memory_gb=memory_gb)), y, v, memory_gb)
    if confidence is not None and not exact:
        return estimate_at(found, confidence, tolerance, max_seconds)
    return certify_at(found, tolerance=tolerance, exact=exact, max_seconds=max_seconds)


def estimate_at(
    found: Certificate, confidence: float, tolerance: float | None, max_seconds: float | None
) -> Evidence:
    """One certain level, and inside it an interval by random probes.

    Raises:
        ValueError: if the confidence is not between 0 and 1, or the tolerance or the time not positive.
    """
    check_confidence(confidence)
    started = time.perf_counter()
    certain = certify_at(found, tolerance=None, exact=False, max_seconds=max_seconds)
    if tolerance is not None and not tolerance > 0.0:
        raise ValueError(f"tolerance must be positive, found {tolerance}.")
    wanted = max(1.0, found.rows / 1000.0) if tolerance is None else tolerance
    left = None if max_seconds is None else max_seconds - (time.perf_counter() - started)
    likely, probes = found.likely(confidence, wanted, left)
    reached = likely[1] - likely[0] <= wanted
    message = f"{certain.message} {probes} probes" + (
        f": the likely interval is not wider than {wanted:g} nats."
        if reached
        else f" were not enough for a likely interval of {wanted:g} nats."
    )
    return replace(certain, message=message, likely=likely, confidence=confidence)


def certify_at(
    found: Certificate, *, tolerance: float | None, exact: bool, max_seconds: float | None
) -> Evidence:
    """`certify` for a certificate that may already have been refined."""
    if tolerance is not None and not tolerance > 0.0:
        raise ValueError(f"tolerance must be positive, found {tolerance}.")
    check_seconds(max_seconds)
    if exact:
        found.exact()
        message = "By Cholesky, up to rounding." + found.remarks
        return Evidence(found.lower, found.upper, message, found.rounding)
    started = time.perf_counter()
    message = "One level, as requested."
    while True:
        reason = found.why_not(
            None if max_seconds is None else max_seconds - (time.perf_counter() - started)
        )
        if reason is not None:
            message = f"Wider than requested: {reason}."
            break
        found.refine()
        if tolerance is None:
            break
        if found.width <= tolerance:
            message = f"Not wider than the requested {tolerance:g} nats."
            break
    return Evidence(found.lower, found.upper, message + found.remarks, found.rounding)


def check_seconds(max_seconds: float | None) -> None:
    """Check a budget of time.

    Raises:
        ValueError: if it is neither None nor positive.
    """
    if max_seconds is not None and not max_seconds > 0.0:
        raise ValueError(f"max_seconds must be positive, or None for no limit, found {max_seconds}.")


def check_confidence(confidence: float) -> None:
    """Check a probability.

    Raises:
        ValueError: if it is not between 0 and 1.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, such as 0.99, found {confidence}.")


def first_points(kernel: Kernel, X: Float[Array, "n d"]) -> Float[Array, "m d"]:
    """Inducing points for the first level, if none are given."""
    return inducing.greedy_points(kernel, X, min(FIRST_INDUCING, X.shape[0]), seed=0)
