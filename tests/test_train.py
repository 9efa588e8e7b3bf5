"""Training: one deterministic function, accepted steps only, and a history that tells the truth."""

import functools
import itertools
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cglb
from cglb import bounds, clock, fitting, inducing, lbfgs, objective, problem, schedule
from cglb.lbfgs import Clock
from cglb.objective import evaluate
from cglb.schedule import default_schedule

X, Y, Z = problems.data(n=40, d=2, m=8)
# Nyström alone preconditions, so that CG has some work left even on 40 rows
NYSTROM = cglb.Objective(precondition="nystrom")
WAYS = {"rounds": {}, "together": {"optimize_inducing": True}}


def start():
    return cglb.GP(cglb.Matern32(np.ones(2)))


def fit(objective=NYSTROM, gp=None, y=Y, **settings):
    defaults = {"num_inducing": 8, "max_steps": 12, "steps_per_round": 5}
    return cglb.train(gp or start(), X, y, objective, **{**defaults, **settings})


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


def evaluation(gp, v, objective=NYSTROM):
    with cglb.float64():
        gp = jax.tree.map(jnp.asarray, gp)
        arrays = map(jnp.asarray, (X, Y, Z, v))
        return evaluate(objective.prepare(start(), jnp.asarray(X)), gp, *arrays)


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
def test_v_moves_on_only_with_an_accepted_step(way, monkeypatch):
    starts: dict[int, list] = {}
    accepted = {0: None}

    def spy(prepared, gp, X, y, Z, v):
        starts.setdefault(max(accepted), []).append(v)
        return evaluate(prepared, gp, X, y, Z, v)

    def remember(row, current):
        accepted[row["step"]] = np.asarray(current().v)

    monkeypatch.setattr(problem, "evaluate", spy)
    fit(**WAYS[way], max_steps=12, steps_per_round=12, callback=remember)
    assert len(starts) == 12  # the last accepted step is followed by no evaluation
    assert max(map(len, starts.values())) > 1  # some line search made several trials
    for step, trials in starts.items():
        for v in trials:
            if accepted[step] is None:
                assert v is None
                continue
            for age in range(lbfgs.RECYCLED):  # the newest solutions, and nothing of this line search
                older = accepted.get(step - age)
                expected = np.zeros(len(Y)) if older is None else older
                np.testing.assert_array_equal(v[:, age], expected)


# ---- numbers that are not finite ----


def broken_value(found):
    return None


def broken_gradient(found):
    return eqx.tree_at(lambda e: e.Z_bar, found, found.Z_bar * jnp.nan)


@pytest.mark.parametrize("breakage", [broken_value, broken_gradient])
def test_a_trial_that_is_not_finite_shortens_the_step(breakage, monkeypatch):
    reached = min(row["parameters"]["noise"] for row in fitted("together").history)
    wall = 2.0 * reached  # an unhindered fit goes beyond it
    hits = []

    def cliff(prepared, gp, X, y, Z, v):
        found = evaluate(prepared, gp, X, y, Z, v)
        if float(gp.noise) >= wall:
            return found
        hits.append(float(gp.noise))
        return breakage(found)

    monkeypatch.setattr(problem, "evaluate", cliff)
    found = fit(optimize_inducing=True, max_steps=4)
    assert hits
    assert len(found.history) == 4
    assert np.isfinite(found.bound)
    assert all(row["parameters"]["noise"] >= wall and np.isfinite(row["bound"]) for row in found.history)
    assert found.history[-1]["bound"] > found.history[0]["bound"]
    assert float(found.gp.noise) >= wall
    assert np.isfinite(found.Z).all()


@pytest.mark.parametrize("method", ["cglb", "sgpr"])
def test_overflow_has_no_value(method):
    objective = cglb.Objective(method, precondition="nystrom")
    huge = cglb.GP(cglb.Matern32(np.ones(2), 1e308), 1e-300)
    assert evaluation(huge, np.zeros(40), objective) is None


def test_a_singular_matrix_has_no_exact_value():
    flat = cglb.GP(cglb.Matern32(np.full(2, 1e9)), 1e-300)
    assert evaluation(flat, np.zeros(40), cglb.Objective("exact")) is None


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
    found = fit(cglb.Objective("exact"), max_steps=500)
    assert found.stop == "converged"
    assert found.Z is None
    assert found.v is None
    parameters = cglb.Parameters(found.gp)
    free = np.asarray(parameters.flatten(found.gp))
    for i in range(len(free)):
        for sign in (-1.0, 1.0):
            trial = parameters.unflatten(free + sign * 0.05 * np.eye(len(free))[i])
            assert bounds.exact(trial, X, Y).value <= found.bound + 1e-4


