"""A fit as plain values and arrays, after any accepted step: all that is needed to resume it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from cglb.io.tensorfile import is_number
from cglb.optimisers import base as optimisers
from cglb.optimisers.base import Ending
from cglb.training.checkpoint import Snapshot
from cglb.training.history import HistoryRow, Work
from cglb.training.state import State

__all__ = ["restore", "snapshot"]

# entries of a snapshot's document that are fields of the state
SAVED = ("stage", "number", "bound", "reached", "gained", "bounds", "before", "extra", "history")

COUNTS = ("stage", "number", "before", "extra", "evaluations", "products")


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
    arrays = {name: np.asarray(a) for name, a in held.items() if a is not None}
    return document | {"shapes": _shapes(arrays)}, arrays


def restore(state: State, saved: Snapshot) -> None:
    """Put a new state where a snapshot was taken.

    Raises:
        ValueError: that names what is no part of a snapshot.
    """
    document, arrays = saved
    _check_document(document, len(state.problem.stages))
    if document["shapes"] != _shapes(arrays):
        raise ValueError(f"its arrays should have shapes {document['shapes']}, found {_shapes(arrays)}")
    _check_arrays(arrays)
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


def _check_document(document: Mapping[str, Any], stages: int) -> None:
    """Check the values that a file may hold otherwise than they were written."""

    def is_count(value: Any) -> bool:
        return type(value) is int and value >= 0

    def is_real(value: Any) -> bool:
        return is_number(value) and value == value  # a bound may be infinite, but not NaN

    sound = {
        **{name: is_count(document[name]) for name in COUNTS},
        **{name: is_real(document[name]) for name in ("bound", "gained", "seconds")},
        "reached": document["reached"] is None or is_real(document["reached"]),
        "bounds": isinstance(document["bounds"], list) and all(map(is_real, document["bounds"])),
        "history": isinstance(document["history"], list) and all(map(_is_row, document["history"])),
    }
    for name, found in sound.items():
        if not found:
            raise ValueError(f"{name} has another value than a fit can have")
    if document["stage"] >= stages:
        raise ValueError(f"there is no stage {document['stage']}")


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and set(row) == set(HistoryRow.__annotations__)


def _shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    return {name: list(array.shape) for name, array in sorted(arrays.items())}


def _check_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        # before its first step an optimiser has no value to compare with
        known = np.isfinite(array).all() or name.endswith(".before")
        dtype = array.dtype if name.endswith(".steps") else np.dtype(np.float64)
        if array.dtype != dtype or not known:
            raise ValueError(f"{name} must be an array of finite numbers")


def _run(state: State, arrays: Mapping[str, np.ndarray], prefix: str) -> optimisers.State | None:
    """A state of the optimiser, if it was written."""
    mine = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
    return state.problem.stages[state.stage].optimiser.restore(mine) if mine else None
