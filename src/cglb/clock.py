"""A clock for training that can be paused and carried over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Clock"]


class Clock:
    """Seconds of work, without what happens inside `paused`. A restarted fit adds what it had before."""

    def __init__(self, limit: float | None = None):
        self.limit = limit
        self._total = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._total + running

    @property
    def expired(self) -> bool:
        return self.limit is not None and self.seconds >= self.limit

    def add(self, seconds: float) -> None:
        self._total += seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._total = self.seconds
            self._since = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._total, self._since = self.seconds, None
        try:
            yield
        finally:
            self._since = time.perf_counter()
