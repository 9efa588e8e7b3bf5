"""The store of runs: one folder per run, readable at any time, consistent even after a kill.

    spec.json               the spec and its latest budget
    lock                    held by the process at work; the kernel releases it when that process dies
    checkpoint.safetensors  from which training resumes and gives the same bits
    history.jsonl           one row per step, as training reports them
    scores.jsonl            scores on the test part at intervals
    metrics.json            the results, with versions and machine; written last and atomically
    error.json              why the run failed, if it did

Readers never wait and never write: `look` finds the state of a run from its files alone.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cglb.core.errors import StoreError
from cglb.experiments.records import REMEDY, read_json, read_rows, write_json, write_rows
from cglb.experiments.spec import Budget, Spec
from cglb.io import tensorfile
from cglb.optimisers.base import Ending
from cglb.training.checkpoint import KIND, VERSION

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

__all__ = ["Run", "State", "cg_steps", "find", "is_complete", "look"]

RECENT_BYTES = 1 << 17
LOCK_SECONDS = 0.5


@dataclass(frozen=True)
class Run:
    """A spec and its place in the store.

    Attributes:
        root: the folder of the store.
        spec: what is run.
    """

    root: Path
    spec: Spec

    @property
    def folder(self) -> Path:
        """The folder with all files of the run."""
        return self.root / self.spec.name

    @property
    def checkpoint(self) -> Path:
        """Training's checkpoint."""
        return self.folder / "checkpoint.safetensors"

    # ---- reading ----

    def metrics(self) -> dict[str, Any] | None:
        """The results so far, or None."""
        return read_json(self.folder / "metrics.json")

    def error(self) -> str | None:
        """Why the last attempt failed, or None."""
        found = read_json(self.folder / "error.json")
        return None if found is None else found["error"]

    def budget(self) -> Budget | None:
        """Its latest budget, or None before `register`."""
        found = read_json(self.folder / "spec.json")
        return None if found is None else Budget(**found["budget"])

    def history(self) -> list[dict[str, Any]]:
        """One row per step so far."""
        return read_rows(self.folder / "history.jsonl")

    def recent(self) -> list[dict[str, Any]]:
        """The last rows of `history`, without reading the whole file."""
        return read_rows(self.folder / "history.jsonl", RECENT_BYTES)

    def extra_steps(self) -> int:
        """Steps that the budget does not count: searches, and steps on a part of the rows."""
        return sum(row.get("extra", False) for row in self.history())

    def scores(self) -> list[dict[str, Any]]:
        """Scores on the test part over training."""
        return read_rows(self.folder / "scores.jsonl")

    # ---- writing ----

    def register(self, budget: Budget) -> None:
        """Add the run to the store, so that `status` shows it before it starts; clear an old error."""
        (self.folder / "error.json").unlink(missing_ok=True)
        write_json(self.folder / "spec.json", {"spec": self.spec.to_json(), "budget": asdict(budget)})

    def rewind(self) -> int:
        """Cut history and scores back to the checkpoint, from which training resumes.

        A killed process may have written rows after its last checkpoint, or half a row. Those steps
        will be repeated.

        Returns:
            The step of the checkpoint, 0 without one.
        """
        rows: list[dict[str, Any]] = []
        if self.checkpoint.exists():
            rows = tensorfile.read(self.checkpoint, KIND, VERSION)[0]["history"]
        step = rows[-1]["step"] if rows else 0
        kept = [row for row in self.scores() if row["step"] <= step]
        write_rows(self.folder / "history.jsonl", rows)
        write_rows(self.folder / "scores.jsonl", kept)
        return step

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Append a row to "history" or "scores"."""
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def finish(self, metrics: dict[str, Any]) -> None:
        """Write the results atomically."""
        write_json(self.folder / "metrics.json", metrics)

    def fail(self, error: str, where: str = "") -> None:
        """Record why the run failed."""
        write_json(self.folder / "error.json", {"error": error, "where": where})

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the lock during the block; yields False if another process holds it.

        `look` takes the lock for an instant, so a lock that is taken is tried again for a moment.
        """
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
        """Record what the holder of the lock is doing."""
        (self.folder / "lock").write_text(json.dumps({"pid": os.getpid(), "phase": phase}))


