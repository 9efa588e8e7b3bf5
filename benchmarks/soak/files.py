"""Mutated and hostile files: the documented error, or what was saved. No hang, and memory below 1 GB.

Models of every method, the checkpoint of a fit, and a run in the paper's store. A mutation changes bytes
of a file (flipped, cut, doubled, inserted), or writes it again with a valid checksum and one value of
its document or one of its arrays replaced. A number that is replaced by another number, where both make
sense, is another model and not a broken one: then predictions must be finite.
"""

from __future__ import annotations

import copy
import json
import math
import resource
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tally import Tally, Violation

import cglb
from cglb.core.errors import StoreError
from cglb.experiments import runs
from cglb.experiments.kinds import parse_methods
from cglb.experiments.spec import Budget, plan
from cglb.io import tensorfile
from cglb.optimisers.base import Ending
from cglb.regressor import file as models
from cglb.training import checkpoint

SECONDS, GIGABYTES = 20, 1.0  # of the processor, and of memory, for one file at most
PATIENCE = 600  # seconds of waiting, on a machine that may have other work
ROWS = 40
METHODS = ("cglb", "sgpr", "exact", "iterative")
HOSTILE = (
    None, "x", "", -1.0, 0, 1e308, -0.0, math.nan, math.inf, [], {}, [1.0, 2.0], {"kind": "tuple"}, True,
    2**70, "\x00", [[[[]]]], {"array": [1.0], "dtype": "<f8", "shape": [1]}, "cglb.kernels", "os",
)  # fmt: skip


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 2))
    return X, np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=ROWS)


def check(count: int, seed: int, tally: Tally) -> None:
    """So many files: half models, the rest checkpoints and runs of a store."""
    before = [signal.signal(number, _too_long) for number in (signal.SIGPROF, signal.SIGALRM)]
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number, method in enumerate(METHODS):
                _Models(Path(folder), method).soak(count // 8, seed + number, tally)
            _Checkpoints(Path(folder)).soak(count // 4, seed + 10, tally)
            _Stores(Path(folder)).soak(count - 4 * (count // 8) - count // 4, seed + 11, tally)
    finally:
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def _too_long(*_: object) -> None:
    raise Violation(f"VIOLATION: a file took more than {SECONDS} s.")


class _Files:
    """Files of one kind: how they are made, changed and read."""

    kind = ""

    def soak(self, count: int, seed: int, tally: Tally) -> None:
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            words = self.mutate(rng)
            where = f"{type(self).__name__}, seed {seed}, number {number}: {words}"
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(PATIENCE)
            try:
                outcome = self.read(words)
            except StoreError as error:
                outcome = "refused" if len(str(error)) > 20 else f"an error without words: {error!r}"
            except Violation:
                raise
            except BaseException as error:
                raise Violation(f"VIOLATION: {type(error).__name__}: {error}. {where}") from error
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.alarm(0)
            if outcome not in ("refused", "as saved", "another model", "damaged and named"):
                raise Violation(f"VIOLATION: {outcome}. {where}")
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            if memory > GIGABYTES:
                raise Violation(f"VIOLATION: {memory:.2f} GB of memory. {where}")
            tally.note(self.kind, outcome)

    def mutate(self, rng: np.random.Generator) -> str:
        raise NotImplementedError

    def read(self, words: str) -> str:
        raise NotImplementedError


class _Tensors(_Files):
    """A file of `tensorfile`."""

    marks: tuple[str, int]
    other = False  # whether the mutation put one number that makes sense in the place of another

    def __init__(self, path: Path):
        self.path, self.bytes = path, path.read_bytes()
        self.document, self.arrays = tensorfile.read(path, *self.marks)

    def mutate(self, rng: np.random.Generator) -> str:
        ways = (_flip, _cut, _double, _insert)
        if rng.random() < 0.4:
            way = ways[rng.integers(len(ways))]
            self.path.write_bytes(way(self.bytes, rng))
            return way.__name__
        document, arrays, self.other = self.document, dict(self.arrays), False
        if rng.random() < 0.6:
            places = list(_places(document))
            place = places[rng.integers(len(places))]
            value = HOSTILE[rng.integers(len(HOSTILE))]
            self.other = _is_another(_at(document, place), value)
            document, words = _replaced(document, place, value), f"{place} = {value!r}"
        else:
            name = sorted(arrays)[rng.integers(len(arrays))]
            way = _spoil(arrays, name, rng)
            self.other, words = way in ("huge", "negative"), f"{name}: {way}"
        tensorfile.write(self.path, *self.marks, document, arrays)
        return words


class _Models(_Tensors):
    """A fitted model: it predicts as it did."""

    marks = models.KIND, models.VERSION

    def __init__(self, folder: Path, method: str):
        self.kind = f"models: {method}"
        self.X, y = data()
        fitted = cglb.GPRegressor(method, num_inducing=8, max_steps=2, schedule="direct").fit(self.X, y)
        self.expected = fitted.predict(self.X, return_std=True)
        fitted.save(folder / "model")
        super().__init__(folder / "model")

    def read(self, words: str) -> str:
        found = cglb.GPRegressor.load(self.path).predict(self.X, return_std=True)
        if all(np.array_equal(*pair) for pair in zip(found, self.expected, strict=True)):
            return "as saved"
        return _other(self.other and bool(np.isfinite(found).all()))


class _Checkpoints(_Tensors):
    """The checkpoint of a fit that has ended: it comes back as it was."""

    kind, marks = "checkpoints", (checkpoint.KIND, checkpoint.VERSION)

    def __init__(self, folder: Path):
        self.X, self.y = data()
        self.path = folder / "checkpoint"
        self.expected = self.fit()
        super().__init__(self.path)

    def fit(self) -> cglb.training.history.Fit:
        gp = cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01)
        options = {"num_inducing": 8, "max_steps": 2, "schedule": "direct"}
        return cglb.train(gp, self.X, self.y, "cglb", checkpoint=self.path, **options)

    def read(self, words: str) -> str:
        found = self.fit()
        if found.bound == self.expected.bound and np.array_equal(found.Z, self.expected.Z):
            return "as saved"
        return _other(self.other and bool(np.isfinite(found.bound)))


class _Stores(_Files):
    """Two runs, one of which is spoilt: the other is found, and the error names the file."""

    kind = "stores"

    def __init__(self, folder: Path):
        self.root, self.kept = folder / "store", folder / "kept"
        specs = plan(["yacht", "energy"], parse_methods("cglb-64"), [0])
        self.runs = [runs.Run(self.root, spec) for spec in specs]
        for run in self.runs:
            run.register(Budget(2))
            for step in (1, 2):
                row = {"step": step, "seconds": 1.0 * step, "bound": 0.0, "rows": 200, "stage": 0}
                run.append("history", row)
                run.append("scores", {"step": step, "seconds": 1.0, "rmse": 1.0, "nlpd": 1.0})
        metrics = {"stop": Ending.STEP_LIMIT, "steps": 2, "seconds": 2.0, "cholesky": None}
        self.runs[0].finish(metrics)
        shutil.copytree(self.root, self.kept)
        self.states = {run.spec.name: self._state(run) for run in self.runs}
        assert [state[0] for state in self.states.values()] == ["done", "stopped"]

    @staticmethod
    def _state(run: runs.Run) -> tuple:
        state = runs.look(run)
        return state.phase, state.step, state.bound

    def mutate(self, rng: np.random.Generator) -> str:
        shutil.rmtree(self.root)
        shutil.copytree(self.kept, self.root)
        folder = self.runs[0].folder
        self.spoilt = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".jsonl"))[
            rng.integers(4)
        ]
        content = self.spoilt.read_bytes()
        if rng.random() < 0.5:
            ways = (_flip, _cut, _double, _insert)
            way = ways[rng.integers(len(ways))]
            self.spoilt.write_bytes(way(content, rng))
            return f"{self.spoilt.name}: {way.__name__}"
        lines = content.decode().splitlines() if self.spoilt.suffix == ".jsonl" else [content.decode()]
        number = int(rng.integers(len(lines)))
        document = json.loads(lines[number])
        places = list(_places(document))
        place, value = places[rng.integers(len(places))], HOSTILE[rng.integers(len(HOSTILE))]
        lines[number] = json.dumps(_replaced(document, place, value))
        self.spoilt.write_text("\n".join(lines) + "\n")
        return f"{self.spoilt.name}: {place} = {value!r}"

    def read(self, words: str) -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = {run.spec.name for run in runs.find(self.root)}
        good = self.runs[1]
        if good.spec.name not in found or self._state(good) != self.states[good.spec.name]:
            return "another run was lost"
        state = runs.look(self.runs[0])
        if state.phase == "damaged":
            named = self.runs[0].folder.name in state.note
            return "damaged and named" if named else f"no name in {state.note!r}"
        if self.runs[0].spec.name not in found:
            named = any(self.runs[0].folder.name in str(one.message) for one in caught)
            return "damaged and named" if named else "left out without a word"
        return (
            "as saved"
            if self._state(self.runs[0]) == self.states[self.runs[0].spec.name]
            else ("another model")
        )


# ---- mutations ----


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for place in rng.integers(len(content), size=rng.integers(1, 5)):
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content))]


