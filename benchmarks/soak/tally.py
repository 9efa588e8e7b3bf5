"""What a soak counts, and how it stops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Violation(SystemExit):
    """A check that failed; the message has what makes it again."""


@dataclass
class Kind:
    """One kind of check.

    Attributes:
        count: how many there were.
        useful: of these, those whose margin for rounding is finite.
        needed: those that would have failed without the margin.
        largest: the largest finite margin.
        total: the sum of the finite margins.
        used: the largest share of a margin that an error has used.
    """

    count: int = 0
    useful: int = 0
    needed: int = 0
    largest: float = 0.0
    total: float = 0.0
    used: float = 0.0


@dataclass
class Tally:
    """Counts by group of problems and kind of check."""

    kinds: dict[str, dict[str, Kind]] = field(default_factory=dict)

    def check(self, group: str, kind: str, where: str, off: Any, margin: Any = np.inf) -> None:
        """Count checks and stop at the first one that fails.

        Args:
            group: of problems.
            kind: of check.
            where: what makes it again.
            off: how far each value without its margin is on the wrong side of the truth; negative where
                it is on the right one. One number or many.
            margin: of each value.

        Raises:
            Violation: if `off` exceeds `margin` anywhere, or is NaN.
        """
        off, margin = np.broadcast_arrays(np.asarray(off, dtype=float), np.asarray(margin, dtype=float))
        bad = ~(off <= margin)
        if bad.any():
            first = np.argmax(bad)
            raise Violation(
                f"VIOLATION: {kind} ({group}) is wrong by {off.flat[first]:g} with a margin of "
                f"{margin.flat[first]:g}. Again: {where}"
            )
        known = self.kinds.setdefault(group, {}).setdefault(kind, Kind())
        finite = np.isfinite(margin)
        known.count += off.size
        known.useful += int(finite.sum())
        known.needed += int((off > 0.0).sum())
        if finite.any():
            known.largest = max(known.largest, float(margin[finite].max()))
            known.total += float(margin[finite].sum())
        positive = finite & (margin > 0.0)
        if positive.any():
            known.used = max(known.used, float((off[positive] / margin[positive]).max()))

    def note(self, group: str, kind: str) -> None:
        """Count an outcome that is neither right nor wrong, such as an error with a name."""
        self.kinds.setdefault(group, {}).setdefault(kind, Kind()).count += 1

    def to_json(self) -> dict[str, Any]:
        return {
            group: {name: vars(kind) for name, kind in sorted(kinds.items())}
            for group, kinds in self.kinds.items()
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Tally:
        return cls(
            {
                group: {name: Kind(**kind) for name, kind in kinds.items()}
                for group, kinds in document.items()
            }
        )