def test_rounds_end_when_they_gain_nothing():
    found = fit(fixed=("kernel", "mean"), max_steps=200)
    assert found.stop == "converged"
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
        fit(cglb.Objective(cg_tolerance=1e-5, precondition="nystrom")),
    )
    assert max(row["slack"] for row in loose) > 1e-2
    assert max(row["slack"] for row in tight.history) <= 1e-5
    assert tight.products > fitted("rounds").products


def test_a_cg_step_limit_is_kept_and_recorded():
    objective = cglb.Objective(cg_tolerance=1e-9, cg_max_steps=2, precondition="nystrom")
    rows = fit(objective, max_steps=3).history
    assert all(row["cg_steps"] <= 2 for row in rows)
    assert all(row["cg_stop"] == "step limit" for row in rows)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("method", "magic"), ("cg_tolerance", 0.0), ("logdet", "magic"), ("precondition", "magic")],
)
def test_an_objective_that_makes_no_sense_is_named(setting, value):
    with pytest.raises(ValueError, match=setting):
        cglb.Objective(**{setting: value})


# ---- stages ----


STAGED = cglb.Objective(logdet="hadamard", precondition="nystrom")


def test_a_schedule_changes_the_bound_at_its_shares():
    found = fit(STAGED, schedule=(("amgm", 0.5), ("hadamard", 0.5)), max_steps=8, steps_per_round=25)
    assert [row["logdet_bound"] for row in found.history] == ["amgm"] * 4 + ["hadamard"] * 4
    for row in found.history:
        exact = problems.log_likelihood(model(row), X, Y)
        assert row["bound"] <= exact + problems.slack_for(exact)


def test_the_chain_is_reached_through_looser_bounds():
    stages = [name for name, _ in default_schedule(cglb.Objective(logdet="chain"))]
    assert stages == ["amgm", "hadamard", "chain"]
    assert default_schedule(NYSTROM) == (("amgm", 1.0),)


def test_a_stage_without_cg_leads_to_one_with_it():
    found = fit(schedule=(("sgpr", 0.5), ("amgm", 0.5)), max_steps=8)
    assert [row["logdet_bound"] for row in found.history] == ["sgpr"] * 4 + ["amgm"] * 4
    assert all(row["cg_steps"] is None or row["cg_steps"] == 0 for row in found.history[:4])
    assert sum(row["cg_steps"] for row in found.history[4:]) > 0


def test_exact_training_can_start_from_a_bound():
    exact = cglb.Objective("exact")
    found = fit(exact, schedule=(("sgpr", 0.5), ("amgm", 0.5)), max_steps=8)
    assert found.Z is None
    assert found.v is None
    for row in found.history:
        likelihood = problems.log_likelihood(model(row), X, Y)
        if row["step"] <= 4:
            assert row["logdet_bound"] == "sgpr"
            assert row["bound"] < likelihood
        else:
            assert row["bound"] == pytest.approx(likelihood)


def test_stages_share_the_time_there_is(monkeypatch):
    """Seconds pass with the calls of the clock, so that this machine's do not matter."""
    ticks = itertools.count()
    monkeypatch.setattr(clock.time, "perf_counter", lambda: float(next(ticks)))
    found = fit(STAGED, schedule=(("amgm", 0.5), ("hadamard", 0.5)), max_steps=10**6, max_seconds=100)
    first, second = (
        [row["seconds"] for row in found.history if row["logdet_bound"] == name]
        for name in ("amgm", "hadamard")
    )
    assert max(first[:-1], default=0.0) < 50.0 <= first[-1] < second[0]


def test_a_stage_that_has_converged_makes_room_for_the_next():
    found = fit(STAGED, schedule=(("amgm", 0.9), ("hadamard", 0.1)), max_steps=400, steps_per_round=50)
    steps = [row["logdet_bound"] for row in found.history].count("amgm")
    assert 5 < steps < 200


@pytest.mark.parametrize("schedule", [(), (("amgm", 0.5),), (("amgm", 1.5), ("trace", -0.5))])
def test_a_schedule_has_positive_shares_that_sum_to_one(schedule):
    with pytest.raises(ValueError, match="schedule"):
        fit(schedule=schedule)


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
        windows = range(lbfgs.STALL_STEPS, len(bound))
        # a round's own start is not in the history: its first step is a lower limit of the gain
        gains = [bound[i] - bound[i - lbfgs.STALL_STEPS] for i in windows]
        assert all(
            gain >= schedule.STALL * (bound[i] - bound[0])
            for i, gain in zip(windows, gains[:-1], strict=False)
        )
        if number < len(found) - 1:
            assert len(rows) < 60


