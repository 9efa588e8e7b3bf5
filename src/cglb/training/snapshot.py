"""A fit as plain values and arrays, after any accepted step: all that is needed to resume it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from cglb.optimisers import base as optimisers
from cglb.optimisers.base import Ending
from cglb.training.checkpoint import Snapshot
from cglb.training.history import Work
from cglb.training.state import State

__all__ = ["restore", "snapshot"]

# entries of a snapshot's document that are fields of the state
SAVED = ("stage", "number", "bound", "reached", "gained", "bounds", "before", "extra", "history")


def snapshot(state: State) -> Snapshot:
    """All that is needed to go on."""
    document: dict[str, Any] = {name: getattr(state, name) for name in SAVED}
    document |= {
        "evaluations": state.work.evaluations,
        "products": state.work.products,
        "seconds": state.clock.seconds,
        # a larger budget may raise a limit, so that is not the end
        "ending": None if state.ending is None or state.ending.may_go_on else state.ending.value,
    }
    held = {"free": state.free, "Z": state.Z, "v": state.v, "columns": state.columns}
    if state.ends:
        held["ends"] = np.array(state.ends)
    if state.anchor is not None:
        held |= {"anchor.free": state.anchor[0], "anchor.Z": state.anchor[1]}
    for name, run in (("run", state.run), ("handed", state.handed)):
        if run is not None:
            held |= {f"{name}.{key}": array for key, array in run.arrays().items()}
    return document, {name: np.asarray(a) for name, a in held.items() if a is not None}


def restore(state: State, saved: Snapshot) -> None:
    """Put a new state where a snapshot was taken."""
    document, arrays = saved
    for name in SAVED:
        setattr(state, name, document[name])
    state.work = Work(document["evaluations"], document["products"])
    state.clock.add(document["seconds"])
    state.ending = None if document["ending"] is None else Ending(document["ending"])
    held = {name: jnp.asarray(arrays[name]) for name in ("Z", "v", "columns") if name in arrays}
    state.free = arrays["free"]
    state.ends = list(arrays.get("ends", ()))
    state.Z, state.v, state.columns = (held.get(name) for name in ("Z", "v", "columns"))
    if "anchor.free" in arrays:
        Z = arrays.get("anchor.Z")
        state.anchor = (arrays["anchor.free"], None if Z is None else jnp.asarray(Z))
    state.run, state.handed = (_run(state, arrays, f"{name}.") for name in ("run", "handed"))


def _run(state: State, arrays: Mapping[str, np.ndarray], prefix: str) -> optimisers.State | None:
    """A state of the optimiser, if it was written."""
    mine = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
    return state.problem.stages[state.stage].optimiser.restore(mine) if mine else None
