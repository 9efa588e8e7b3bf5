"""Checkpoints: a fit that was cut off anywhere ends where it would have ended anyway."""

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import problems
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cglb
from cglb import CGLB, SGPR, Exact, Iterative, Stage
from cglb.bounds.logdet import Auto, Chain, Side, by_cost
from cglb.core.errors import StoreError
from cglb.io import tensorfile as store
from cglb.linalg import preconditioners
from cglb.optimisers.adam import Adam
from cglb.training import checkpoint, problem

X, Y, Z = problems.data(n=40, d=2, m=8)
NYSTROM = CGLB(precondition="nystrom")
WAYS = {
    "rounds": {"method": NYSTROM},
    "together": {"method": NYSTROM, "optimize_inducing": True},
    "exact": {"method": Exact()},
    "stages": {"method": CGLB(logdet=Chain(8, 4))},
    "subset": {"method": NYSTROM, "subset": 15},
    "iterative": {"method": Iterative(rank=5, pretrain=(3, 2)), "subset": 15},
    "progressive": {
        "method": NYSTROM,
        "schedule": "progressive",
        "parts": (10, 20),
        "priors": "dimension",
    },
}
STEPS = 9


def fit(way="rounds", gp=None, X=X, y=Y, **settings):
    defaults = {"num_inducing": 8, "max_steps": STEPS, "steps_per_round": 4, "checkpoint_seconds": 0.0}
    defaults |= {"schedule": "direct"}
    gp = gp or cglb.GP(cglb.Matern32(np.ones(2)))
    return cglb.train(gp, X, y, **{**defaults, **WAYS[way], **settings})


@functools.cache
def whole(way, steps=STEPS):
    return fit(way, max_steps=steps)


def assert_same(found, expected):
    for one, other in zip(
        jax.tree.leaves(result(found)), jax.tree.leaves(result(expected)), strict=True
    ):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    assert untimed(found) == untimed(expected)
    assert (found.stop, found.message) == (expected.stop, expected.message)


def result(fit):
    return fit.gp, fit.Z, fit.v, fit.bound, fit.evaluations, fit.products


def untimed(fit):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in fit.history]


class Crash(Exception):
    pass


def crash_at(*steps):
    """A callback that ends the fit at each of these steps, once."""
    left = set(steps)

    def callback(row, current):
        if row["step"] in left:
            left.remove(row["step"])
            raise Crash

    return callback


def interrupted(path, way, *steps, **settings):
    callback = crash_at(*steps)
    for _ in steps:
        with pytest.raises(Crash):
            fit(way, checkpoint=path, callback=callback, **settings)
    return fit(way, checkpoint=path, callback=callback, **settings)


# ---- interruptions ----

# The rounds are cut off between two steps, the other fit while its fifth checkpoint is being written.
KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_checkpoint import fit

folder, flush, writes = Path(sys.argv[2]), os.fsync, []

def deadly(number):
    flush(number)
    writes.append(number)
    if len(writes) == 5:
        os.kill(os.getpid(), signal.SIGKILL)

def second(row, current):
    if row["step"] == 6:
        os.fsync = deadly
        fit("together", checkpoint=folder / "together")

