"""A clock for training that can be paused and carried over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from cglb.compute import processes

__all__ = ["Clock", "now"]

# the time in seconds, from an arbitrary origin
now = time.perf_counter


class Clock:
    """Seconds of work, without what happens inside `paused`. A resumed fit adds what it had before.

    Args:
        limit: seconds after which the clock has expired; None for never.
    """

    def __init__(self, limit: float | None = None):
        self.limit = limit
        self._total = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of work so far."""
        running = 0.0 if self._since is None else now() - self._since
        return self._total + running

    def expired(self, share: float = 1.0) -> bool:
        """Whether this share of the limit is over."""
        return self.limit is not None and processes.agreed(self.seconds >= share * self.limit)

    def add(self, seconds: float) -> None:
        """Count seconds of earlier work."""
        self._total += seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the seconds of a block."""
        self._since = now()
        try:
            yield
        finally:
            self._total = self.seconds
            self._since = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the seconds of a block inside `running`."""
        counting = self._since is not None
        self._total, self._since = self.seconds, None
        try:
            yield
        finally:
            self._since = now() if counting else None
