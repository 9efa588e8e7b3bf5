"""Training: one deterministic function, of which only better points are accepted."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from hypothesis import given, settings
from training import (
    NYSTROM,
    WAYS,
    Watched,
    X,
    Y,
    Z,
    bits,
    evaluation,
    fit,
    fitted,
    model,
    point,
    start,
    without_time,
)

import cglb
from cglb import CGLB, SGPR, Exact, bounds
from cglb.methods import base
from cglb.optimisers.base import Ending
from cglb.training import evaluations
from cglb.training.free import Parameters

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
