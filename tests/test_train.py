"""Training: one deterministic function, accepted steps only, and a history that tells the truth."""

import functools
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cglb
from cglb import CGLB, SGPR, Exact, Stage, bounds
from cglb.core import validation
from cglb.methods import base
from cglb.methods.stages import STALL
from cglb.optimisers.adam import Adam
from cglb.optimisers.base import Ending
from cglb.training import clock, endings, evaluations, problem
from cglb.training.clock import Clock
from cglb.training.free import Parameters
from cglb.training.problem import random_rows

X, Y, Z = problems.data(n=40, d=2, m=8)
# Nyström alone preconditions, so that CG has some work left even on 40 rows
NYSTROM = CGLB(precondition="nystrom")
WAYS = {"rounds": {}, "together": {"optimize_inducing": True}}


@dataclass(frozen=True)
class Watched(CGLB):
    """CGLB whose evaluations go through `hook(evaluate, gp, Z, v0)`."""

    precondition: str = "nystrom"
    hook: Any = field(default=None, repr=False)

    def evaluate(self, prepared, system, y, v0=None, seed=()):
        def usual():
            return super(Watched, self).evaluate(prepared, system, y, v0)

        return self.hook(usual, system.gp, system.Z, v0)


def start():
    return cglb.GP(cglb.Matern32(np.ones(2)))


def fit(method=NYSTROM, gp=None, y=Y, **settings):
    defaults = {"num_inducing": 8, "max_steps": 12, "steps_per_round": 5, "schedule": "direct"}
    return cglb.train(gp or start(), X, y, method, **{**defaults, **settings})