fit("rounds", checkpoint=folder / "rounds", callback=second)
"""


def test_a_killed_process_loses_nothing(tmp_path):
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", KILLED, here, tmp_path], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in names if not name.endswith(".part")] == ["rounds", "together"]
    assert len(names) == 3  # and half a checkpoint that nobody reads
    for way, steps in (("rounds", 6), ("together", 4)):
        document, _ = store.read(tmp_path / way, "checkpoint", checkpoint.VERSION)
        assert len(document["history"]) == steps
        assert_same(fit(way, checkpoint=tmp_path / way), whole(way))


@pytest.mark.parametrize("way", WAYS)
def test_a_fit_interrupted_twice_ends_as_if_it_had_not_been(way, tmp_path):
    """Inside a round or stage, and at the end of one."""
    assert_same(interrupted(tmp_path / "fit", way, 3, 4), whole(way))


@pytest.mark.skipif(settings().max_examples <= 25, reason="random interruptions: profile explore")
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=10)
@given(steps=st.sets(st.integers(1, STEPS - 1), min_size=1, max_size=3))
def test_any_interruptions_lead_to_the_same_fit(tmp_path_factory, way, steps):
    path = tmp_path_factory.mktemp("crash") / "fit"
    assert_same(interrupted(path, way, *steps), whole(way))


def test_a_fit_cut_off_between_a_part_of_the_rows_and_all_goes_on(tmp_path):
    part = sum(row["rows"] == 15 for row in whole("subset").history)
    assert part > 1
    found = interrupted(tmp_path / "fit", "subset", part - 1, part, part + 1, part + 5)
    assert_same(found, whole("subset"))
    assert [path.name for path in tmp_path.iterdir()] == ["fit"]


def test_a_restarted_fit_does_not_repeat_its_callbacks(tmp_path):
    seen = []

    def callback(row, current):
        seen.append(row["step"])
        if row["step"] == 3 and len(seen) == 3:
            raise Crash

    with pytest.raises(Crash):
        fit(checkpoint=tmp_path / "fit", callback=callback)
    fit(checkpoint=tmp_path / "fit", callback=callback)
    assert seen == list(range(1, STEPS + 1))


def test_seconds_go_on_where_they_were(tmp_path):
    with pytest.raises(Crash):
        fit(checkpoint=tmp_path / "fit", callback=crash_at(4))
    document, arrays = store.read(tmp_path / "fit", "checkpoint", checkpoint.VERSION)
    store.write(
        tmp_path / "fit", "checkpoint", checkpoint.VERSION, {**document, "seconds": 1000.0}, arrays
    )
    assert fit(checkpoint=tmp_path / "fit").history[4]["seconds"] > 1000.0


SPOILT = {
    "Z": {"missing": None, "empty": np.zeros((0, 2)), "whole": np.ones((8, 2), int), "infinite": np.inf},
    "history": {"a number": 1e308, "other rows": [{}]},
    "stage": {"a truth value": True, "not there": 9},
}


@pytest.mark.parametrize(("name", "how"), [(name, how) for name, ways in SPOILT.items() for how in ways])
def test_a_checkpoint_that_no_fit_wrote_is_refused(tmp_path, name, how):
    with pytest.raises(Crash):
        fit(checkpoint=tmp_path / "fit", callback=crash_at(3))
    document, arrays = store.read(tmp_path / "fit", "checkpoint", checkpoint.VERSION)
    value = SPOILT[name][how]
    if name in document:
        document[name] = value
    elif value is None:
        del arrays[name]
    else:
        arrays[name] = np.full_like(arrays[name], value) if np.isscalar(value) else value
    store.write(tmp_path / "fit", "checkpoint", checkpoint.VERSION, document, arrays)
    with pytest.raises(StoreError, match="does not hold the state of a fit"):
        fit(checkpoint=tmp_path / "fit")


def test_old_checkpoints_are_kept_for_as_long_as_asked(tmp_path):
    written = []

    def look(row, current):
        document, _ = store.read(tmp_path / "fit", "checkpoint", checkpoint.VERSION)
        written.append(len(document["history"]))

    fit(checkpoint=tmp_path / "fit", checkpoint_seconds=1e6, callback=look, max_steps=3)
    assert written == [1, 1, 1]  # the first step at once, the others at the end
    document, _ = store.read(tmp_path / "fit", "checkpoint", checkpoint.VERSION)
    assert len(document["history"]) == 3


def test_a_write_that_fails_leaves_a_checkpoint_to_go_on_from(tmp_path, monkeypatch):
    def full(number):
        raise OSError("No space left on device")

    def later(row, current):
        if row["step"] == 3:
            monkeypatch.setattr(os, "fsync", full)

    with pytest.warns(UserWarning, match="could not be written"):  # training is worth more than a file
        assert_same(fit(checkpoint=tmp_path / "fit", callback=later), whole("rounds"))
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["fit"]
    assert_same(fit(checkpoint=tmp_path / "fit"), whole("rounds"))


# ---- fits that have ended ----


def no_work(*args):
    raise AssertionError("A finished fit has nothing left to evaluate.")


@pytest.fixture
def forbid_work(monkeypatch):
    """A function after whose call nothing can be evaluated or prepared any more."""

    def forbid():
        monkeypatch.setattr(problem.Problem, "evaluate", no_work)
        monkeypatch.setattr(problem.Problem, "system", no_work)

    return forbid


@pytest.mark.parametrize("way", WAYS)
def test_a_fit_at_its_step_limit_returns_immediately(way, tmp_path, forbid_work):
    expected = whole(way)  # before there is nothing to evaluate with
    fit(way, checkpoint=tmp_path / "fit")
    forbid_work()
    assert_same(fit(way, checkpoint=tmp_path / "fit"), expected)


@pytest.mark.parametrize(
    ("settings", "stop"),
    [
        ({"method": Exact(), "max_steps": 100}, "converged"),
        ({"callback": lambda row, current: row["step"] == 3}, "callback"),
        ({"max_seconds": 1e-9}, "time limit"),
    ],
)
def test_a_finished_fit_returns_immediately(settings, stop, tmp_path, forbid_work):
    before = fit(checkpoint=tmp_path / "fit", **settings)
    assert before.stop == stop
    forbid_work()
    assert_same(fit(checkpoint=tmp_path / "fit", **settings), before)


# within a round and at the end of one
@pytest.mark.parametrize(
    ("way", "first"),
    [("rounds", 3), ("rounds", 4), ("together", 3), ("exact", 3), ("subset", 3)]
    + [("iterative", first) for first in (2, 3, 4, 5, 7)],
)
def test_more_steps_go_on_as_if_asked_for_at_once(way, first, tmp_path):
    fit(way, checkpoint=tmp_path / "fit", max_steps=first)
    assert_same(fit(way, checkpoint=tmp_path / "fit"), whole(way))


def test_more_time_goes_on_as_if_given_at_once(tmp_path):
    short = fit(checkpoint=tmp_path / "fit", max_seconds=1e-9)
    assert len(short.history) < STEPS
    found = fit(checkpoint=tmp_path / "fit", max_seconds=1e6)
    assert untimed(found)[-1]["parameters"] == untimed(whole("rounds"))[-1]["parameters"]
    assert found.stop == "step limit"


def test_fewer_steps_than_done_give_what_is_done(tmp_path, forbid_work):
    expected = whole("rounds")
    fit(checkpoint=tmp_path / "fit")
    forbid_work()
    found = fit(checkpoint=tmp_path / "fit", max_steps=2)
    assert untimed(found) == untimed(expected)
    assert found.bound == expected.bound


# ---- files that do not fit ----


@functools.cache
def three_steps(folder):
    with pytest.raises(Crash):
        fit(checkpoint=folder / "fit", callback=crash_at(3))
    return (folder / "fit").read_bytes()


@pytest.fixture
def path(tmp_path, tmp_path_factory):
    """A checkpoint of three steps."""
    (tmp_path / "fit").write_bytes(three_steps(tmp_path_factory.getbasetemp()))
    return tmp_path / "fit"


def test_a_fit_cut_off_as_a_round_stalls_goes_on_with_the_next_round(tmp_path):
    settings = {"max_steps": 60, "steps_per_round": 60}
    expected = fit(**settings)
    starts = [row["step"] for row in expected.history]
    rounds = [row["round"] for row in expected.history]
    stalled = [step for step, one, other in zip(starts, rounds, rounds[1:], strict=False) if one < other]
    assert stalled  # a round ended before its 60 steps
    with pytest.raises(Crash):
        fit(checkpoint=tmp_path / "fit", callback=crash_at(stalled[0] + 1), **settings)
    assert_same(fit(checkpoint=tmp_path / "fit", **settings), expected)
    for step in stalled:
        cut = fit(checkpoint=tmp_path / f"fit{step}", **{**settings, "max_steps": step})
        assert cut.stop == "step limit"
        assert_same(fit(checkpoint=tmp_path / f"fit{step}", **settings), expected)


FOREIGN = {
    "inputs": {"X": X + 1e-12},
    "targets": {"y": Y[::-1].copy()},
    "fewer rows": {"X": X[:-1], "y": Y[:-1]},
    "kernel": {"gp": cglb.GP(cglb.RBF(np.ones(2)))},
    "kernel's structure": {"gp": cglb.GP(cglb.Matern32(1.0))},
    "start": {"gp": cglb.GP(cglb.Matern32(np.ones(2)), 0.5)},
    "method": {"method": SGPR("amgm")},
    "logdet": {"method": CGLB(logdet="hadamard", precondition="nystrom")},
    "cg_tolerance": {"method": CGLB(cg_tolerance=0.5, precondition="nystrom")},
    "precondition": {"method": CGLB()},
    "stages": {"stages": (Stage(SGPR(), share=0.5), Stage(NYSTROM, share=0.5))},
    "optimiser": {"stages": (Stage(NYSTROM, Adam()),)},
    "Z": {"Z": Z},
    "num_inducing": {"num_inducing": 7},
    "optimize_inducing": {"optimize_inducing": True},
    "steps_per_round": {"steps_per_round": 3},
    "floor": {"floor": 1e-4},
    "fixed": {"fixed": ("mean",)},
    "seed": {"seed": 1},
}


@pytest.mark.parametrize("change", FOREIGN)
def test_the_checkpoint_of_another_fit_is_refused(change, path):
    content = path.read_bytes()
    with pytest.raises(StoreError, match="another fit"):
        fit(checkpoint=path, **FOREIGN[change])
    assert path.read_bytes() == content


def test_the_value_of_a_fixed_parameter_is_part_of_the_fit(tmp_path):
    one, other = (cglb.GP(cglb.Matern32(np.ones(2)), noise) for noise in (0.5, 0.6))
    settings = {"fixed": ("noise",), "max_steps": 1, "checkpoint": tmp_path / "fit"}
    fit(gp=one, **settings)
    with pytest.raises(StoreError, match="another fit"):
        fit(gp=other, **settings)


def test_settings_given_as_objects_are_recognised_in_another_process():
    """The fingerprint is made of their text, which must not hold an address in memory."""
    for bound in (*by_cost(Side.ABOVE), Auto(), Chain(8, 4)):
        assert " at 0x" not in repr(Stage(CGLB(logdet=bound)))
    assert " at 0x" not in repr(Stage(CGLB(precondition=preconditioners.find("chain"))))
    assert " at 0x" not in str(jax.tree.structure(cglb.RBF(1.0).on([0]) + 2.0 * cglb.Constant()))


def test_a_damaged_checkpoint_is_refused(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="damaged"):
        fit(checkpoint=path)


def test_half_a_checkpoint_is_refused(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match="damaged"):
        fit(checkpoint=path)


def test_something_else_is_not_a_checkpoint(path):
    store.write(path, "model", 1, {}, {})
    with pytest.raises(StoreError, match="not a cglb checkpoint"):
        fit(checkpoint=path)


def test_a_checkpoint_holds_the_optimisers_state_as_it_is(path):
    """The newest point and the pairs, not what was seen on the way there."""
    document, arrays = store.read(path, "checkpoint", checkpoint.VERSION)
    assert arrays["run.x"].shape == arrays["run.gradient"].shape == (5,)
    assert arrays["run.S"].shape == arrays["run.Y"].shape
    assert len(arrays["run.S"]) <= 3
    assert float(arrays["run.value"]) == document["history"][-1]["bound"]
    np.testing.assert_array_equal(arrays["run.x"], arrays["free"])
    np.testing.assert_array_equal(arrays["columns"][:, 0], arrays["v"])
