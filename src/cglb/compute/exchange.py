"""Rows of a split matrix for the devices that need them, and their gradients back to their owners.

Groups of row numbers are dealt to the devices in rounds. In each round every device sends to every other
one the rows that it asks for, in one `all_to_all`: a device receives each of its own groups' rows once,
so that the traffic per device falls with the number of devices, and only one round of rows is alive.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cglb.compute.shards import AXIS

__all__ = ["Exchange", "Traffic", "fetch", "give_back", "plan"]

GROUPS = 16  # per device and round: enough to hide the latency of a round, few enough to hold
STEP = 64  # rows per message are a multiple of this, so that few shapes are compiled


class Traffic(NamedTuple):
    """Who sends what: arrays [rounds, devices, devices, rows]."""

    send: Any  # the sender's own row numbers, by sender and receiver; 0 on padding
    place: Any  # where each row goes, by receiver and sender; beyond the end on padding


class Exchange(NamedTuple):
    """Groups of rows, dealt to devices: arrays [rounds, devices, groups, members], and the traffic."""

    index: Int[np.ndarray, "r p g k"]
    valid: Bool[np.ndarray, "r p g k"]
    traffic: Traffic


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
    index, valid = (np.pad(np.asarray(a), ((0, missing), (0, 0))) for a in (index, valid))
    shape = (rounds, devices, groups, k)
    return Exchange(
        index.reshape(shape).astype(np.int32),
        valid.reshape(shape),
        _traffic(index.reshape(rounds, devices, -1), valid.reshape(rounds, devices, -1), share),
    )


def _traffic(rows: np.ndarray, wanted: np.ndarray, share: int) -> Traffic:
    rounds, devices, size = rows.shape
    owner = np.where(wanted, rows // share, devices)  # padding belongs to nobody
    counts = (owner[..., None] == np.arange(devices)).sum(axis=2)
    length = -(-int(counts.max(initial=1)) // STEP) * STEP
    send = np.zeros((rounds, devices, devices, length), dtype=np.int32)
    place = np.full((rounds, devices, devices, length), size, dtype=np.int32)
    order = np.argsort(owner, axis=2, kind="stable")
    ends = np.cumsum(counts, axis=2)
    for turn in range(rounds):
        for receiver in range(devices):
            for sender in range(devices):
                count, end = counts[turn, receiver, sender], ends[turn, receiver, sender]
                chosen = order[turn, receiver, end - count : end]
                place[turn, receiver, sender, :count] = chosen
                send[turn, sender, receiver, :count] = rows[turn, receiver, chosen] - sender * share
    return Traffic(send, place)


def fetch(rows: Float[Array, "share m"], size: int, traffic: Traffic) -> Float[Array, "{size} m"]:
    """The `size` rows that this device asked for; zeros on padding. One device's view of one round.

    Args:
        rows: those that this device owns.
        traffic: send and place, [devices, length] each.
    """
    got = lax.all_to_all(rows[traffic.send], AXIS, 0, 0)
    m = rows.shape[1]
    empty = jnp.zeros((size, m), dtype=rows.dtype)
    return empty.at[traffic.place.ravel()].set(got.reshape(traffic.place.size, m), mode="drop")


def give_back(
    total: Float[Array, "share m"], bars: Float[Array, "size m"], traffic: Traffic
) -> Float[Array, "share m"]:
    """`total` plus the gradients of rows that `fetch` gave, from all who asked for them."""
    mine = bars.at[traffic.place].get(mode="fill", fill_value=0.0)
    back = lax.all_to_all(mine, AXIS, 0, 0)
    return total.at[traffic.send.ravel()].add(back.reshape(traffic.send.size, bars.shape[1]))