@functools.cache
def fitted(way):
    return fit(**WAYS[way])


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def without_time(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


def model(row):
    values = row["parameters"]
    lengthscale = [values["kernel.lengthscale[0]"], values["kernel.lengthscale[1]"]]
    kernel = cglb.Matern32(lengthscale, values["kernel.variance"])
    return cglb.GP(kernel, values["noise"], values["mean"])


@st.composite
def point(draw):
    """A model and a v, anywhere a line search may look."""
    value = st.floats(-2.0, 1.0).map(lambda t: 10.0**t)
    kernel = cglb.Matern32([draw(value), draw(value)], draw(value))
    v = draw(st.floats(-1.0, 1.0)) * np.random.default_rng(0).normal(size=len(Y))
    return cglb.GP(kernel, draw(value), draw(st.floats(-1.0, 1.0))), v


def evaluation(gp, v, method=NYSTROM):
    with cglb.float64():
        first, gp = jax.tree.map(jnp.asarray, (start(), gp))
        x, y, z, v0 = map(jnp.asarray, (X, Y, Z, v))
        prepared = method.prepare(method.system(first, x, z))
        return method.evaluate(prepared, method.system(gp, x, z, prepared), y, v0)


# ---- one fixed function ----


@settings(max_examples=10)
@given(point(), point())
def test_a_point_evaluated_twice_gives_the_same_bits(one, other):
    first = evaluation(*one)
    evaluation(*other)
    again = evaluation(*one)
    assert bits(first) == bits(again)
    assert (first.slack, first.cg_steps) == (again.slack, again.cg_steps)


@given(point())
def test_the_objective_never_exceeds_the_log_marginal_likelihood(case):
    gp, v = case
    exact = problems.log_likelihood(gp, X, Y)
    value = evaluation(gp, v).value
    assert value <= exact + problems.slack_for(exact, value)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_seed_gives_the_same_fit_to_the_bit(way):
    one, other = fitted(way), fit(**WAYS[way])
    assert bits((one.gp, one.Z, one.v, one.bound)) == bits((other.gp, other.Z, other.v, other.bound))
    assert without_time(one.history) == without_time(other.history)


def test_another_seed_breaks_the_first_tie_another_way():
    one, other = fit(max_steps=1), fit(max_steps=1, seed=1)
    assert not np.array_equal(one.Z, other.Z)


@pytest.mark.parametrize("way", WAYS)
def test_v_moves_on_only_with_an_accepted_step(way):
    starts: dict[int, list] = {}
    accepted = {0: None}

    def spy(evaluate, gp, Z, v):
        starts.setdefault(max(accepted), []).append(v)
        return evaluate()

    def remember(row, current):
        accepted[row["step"]] = np.asarray(current().v)

    fit(Watched(hook=spy), **WAYS[way], max_steps=12, steps_per_round=12, callback=remember)
    assert len(starts) == 12  # the last accepted step is followed by no evaluation
    assert max(map(len, starts.values())) > 1  # some line search made several trials
    for step, trials in starts.items():
        for v in trials:
            if accepted[step] is None:
                assert v is None
                continue
            # the newest solutions, and nothing of this line search
            for age in range(evaluations.RECYCLED):
                older = accepted.get(step - age)
                expected = np.zeros(len(Y)) if older is None else older
                np.testing.assert_array_equal(v[:, age], expected)


# ---- numbers that are not finite ----


def broken_value(found):
    return None


def broken_gradient(found):
    return eqx.tree_at(lambda e: e.Z_bar, found, found.Z_bar * jnp.nan)


@pytest.mark.parametrize("breakage", [broken_value, broken_gradient])
def test_a_trial_that_is_not_finite_shortens_the_step(breakage):
    reached = min(row["parameters"]["noise"] for row in fitted("together").history)
    wall = 2.0 * reached  # an unhindered fit goes beyond it
    hits = []

    def cliff(evaluate, gp, Z, v):
        found = evaluate()
        if float(gp.noise) >= wall:
            return found
        hits.append(float(gp.noise))
        return breakage(found)

    found = fit(Watched(hook=cliff), optimize_inducing=True, max_steps=4)
    assert hits
    assert len(found.history) == 4
    assert np.isfinite(found.bound)
    assert all(row["parameters"]["noise"] >= wall and np.isfinite(row["bound"]) for row in found.history)
    assert found.history[-1]["bound"] > found.history[0]["bound"]
    assert float(found.gp.noise) >= wall
    assert np.isfinite(found.Z).all()


@pytest.mark.parametrize("method", [NYSTROM, SGPR()])
def test_overflow_has_no_value(method):
    huge = cglb.GP(cglb.Matern32(np.ones(2), 1e308), 1e-300)
    assert evaluation(huge, np.zeros(40), method) is None


def test_a_singular_matrix_has_no_exact_value():
    flat = cglb.GP(cglb.Matern32(np.full(2, 1e9)), 1e-300)
    assert evaluation(flat, np.zeros(40), Exact()) is None


def test_a_start_that_is_not_finite_is_an_error_with_a_remedy():
    with pytest.raises(ValueError, match=r"starting point.*units"):
        fit(y=1e200 * Y)


# ---- what training does ----


@pytest.mark.parametrize("way", WAYS)
def test_the_bound_never_falls_from_step_to_step(way):
    values = np.array([row["bound"] for row in fitted(way).history])
    assert len(values) == 12
    assert (np.diff(values) >= -1e-9 * np.abs(values[1:])).all()
    assert values[-1] > values[0] + 1.0


@pytest.mark.parametrize("way", WAYS)
def test_every_step_is_below_the_exact_value_at_its_hyperparameters(way):
    for row in fitted(way).history:
        exact = problems.log_likelihood(model(row), X, Y)
        assert row["bound"] <= exact + problems.slack_for(exact)


def test_rounds_keep_inducing_points_on_the_data_and_gradients_move_them():
    rows = {row.tobytes() for row in X}
    assert all(z.tobytes() in rows for z in np.asarray(fitted("rounds").Z))
    assert not any(z.tobytes() in rows for z in np.asarray(fitted("together").Z))


def test_reselection_follows_the_hyperparameters():
    found = fitted("rounds")
    assert [row["round"] for row in found.history] == [0] * 5 + [1] * 5 + [2] * 2
    assert not np.array_equal(found.Z, fit(max_steps=1).Z)


def test_given_inducing_points_are_the_start():
    np.testing.assert_array_equal(fit(Z=Z, max_steps=1).Z, Z)


def test_fixed_parameters_stay_and_floors_hold():
    gp = cglb.GP(cglb.Matern32(np.ones(2)), mean=0.37)
    found = fit(gp=gp, fixed=("mean",), floor={"noise": 0.1})
    assert float(found.gp.mean) == 0.37
    assert "mean" not in found.history[-1]["parameters"]
    assert min(row["parameters"]["noise"] for row in found.history) >= 0.1
    assert fitted("rounds").history[-1]["parameters"]["noise"] < 0.1


def test_with_nothing_to_optimise_the_start_comes_back():
    found = fit(fixed=("kernel", "noise", "mean"))
    assert bits(found.gp) == bits(start())
    assert found.stop == "converged"
    assert found.history == []
    assert np.isfinite(found.bound)


def test_convergence_means_that_no_direction_improves():
    found = fit(Exact(), max_steps=500)
    assert found.stop == "converged"
    assert found.Z is None
    assert found.v is None
    parameters = Parameters(found.gp)
    free = np.asarray(parameters.flatten(found.gp))
    for i in range(len(free)):
        for sign in (-1.0, 1.0):
            trial = parameters.unflatten(free + sign * 0.05 * np.eye(len(free))[i])
            assert bounds.exact(trial, X, Y).value <= found.bound + 1e-4


def test_rounds_end_when_they_gain_nothing():
    found = fit(fixed=("kernel", "mean"), max_steps=200)
    # CG takes whole steps, so that near its maximum the bound is rough at the level of the tolerance
    assert found.stop in (Ending.CONVERGED, Ending.NO_IMPROVEMENT)
    assert len(found.history) < 50
    assert found.message


@pytest.mark.parametrize("name", ["max_steps", "steps_per_round", "subset"])
def test_no_steps_at_all_cannot_be_asked_for(name):
    with pytest.raises(ValueError, match=name):
        fit(**{name: 0})


# ---- the objective's settings ----


def test_a_smaller_cg_tolerance_leaves_less_slack_for_more_steps():
    loose, tight = (
        fitted("rounds").history,
        fit(CGLB(cg_tolerance=1e-5, precondition="nystrom")),
    )
    assert max(row["slack"] for row in loose) > 1e-2
    assert max(row["slack"] for row in tight.history) <= 1e-5
    assert tight.products > fitted("rounds").products


def test_a_cg_step_limit_is_kept_and_recorded():
    method = CGLB(cg_tolerance=1e-9, cg_max_steps=2, precondition="nystrom")
    rows = fit(method, max_steps=3).history
    assert all(row["cg_steps"] <= 2 for row in rows)
    assert all(row["cg_stop"] == "step limit" for row in rows)


@pytest.mark.parametrize(
    ("setting", "value"), [("cg_tolerance", 0.0), ("logdet", "magic"), ("precondition", "magic")]
)
def test_a_setting_that_makes_no_sense_is_named(setting, value):
    with pytest.raises(ValueError, match=setting):
        CGLB(**{setting: value})


def test_a_method_is_found_by_its_name_and_an_unknown_one_is_told_the_names():
    assert base.find("cglb", {"logdet": "hadamard", "unknown": 1}) == CGLB("hadamard")
    assert {"cglb", "sgpr", "exact", "iterative"} <= set(base.names())
    with pytest.raises(ValueError, match=r"one of auto, cglb, .*exact.* found 'magic'"):
        fit("magic")


# ---- stages ----


def loose_then_tight(first, second):
    """The paper's bound, then Hadamard's."""
    return Stage(NYSTROM, share=first), Stage(replace(NYSTROM, logdet="hadamard"), share=second)


HADAMARD = replace(NYSTROM, logdet="hadamard")


def test_stages_change_the_bound_at_their_shares():
    found = fit(HADAMARD, stages=loose_then_tight(0.5, 0.5), max_steps=8, steps_per_round=25)
    assert [row["logdet_bound"] for row in found.history] == ["amgm"] * 4 + ["hadamard"] * 4
    assert [row["stage"] for row in found.history] == [0] * 4 + [1] * 4
    for row in found.history:
        exact = problems.log_likelihood(model(row), X, Y)
        assert row["bound"] <= exact + problems.slack_for(exact)


@pytest.mark.parametrize("method", [CGLB(logdet="chain"), CGLB(logdet="auto"), SGPR("chain")])
def test_a_tight_bound_is_reached_through_looser_ones(method):
    stages = method.stages(40, None, joint=False)
    assert [stage.method.logdet for stage in stages] == ["amgm", "hadamard", method.logdet]
    assert [stage.share for stage in stages] == pytest.approx([0.5, 0.1, 0.4])
    assert {type(stage.method) for stage in stages} == {type(method)}
    assert NYSTROM.stages(40, None, joint=False) == (Stage(NYSTROM),)


def test_a_stage_without_cg_leads_to_one_with_it():
    stages = (Stage(SGPR("amgm"), share=0.5), Stage(NYSTROM, share=0.5))
    found = fit(stages=stages, max_steps=8)
    assert [row["method"] for row in found.history] == ["sgpr"] * 4 + ["cglb"] * 4
    assert all(row["cg_steps"] is None for row in found.history[:4])
    assert sum(row["cg_steps"] for row in found.history[4:]) > 0


def test_exact_training_can_start_from_a_bound():
    found = fit(Exact(), stages=(Stage(SGPR("amgm"), share=0.5), Stage(Exact(), share=0.5)), max_steps=8)
    assert found.Z is None
    assert found.v is None
    for row in found.history:
        likelihood = problems.log_likelihood(model(row), X, Y)
        if row["step"] <= 4:
            assert row["method"] == "sgpr"
            assert row["bound"] < likelihood
        else:
            assert row["bound"] == pytest.approx(likelihood)


def test_a_stage_has_the_optimiser_rows_and_steps_it_names():
    stages = (Stage(NYSTROM, Adam(0.01), rows=20, steps=3), Stage(NYSTROM, steps=2))
    found = fit(stages=stages)
    assert [row["rows"] for row in found.history] == [20, 20, 20, 40, 40]
    assert found.stop is Ending.STEP_LIMIT
    noise = [1.0, *(row["parameters"]["noise"] for row in found.history)]
    # Adam's first steps have the length of its rate in every free parameter
    assert all(abs(b - a) < 0.011 for a, b in itertools.pairwise(noise[:4]))


def test_stages_share_the_time_there_is(monkeypatch):
    """Seconds pass with the calls of the clock, so that this machine's do not matter."""
    ticks = itertools.count()
    monkeypatch.setattr(clock, "now", lambda: float(next(ticks)))
    found = fit(HADAMARD, stages=loose_then_tight(0.5, 0.5), max_steps=10**6, max_seconds=40)
    first, second = (
        [row["seconds"] for row in found.history if row["logdet_bound"] == name]
        for name in ("amgm", "hadamard")
    )
    assert max(first[:-1], default=0.0) < 20.0 < second[0]
    assert found.stop is Ending.TIME_LIMIT


def test_a_stage_that_has_converged_makes_room_for_the_next():
    found = fit(HADAMARD, stages=loose_then_tight(0.9, 0.1), max_steps=400, steps_per_round=50)
    steps = [row["logdet_bound"] for row in found.history].count("amgm")
    assert 5 < steps < 200


def test_stages_have_positive_shares_that_reach_the_whole_budget():
    for stages in ((), (Stage(NYSTROM, share=0.5),)):
        with pytest.raises(ValueError, match="stages need shares"):
            fit(stages=stages)
    for share in (-0.5, 0.0, 1.5):
        with pytest.raises(ValueError, match="share must be"):
            Stage(NYSTROM, share=share)


# ---- rounds ----


def rounds(history):
    return [list(rows) for _, rows in itertools.groupby(history, key=lambda row: row["round"])]


def test_a_round_ends_where_its_bound_has_all_but_stopped_rising():
    """Every full window of a round but its last gained at least its share, and a round that another
    follows ended before its limit."""
    found = rounds(fit(max_steps=200, steps_per_round=60).history)
    assert len(found) > 1
    for number, rows in enumerate(found):
        bound = [row["bound"] for row in rows]
        windows = range(endings.STALL_STEPS, len(bound))
        # a round's own start is not in the history: its first step is a lower limit of the gain
        gains = [bound[i] - bound[i - endings.STALL_STEPS] for i in windows]
        assert all(
            gain >= STALL * (bound[i] - bound[0]) for i, gain in zip(windows, gains[:-1], strict=False)
        )
        if number < len(found) - 1:
            assert len(rows) < 60


def test_a_selection_of_inducing_points_is_evaluated_once():
    """Its evaluation is the start of the next round: no place is evaluated twice."""
    places = []

    def spy(evaluate, gp, Z, v):
        places.append(b"".join(bits((gp, Z))))
        return evaluate()

    found = fit(Watched(hook=spy))
    assert len(rounds(found.history)) == 3
    assert len(places) == len(set(places)) == found.evaluations


# ---- a part of the rows first ----


def test_the_first_steps_are_on_a_part_of_the_rows_and_come_on_top():
    found = fit(subset=15)
    rows = [row["rows"] for row in found.history]
    part = rows.count(15)
    assert 0 < part <= 20
    assert rows == [15] * part + [40] * (len(rows) - part)
    assert len(rows) - part == 12
    assert [row["step"] for row in found.history] == list(range(1, len(rows) + 1))
    assert found.v.shape == (40,)
    for row in found.history[part:]:
        assert row["bound"] <= float(bounds.exact(model(row), X, Y).value)


def test_the_part_is_where_training_on_all_rows_starts():
    found = fit(subset=15)
    part = [row for row in found.history if row["rows"] == 15]
    chosen = random_rows(40, 15, 0)
    settings = {"num_inducing": 8, "max_steps": len(part), "steps_per_round": 5, "schedule": "direct"}
    first = cglb.train(start(), X[chosen], Y[chosen], NYSTROM, **settings)
    assert without_time(part) == without_time([{**row, "extra": True} for row in first.history])
    second = fit(gp=first.gp, subset=None, seed=found.history[len(part)]["round"])
    assert second.bound == pytest.approx(found.bound, rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"subset": None},
        {"subset": 20},
        {"subset": 15, "method": SGPR()},
        {"subset": 15, "optimize_inducing": True},
        {"subset": 15, "Z": X[:16]},
    ],
    ids=["none", "half of all", "no CG", "together", "more inducing points"],
)
def test_there_is_no_part_where_it_does_not_pay(settings):
    assert {row["rows"] for row in fit(max_steps=2, **settings).history} == {40}


def test_a_callback_sees_the_model_of_the_part_and_can_stop_there():
    seen = []

    def look(row, current):
        seen.append(current())
        return row["step"] == 2

    found = fit(subset=15, callback=look)
    assert [one.v for one in seen] == [None, None]
    assert (found.stop, found.v, len(found.history)) == ("callback", None, 2)
    assert found.Z.shape == (8, 2)


def test_time_on_the_part_counts():
    found = fit(subset=15, max_seconds=1e-9)
    assert found.stop == "time limit"
    assert found.history[-1]["rows"] == 40
    assert len(found.history) == 2


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
