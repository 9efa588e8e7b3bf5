"""The store of runs: one folder each, readable while they run, whole whenever they are killed.

    spec.json               what is run, and the budget it was last given
    lock                    held by the process that works on it; the kernel lets go when it dies
    checkpoint.safetensors  training's own, from which it goes on to the same bits
    history.jsonl           a row a step, as training reports them
    scores.jsonl            scores on the test part at intervals
    metrics.json            what came out, with versions and machine; written last, in one move
    error.json              why it failed, if it did

Readers never wait and never write: `look` tells the state of a run from its files alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cglb import store
from cglb.checkpoint import KIND, VERSION
from cglb.paper.spec import Budget, Spec
from cglb.train import SUBSET_STEPS, subset_checkpoint

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

__all__ = ["Run", "State", "cg_steps", "find", "is_complete", "look", "write_json"]

RECENT_BYTES = 1 << 16
LOCK_SECONDS = 0.5
LIMITS = ("step limit", "time limit")  # a training that stopped otherwise has nothing left to do


@dataclass(frozen=True)
class Run:
    """A spec and its place in the store."""

    root: Path
    spec: Spec

    @property
    def folder(self) -> Path:
        """Where all of its files are."""
        return self.root / self.spec.name

    @property
    def checkpoint(self) -> Path:
        """Training's checkpoint."""
        return self.folder / "checkpoint.safetensors"

    # ---- what is there ----

    def metrics(self) -> dict[str, Any] | None:
        """The results so far, None before there are any."""
        return read_json(self.folder / "metrics.json")

    def error(self) -> str | None:
        """The message of the last attempt, if it failed."""
        found = read_json(self.folder / "error.json")
        return None if found is None else found["error"]

    def budget(self) -> Budget | None:
        """The one it was last given."""
        found = read_json(self.folder / "spec.json")
        return None if found is None else Budget(**found["budget"])

    def history(self) -> list[dict[str, Any]]:
        """All rows."""
        return _rows(self.folder / "history.jsonl")

    def recent(self) -> list[dict[str, Any]]:
        """The last rows, without reading a long file."""
        return _rows(self.folder / "history.jsonl", RECENT_BYTES)

    def steps_on_part(self) -> int:
        """Steps on a part of the rows that came first. Iterative GP's belong to the budget of steps, the
        others' are taken beside it."""
        rows = self.recent()
        if not rows or self.spec.method.kind == "iterative":
            return 0
        with (self.folder / "history.jsonl").open() as file:
            first = [json.loads(line) for line in islice(file, SUBSET_STEPS) if line.endswith("\n")]
        return sum(row["rows"] < rows[-1]["rows"] for row in first)

    def scores(self) -> list[dict[str, Any]]:
        """Scores on the test part over training."""
        return _rows(self.folder / "scores.jsonl")

    # ---- what is written ----

    def register(self, budget: Budget) -> None:
        """Make the run known, so that `status` shows what is still to come; an old failure is past."""
        (self.folder / "error.json").unlink(missing_ok=True)
        write_json(self.folder / "spec.json", {"spec": self.spec.to_json(), "budget": asdict(budget)})

    def rewind(self) -> int:
        """Cut history and scores back to the checkpoint, where training goes on; its step.

        A killed process wrote rows after its last checkpoint, and perhaps half a row. Those steps are
        taken again.
        """
        rows: list[dict[str, Any]] = []
        for path in (self.checkpoint, subset_checkpoint(self.checkpoint)):
            if path.exists():
                rows = store.read(path, KIND, VERSION)[0]["history"]
                break
        step = rows[-1]["step"] if rows else 0
        kept = [row for row in self.scores() if row["step"] <= step]
        _write_rows(self.folder / "history.jsonl", rows)
        _write_rows(self.folder / "scores.jsonl", kept)
        return step

    def append(self, name: str, row: dict[str, Any]) -> None:
        """One row more in "history" or "scores"."""
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def finish(self, metrics: dict[str, Any]) -> None:
        """The results, all at once."""
        write_json(self.folder / "metrics.json", metrics)

    def fail(self, error: str, where: str = "") -> None:
        """Remember why there are none."""
        write_json(self.folder / "error.json", {"error": error, "where": where})

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Whether the block is alone with this run. A look at the lock takes it for an instant, so one
        that is taken is tried again for a moment."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            raise RuntimeError(
                "Runs need file locks (fcntl), which this operating system does not have."
            )
        with (self.folder / "lock").open("a+") as file:
            deadline = time.monotonic() + LOCK_SECONDS
            while not _try_lock(file):
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(0.02)
            self.mark("starting")
            yield True

    def mark(self, phase: str) -> None:
        """Say what the holder of the lock is at."""
        (self.folder / "lock").write_text(json.dumps({"pid": os.getpid(), "phase": phase}))