def _double(content: bytes, rng: np.random.Generator) -> bytes:
    return content + content[: rng.integers(1, len(content))]


def _insert(content: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(content)))
    return content[:place] + rng.bytes(int(rng.integers(1, 64))) + content[place:]


def _places(document: Any, place: tuple = ()) -> Iterator[tuple]:
    """Where a nested document has values, itself left out."""
    if place:
        yield place
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from _places(value, (*place, key))


def _at(document: Any, place: tuple) -> Any:
    for key in place:
        document = document[key]
    return document


def _is_another(old: Any, new: Any) -> bool:
    """Whether numbers are replaced by as many other numbers."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_is_number, old)) and all(map(_is_number, new))
    return _is_number(old) and _is_number(new)


def _is_number(value: Any) -> bool:
    """A number, or an array of them as kernels are written."""
    if isinstance(value, dict):
        return "array" in value
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _other(sensible: bool) -> str:
    return "another model" if sensible else "a result that was not saved"


def _replaced(document: Any, place: tuple, value: Any) -> Any:
    changed = copy.deepcopy(document)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def _spoil(arrays: dict[str, np.ndarray], name: str, rng: np.random.Generator) -> str:
    """Change one array in place; what was done."""
    array = arrays[name]
    ways = {
        "missing": lambda: None,
        "empty": lambda: array[:0] if array.ndim else np.zeros(0),
        "longer": lambda: np.concatenate([np.atleast_1d(array), np.atleast_1d(array)[:1]]),
        "another type": lambda: array.astype(np.float32),
        "whole numbers": lambda: np.nan_to_num(array).astype(np.int64),
        "NaN": lambda: np.full(array.shape, np.nan),
        "infinite": lambda: np.full(array.shape, np.inf),
        "more axes": lambda: array[None],
        "transposed": lambda: np.ascontiguousarray(array.T)[..., None],
        "huge": lambda: np.full(array.shape, 1e308),
        "negative": lambda: -np.abs(array) - 1.0,
    }
    way = sorted(ways)[rng.integers(len(ways))]
    changed = ways[way]()
    if changed is None:
        del arrays[name]
    else:
        arrays[name] = changed
    return way
