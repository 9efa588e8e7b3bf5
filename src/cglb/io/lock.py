"""A lock on a file that is written: one process, and one thread of it, at a time."""

from __future__ import annotations

import hashlib
import os
import tempfile
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
    """Hold the lock of `path` during the block; None locks nothing.

    The lock is on a file in the system's temporary folder, so that a process that is killed leaves
    nothing next to `path`. The operating system releases its lock.

    Raises:
        StoreError: if another process, or another thread, holds the lock.
    """
    if path is None or fcntl is None:
        yield
        return
    key = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    place = Path(tempfile.gettempdir(), f"cglb-{os.getuid()}-{key}.lock")
    number = _acquire(place)
    if number is None:
        raise StoreError(
            f"{path} is in use by another fit, in this process or in another one. Wait for it, or give "
            "each fit a file of its own."
        )
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        os.close(number)


def _acquire(place: Path) -> int | None:
    """The number of the locked file; None if someone else holds it."""
    assert fcntl is not None
    while True:
        number = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            return None
        if place.exists() and os.path.samestat(os.fstat(number), place.stat()):
            return number
        os.close(number)  # its holder has removed it in between: try the new one