def is_complete(metrics: dict[str, Any] | None, budget: Budget, cholesky: bool) -> bool:
    """Whether these results are all that this budget could bring."""
    if metrics is None or (cholesky and metrics["cholesky"] is None):
        return False
    limit = budget.max_seconds
    return (
        metrics["stop"] not in LIMITS
        or metrics["steps"] - metrics.get("steps_on_part", 0) >= budget.max_steps
        or (limit is not None and metrics["seconds"] >= limit)
    )


def cg_steps(row: dict[str, Any]) -> list[int]:
    """Of each evaluation since the row before; of the accepted one alone if a row has no more."""
    found = row.get("cg_steps_by_evaluation") or [row.get("cg_steps")]
    return [steps for steps in found if steps is not None]


@dataclass(frozen=True)
class State:
    """Where a run is.

    phase:        "waiting", "starting", "training", "scoring", "stopped", "failed" or "done".
    seconds_left: an estimate from the last steps, None where there is nothing to estimate from.
    """

    run: Run
    phase: str
    step: int
    max_steps: int
    bound: float | None
    seconds: float
    seconds_left: float | None
    note: str = ""

    @property
    def active(self) -> bool:
        """Whether a process works on it now."""
        return self.phase in ("starting", "training", "scoring")


def look(run: Run) -> State:
    """The state of a run, whoever works on it."""
    metrics, budget, rows = run.metrics(), run.budget() or Budget(), run.recent()
    last = rows[-1] if rows else None
    step = last["step"] if last else 0
    max_steps = budget.max_steps + run.steps_on_part()
    phase, note = _holder(run), ""
    if phase is None:
        if is_complete(metrics, budget, cholesky=False):
            phase, note = "done", metrics["stop"] if metrics else ""
        elif (error := run.error()) is not None:
            phase, note = "failed", error
        else:
            phase = "stopped" if step else "waiting"
    return State(
        run,
        phase,
        step,
        max_steps,
        last["bound"] if last else None,
        last["seconds"] if last else 0.0,
        0.0 if phase in ("done", "scoring") else _time_left(rows, max_steps, budget.max_seconds),
        note,
    )


def find(root: Path) -> list[Run]:
    """Every run of a store, by name."""
    found = []
    for path in sorted(root.glob("*/spec.json")):
        document = read_json(path)
        if document is not None:
            found.append(Run(root, Spec.from_json(document["spec"])))
    return found


def _time_left(rows: list[dict[str, Any]], max_steps: int, max_seconds: float | None) -> float | None:
    """At the pace of the last steps; at most what the budget of time leaves."""
    if len(rows) < 2:
        return None
    first, last = rows[-min(len(rows), 20)], rows[-1]
    pace = (last["seconds"] - first["seconds"]) / max(last["step"] - first["step"], 1)
    left = max(max_steps - last["step"], 0) * pace
    if max_seconds is not None:
        left = min(left, max(max_seconds - last["seconds"], 0.0))
    return left


def _holder(run: Run) -> str | None:
    """The phase that the process at work has marked, None where there is no such process."""
    path = run.folder / "lock"
    if fcntl is None or not path.exists():
        return None
    with path.open() as file:
        if _try_lock(file):
            return None
        try:
            return json.loads(file.read())["phase"]
        except ValueError:  # it is being written this instant
            return "starting"


def _try_lock(file: Any) -> bool:
    assert fcntl is not None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ---- files ----


def write_json(path: Path, document: dict[str, Any]) -> None:
    """In one move: a reader sees the old content or the new."""
    store.replace_file(path, (json.dumps(document, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The document, None where there is no file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    store.replace_file(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def _rows(path: Path, last_bytes: int | None = None) -> list[dict[str, Any]]:
    """Whole rows; the first may be cut by `last_bytes`, the last by a kill."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = 0 if last_bytes is None else max(size - last_bytes, 0)
            file.seek(start)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    lines = lines[1 if start else 0 : -1]  # after the last line break is nothing, or half a row
    return [json.loads(line) for line in lines]