def as_model(free):
    """The vector itself, in the shape of a model."""
    structure = jax.tree.structure(cglb.GP(cglb.Matern32(1.0)))
    return jax.tree.unflatten(structure, list(jnp.asarray(free)))


def quadratic(A, count):
    """A concave bound −½ xᵀAx whose maximum is 0, and its evaluations counted."""

    def evaluate(free, Z, v):
        count.append(1)
        x = np.asarray(free)
        zero = jnp.zeros(())
        terms = bounds.BoundTerms(zero, jnp.asarray(-0.5 * x @ A @ x), zero)
        return objective.Evaluation(terms, as_model(-A @ x), None, None)

    return evaluate


def one_round(A, x, metric, limit, count):
    current = lbfgs.Round(
        evaluate=quadratic(A, count),
        unflatten=as_model,
        free=jnp.asarray(x),
        Z=None,
        v=None,
        optimize_inducing=False,
        replay=None,
        clock=Clock(),
        work=fitting.Work(),
        metric=metric,
    )
    return current, current.run(limit, lambda evaluation, free: None)


def test_a_round_hands_on_the_curvature_it_has_seen():
    """On a quadratic the metric becomes A^(-1/2), and a round that starts with it needs few steps."""
    A = np.diag([1e4, 30.0, 1.0, 0.1])
    with cglb.float64():
        first, _ = one_round(A, np.ones(4), None, 40, [])
        metric = first.next_metric()
        np.testing.assert_allclose(metric @ metric.T @ A, np.eye(4), atol=0.05)
        cold, warm = [], []
        one_round(A, np.full(4, 0.1), None, 100, cold)
        _, result = one_round(A, np.full(4, 0.1), metric, 100, warm)
    assert result.bound > -1e-8
    assert len(warm) < 0.5 * len(cold)


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
    chosen = fitting.random_rows(40, 15, 0)
    settings = {"num_inducing": 8, "max_steps": 20, "steps_per_round": 5}
    first = cglb.train(start(), X[chosen], Y[chosen], NYSTROM, **settings)
    assert without_time(part) == without_time(first.history)
    second = fit(gp=first.gp, subset=None, seed=part[-1]["round"] + 1)
    assert second.bound == pytest.approx(found.bound, rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"subset": None},
        {"subset": 20},
        {"subset": 15, "objective": cglb.Objective("sgpr")},
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
    found = fit(subset=15, max_seconds=0.0)
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
    row = fit(cglb.Objective("exact"), max_steps=1).history[0]
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


def test_time_in_callbacks_does_not_count():
    def slow(row, current):
        time.sleep(0.2)

    before = time.perf_counter()
    found = fit(max_steps=4, callback=slow)
    outside = time.perf_counter() - before - found.seconds
    assert outside >= 0.8
    assert found.history[-1]["seconds"] > 0.0


def test_time_for_choosing_inducing_points_counts(monkeypatch):
    fitted("rounds")  # all is compiled, and a step takes a fraction of a second
    greedy = inducing.greedy

    def slow(*args, **kwargs):
        time.sleep(1.0)
        return greedy(*args, **kwargs)

    monkeypatch.setattr(inducing, "greedy", slow)
    first, second = (row["seconds"] for row in fit(max_steps=2, steps_per_round=1).history)
    assert first >= 1.0
    assert second - first >= 1.0


@given(st.lists(st.tuples(st.sampled_from(["run", "pause", "wait"]), st.floats(0.0, 10.0))))
def test_a_clock_counts_what_runs_and_not_what_is_paused(spans):
    with pytest.MonkeyPatch.context() as patch:
        now = [100.0]
        patch.setattr(time, "perf_counter", lambda: now[0])
        clock = Clock()
        for kind, seconds in spans:
            if kind == "wait":
                now[0] += seconds
                continue
            with clock.running():
                now[0] += seconds if kind == "run" else 0.0
                with clock.paused():
                    now[0] += 7.0
        assert clock.seconds == pytest.approx(sum(s for kind, s in spans if kind == "run"))


def test_a_time_limit_stops_after_the_step_it_is_noticed_in():
    found = fit(max_seconds=0.0)
    assert (found.stop, len(found.history)) == ("time limit", 1)
    assert "time" in found.message


def test_the_progress_bar_shows_steps_and_bound_on_standard_error(capsys):
    found = fit(max_steps=3, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "3/3" in shown.err
    assert f"bound {found.bound:.2f}" in shown.err
    fit(max_steps=3)
    assert capsys.readouterr().err == ""
