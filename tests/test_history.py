"""What training says about itself: a true history, callbacks, time and progress."""

import itertools

import equinox as eqx
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import NYSTROM, WAYS, Watched, X, Y, bits, fit, fitted, model

import cglb
from cglb import SGPR, Exact, bounds
from cglb.core import validation
from cglb.optimisers.base import Ending
from cglb.training import clock, problem
from cglb.training.clock import Clock

# ---- history, callbacks, time ----


@pytest.mark.parametrize("way", WAYS)
def test_history_has_a_true_row_for_every_step(way):
    found = fitted(way)
    rows = found.history
    assert [row["step"] for row in rows] == list(range(1, 13))
    for row in rows:
        assert row["constant"] + row["quadratic"] + row["logdet"] == pytest.approx(row["bound"])
        assert row["logdet_bound"] == "amgm"
        assert row["slack"] <= NYSTROM.cg_tolerance
        assert row["cg_stop"] == "tolerance"
        assert row["cg_steps"] >= 0
    for name in ("evaluations", "products", "seconds"):
        assert (np.diff([row[name] for row in rows]) > 0).all()
    assert sum(len(row["cg_steps_by_evaluation"]) for row in rows) == rows[-1]["evaluations"]
    assert all(row["cg_steps"] in row["cg_steps_by_evaluation"] for row in rows)
    assert found.evaluations >= rows[-1]["evaluations"]
    assert found.products >= rows[-1]["products"]


@pytest.mark.parametrize("way", WAYS)
def test_the_last_row_is_the_model_that_comes_back(way):
    found = fitted(way)
    row = found.history[-1]
    assert found.bound == row["bound"]
    assert bits(found.gp) == bits(model(row))
    assert bounds.cglb(found.gp, X, Y, found.Z, found.v).value == pytest.approx(found.bound, abs=1e-8)


def test_methods_without_cg_report_none():
    row = fit(Exact(), max_steps=1).history[0]
    assert (row["cg_steps"], row["cg_stop"], row["slack"]) == (None, None, None)


def test_a_callback_sees_the_model_of_each_step_and_can_stop():
    seen = []

    def callback(row, current):
        now = current()
        assert now.stop == "running"
        assert now.bound == row["bound"]
        assert bits(now.gp) == bits(model(row))
        seen.append(row["step"])
        return row["step"] == 3

    found = fit(callback=callback)
    assert seen == [1, 2, 3]
    assert (found.stop, len(found.history)) == ("callback", 3)
    assert bits(found.gp) == bits(model(fitted("rounds").history[2]))


class FakeTime:
    """Seconds that pass only if a test says so."""

    def __init__(self, monkeypatch):
        self.seconds = 0.0
        monkeypatch.setattr(clock, "now", lambda: self.seconds)

    def slow(self, function, seconds):
        """The function, taking this long."""

        def slowed(*args, **kwargs):
            self.seconds += seconds
            return function(*args, **kwargs)

        return slowed


def test_time_in_callbacks_does_not_count(monkeypatch):
    time = FakeTime(monkeypatch)
    found = fit(max_steps=4, callback=time.slow(lambda row, current: None, 7.0))
    assert time.seconds == 28.0
    assert found.seconds == 0.0


def test_time_for_choosing_inducing_points_counts(monkeypatch):
    time = FakeTime(monkeypatch)
    slow = time.slow(problem.inducing.greedy_rows, 10.0)
    monkeypatch.setattr(problem.inducing, "greedy_rows", slow)
    found = fit(max_steps=2, steps_per_round=1)
    assert [row["seconds"] for row in found.history] == [10.0, 20.0]


def test_the_time_limit_is_looked_at_inside_a_line_search(monkeypatch):
    """After the third step every trial fails, and the limit ends the search, not its 30 trials."""
    time, steps = FakeTime(monkeypatch), []

    def slow(evaluate, gp, Z, v):
        time.seconds += 1.0
        return evaluate() if len(steps) < 3 else None

    def count(row, current):
        steps.append(row)

    found = fit(Watched(hook=slow), max_seconds=10.0, callback=count, steps_per_round=12)
    assert (found.stop, len(found.history)) == (Ending.TIME_LIMIT, 3)
    assert found.seconds == 10.0
    assert bits(found.gp) == bits(model(found.history[-1]))


@given(st.lists(st.tuples(st.sampled_from(["run", "pause", "wait"]), st.floats(0.0, 10.0))))
def test_a_clock_counts_what_runs_and_not_what_is_paused(spans):
    with pytest.MonkeyPatch.context() as patch:
        now = [100.0]
        patch.setattr(clock, "now", lambda: now[0])
        watch = Clock()
        for kind, seconds in spans:
            if kind == "wait":
                now[0] += seconds
                continue
            with watch.running():
                now[0] += seconds if kind == "run" else 0.0
                with watch.paused():
                    now[0] += 7.0
        assert watch.seconds == pytest.approx(sum(s for kind, s in spans if kind == "run"))


def test_a_time_limit_stops_after_the_step_it_is_noticed_in():
    found = fit(max_seconds=1e-9)
    assert (found.stop, len(found.history)) == ("time limit", 1)
    assert "time" in found.message


def test_a_fit_holds_numpy_arrays_in_and_outside_the_float64_scope():
    """JAX would round a float64 array outside the scope to float32 at its next use."""
    seen = []
    found = [fit(max_steps=1, callback=lambda row, current: seen.append(current()) or False)]
    with cglb.float64():
        found.append(fit(max_steps=1))
    for one in found + seen:
        for leaf in jax.tree.leaves((one.gp, one.Z, one.v)):
            assert type(leaf) is np.ndarray
            assert leaf.dtype == np.float64


@pytest.mark.parametrize("method", [NYSTROM, SGPR(), Exact(), cglb.Iterative(rank=5)])
def test_data_are_checked_once_per_fit_and_not_per_step(method, monkeypatch):
    calls = []
    check = validation.as_data
    monkeypatch.setattr(validation, "as_data", lambda *args: calls.append(args) or check(*args))
    counts = []
    for steps in (2, 7):
        calls.clear()
        fit(method, max_steps=steps, steps_per_round=2)
        counts.append(len(calls))
    assert counts[0] == counts[1] == 2  # X and y


def test_a_line_search_that_finds_nothing_is_not_called_convergence():
    """A bound that only falls: its gradient points uphill, but no step leads there."""
    values = itertools.count()

    def falling(evaluate, gp, Z, v):
        found = evaluate()
        lower = found.terms.constant - 1e4 * next(values)
        return eqx.tree_at(lambda e: e.terms.constant, found, lower)

    found = fit(Watched(hook=falling), optimize_inducing=True)
    assert found.stop is Ending.NO_IMPROVEMENT
    assert "no further improvement" in found.message
    assert found.history == []


def test_the_progress_bar_shows_steps_and_bound_on_standard_error(capsys):
    found = fit(max_steps=3, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "3/3" in shown.err
    assert f"bound {found.bound:.2f}" in shown.err
    fit(max_steps=3)
    assert capsys.readouterr().err == ""
