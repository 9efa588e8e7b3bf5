"""A lock on a file that is written: one process, and one thread of it, at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cglb.core.errors import StoreError

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is locked
    fcntl = None

__all__ = ["exclusive"]


@contextmanager
def exclusive(path: Path | None) -> Iterator[None]:
    """Hold the lock of `path` during the block, by a hidden file next to it; None locks nothing.

    The operating system releases the lock of a process that dies. The hidden file is removed.

    Raises:
        StoreError: if another process, or another thread, holds the lock.
    """
    if path is None or fcntl is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.lock")
    number = _acquire(beside)
    if number is None:
        raise StoreError(
            f"{path} is in use by another fit, in this process or in another one. Wait for it, or give "
            "each fit a file of its own."
        )
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(number)


def _acquire(beside: Path) -> int | None:
    """The number of the locked file; None if someone else holds it."""
    assert fcntl is not None
    while True:
        number = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            return None
        if beside.exists() and os.path.samestat(os.fstat(number), beside.stat()):
            return number
        os.close(number)  # its holder has removed it in between: try the new one