def is_complete(metrics: dict[str, Any] | None, budget: Budget, cholesky: bool) -> bool:
    """Whether this budget allows nothing beyond these results."""
    if metrics is None or (cholesky and metrics["cholesky"] is None):
        return False
    limit = budget.max_seconds
    return (
        not Ending(metrics["stop"]).may_go_on
        or metrics["steps"] - metrics.get("extra_steps", 0) >= budget.max_steps
        or (limit is not None and metrics["seconds"] >= limit)
    )


def cg_steps(row: Mapping[str, Any]) -> list[int]:
    """CG steps of each evaluation since the previous row, or only those of the accepted one."""
    found = row.get("cg_steps_by_evaluation") or [row.get("cg_steps")]
    return [steps for steps in found if steps is not None]


@dataclass(frozen=True)
class State:
    """How far a run is.

    Attributes:
        run: the run.
        phase: "waiting", "starting", "training", "scoring", "stopped", "failed" or "done".
        step: the last step in the history.
        max_steps: steps that the budget allows.
        bound: at that step.
        seconds: of training so far.
        seconds_left: an estimate from the last steps; None if there are too few.
        note: how the run ended, or the error.
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
        """Whether a process is working on it now."""
        return self.phase in ("starting", "training", "scoring")


def look(run: Run) -> State:
    """The state of a run, also if another process is working on it.

    A run with a damaged file is "damaged", and the note names the file: the others of a store are fine.
    """
    try:
        return _look(run)
    except (StoreError, LookupError, TypeError, ValueError, AttributeError) as error:
        note = str(error) if isinstance(error, StoreError) else f"{run.folder} is damaged ({error!r})."
        return State(run, "damaged", 0, Budget().max_steps, None, 0.0, None, note)


def _look(run: Run) -> State:
    metrics, budget, rows = run.metrics(), run.budget() or Budget(), run.recent()
    last = rows[-1] if rows else None
    step = last["step"] if last else 0
    max_steps = budget.max_steps + run.extra_steps()
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
    """Every run of a store whose files can be read, sorted by name; the others are warned about."""
    found = []
    for path in sorted(root.glob("*/spec.json")):
        try:
            document = read_json(path)
            if document is None:
                continue
            run = Run(root, Spec.from_json(document["spec"]))
            if run.folder != path.parent:
                raise StoreError(f"{path} is damaged: it is the spec of {run.spec.name}. {REMEDY}")
            for read in (run.metrics, run.history, run.scores):
                read()
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            warnings.warn(f"Left out: {path.parent.name}. {error}", stacklevel=2)
        else:
            found.append(run)
    return found


def _time_left(rows: list[dict[str, Any]], max_steps: int, max_seconds: float | None) -> float | None:
    """Seconds at the pace of the last steps, at most what the time budget leaves."""
    if len(rows) < 2:
        return None
    first, last = rows[-min(len(rows), 20)], rows[-1]
    pace = (last["seconds"] - first["seconds"]) / max(last["step"] - first["step"], 1)
    left = max(max_steps - last["step"], 0) * pace
    if max_seconds is not None:
        left = min(left, max(max_seconds - last["seconds"], 0.0))
    return left


def _holder(run: Run) -> str | None:
    """The phase recorded by the process that holds the lock, or None if no process does."""
    path = run.folder / "lock"
    if fcntl is None or not path.exists():
        return None
    with path.open() as file:
        if _try_lock(file):
            return None
        try:
            return json.loads(file.read())["phase"]
        except ValueError:  # it is being written right now
            return "starting"


def _try_lock(file: Any) -> bool:
    assert fcntl is not None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
