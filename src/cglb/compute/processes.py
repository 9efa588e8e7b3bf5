"""What the processes of one run tell each other, besides numbers of the computation.

All of it does nothing in a run of one process. Every process must call these functions in the same
order: each is a collective.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from cglb.core.errors import DistributedError

__all__ = [
    "agreed",
    "check_same",
    "count",
    "from_first",
    "gathered_rows",
    "guarded",
    "is_first",
    "number",
]

# what the runtime says when a process of the run is gone
LOST = ("gloo", "connection", "heartbeat", "unavailable", "deadline", "peer", "nccl", "coordination")


STATUS = re.compile(
    "(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|FAILED_PRECONDITION):"
)


def count() -> int:
    """The number of processes of this run."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def number() -> int:
    """Which of them this is."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_first() -> bool:
    """Whether this process writes files and shows progress."""
    return number() == 0


def agreed(decision: bool) -> bool:
    """The decision of the first process, for decisions that clocks or users make."""
    if count() == 1:
        return decision
    return bool(np.asarray(multihost_utils.broadcast_one_to_all(np.asarray(decision, np.int32))))


def from_first(content: bytes | None) -> bytes | None:
    """The bytes that the first process has; what others pass is ignored."""
    if count() == 1:
        return content
    size = -1 if content is None or not is_first() else len(content)
    size = int(np.asarray(multihost_utils.broadcast_one_to_all(np.asarray(size, np.int64))))
    if size < 0:
        return None
    mine = np.frombuffer(content, np.uint8) if is_first() and content else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine)).tobytes()


def gathered_rows(rows: np.ndarray) -> np.ndarray:
    """The rows of all processes, one after the other, on every one of them.

    Args:
        rows: those of this process, [n, ...]; n may differ.
    """
    if count() == 1:
        return rows
    # bytes: in 32-bit mode JAX would round float64
    flat = np.frombuffer(np.ascontiguousarray(rows).tobytes(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.asarray([flat.size], np.int32))).ravel()
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: flat.size] = flat
    found = np.asarray(multihost_utils.process_allgather(padded))
    parts = [part[:size] for part, size in zip(found, sizes, strict=True)]
    joined = np.frombuffer(np.concatenate(parts).tobytes(), rows.dtype)
    return joined.reshape(-1, *rows.shape[1:])


def check_same(what: str, content: str) -> None:
    """Check that all processes have the same.

    Raises:
        DistributedError: on every process, with the numbers of those that differ from the first.
    """
    if count() == 1:
        return
    digest = np.frombuffer(hashlib.sha256(content.encode()).digest(), np.uint8)
    found = np.asarray(multihost_utils.process_allgather(digest))
    others = [str(i) for i in range(len(found)) if (found[i] != found[0]).any()]
    if others:
        raise DistributedError(
            f"All processes of a run must have the same {what}, but process {', '.join(others)} "
            f"differs from process 0. This one (process {number()}) has: {content[:300]}"
        )


@contextmanager
def guarded(advice: str = "") -> Iterator[None]:
    """Errors of the runtime that mean a lost process become a sentence that says so.

    Args:
        advice: what the user can do.

    Raises:
        DistributedError: if another process of the run is gone.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:  # JAX raises either
        text = str(error)
        lost = STATUS.match(text) and any(word in text.lower() for word in LOST)
        if count() == 1 or not lost:
            raise
        reason: Any = text.splitlines()[0][:200]
        raise DistributedError(
            f"Another process of this run has ended or cannot be reached, so process {number()} stops. "
            f"{advice}({reason})"
        ) from None
