"""Rows of a split matrix for the devices that need them, and their gradients back to their owners.

Groups of row numbers are dealt to the devices in rounds. In each round every device sends to every other
one the rows that it asks for, in one `all_to_all`. A device receives each row once per round, however
many of its groups ask for it, so that the traffic per device falls with the number of devices, and only
one round of rows is alive.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cglb.compute.shards import AXIS

__all__ = ["Exchange", "fetch", "give_back", "plan"]

GROUPS = 32  # per device and round: enough to share most rows, few enough to hold them
STEP = 64  # rows per message are a multiple of this, so that few shapes are compiled


class Exchange(NamedTuple):
    """Groups of rows, dealt to devices.

    The rows that a device has in a round stand by their owners, `length` rows for each: what an owner
    sends is where it is needed.

    Attributes:
        rows: numbers of the rows that a device has in a round, each once; 0 on padding.
        place: the members of its groups, as places in these rows.
        valid: which members there are.
        send: rows of its own that a device sends to each other one.
    """

    rows: Int[np.ndarray, "rounds devices slots"]
    place: Int[np.ndarray, "rounds devices groups k"]
    valid: Bool[np.ndarray, "rounds devices groups k"]
    send: Int[np.ndarray, "rounds devices devices length"]


def plan(
    index: Int[np.ndarray, "b k"], valid: Bool[np.ndarray, "b k"], devices: int, share: int
) -> Exchange:
    """Deal b groups of k row numbers to the devices, each of which owns `share` rows.

    The last round is filled up with groups without members.
    """
    b, k = index.shape
    groups = min(GROUPS, -(-b // devices))
    rounds = -(-b // (devices * groups))
    missing = rounds * devices * groups - b
    # groups that stand together share rows: they go to the same device, and to the same round
    index, valid = (
        np.pad(np.asarray(a), ((0, missing), (0, 0))).reshape(devices, rounds, groups, k).swapaxes(0, 1)
        for a in (index, valid)
    )
    # by round and device: its rows in their order, so by their owners, and how many each owner has
    found = [np.unique(index[at][valid[at]]) for at in np.ndindex(rounds, devices)]
    counts = np.array([np.bincount(rows // share, minlength=devices) for rows in found])
    length = -(-max(1, int(counts.max())) // STEP) * STEP
    rows = np.zeros((rounds, devices, devices, length), dtype=np.int32)
    place = np.zeros(index.shape, dtype=np.int32)
    for at, needed, ends in zip(np.ndindex(rounds, devices), found, counts.cumsum(axis=1), strict=True):
        owner = needed // share
        slots = owner * length + np.arange(len(needed)) - np.concatenate([[0], ends])[owner]
        rows[at].reshape(-1)[slots] = needed
        place[at][valid[at]] = slots[np.searchsorted(needed, index[at][valid[at]])]
    first = share * np.arange(devices)[:, None]
    send = np.maximum(rows - first, 0).swapaxes(1, 2)  # from what receivers have to what owners send
    return Exchange(rows.reshape(rounds, devices, -1), place, valid, send)


def fetch(rows: Float[Array, "share m"], send: Int[Array, "devices length"]) -> Float[Array, "slots m"]:
    """The rows that this device asked for, at their slots; any rows on padding. One device's view of
    one round.

    Args:
        rows: those that this device owns.
        send: which of them it sends to whom.
    """
    return lax.all_to_all(rows[send], AXIS, 0, 0).reshape(send.size, rows.shape[1])


def give_back(
    total: Float[Array, "share m"], bars: Float[Array, "slots m"], send: Int[Array, "devices length"]
) -> Float[Array, "share m"]:
    """`total` plus the gradients of rows that `fetch` gave, from all who asked for them; they are 0 on
    padding."""
    back = lax.all_to_all(bars.reshape(*send.shape, -1), AXIS, 0, 0)
    return total.at[send.ravel()].add(back.reshape(bars.shape))
