"""Training in stages and rounds, and on a part of the rows first."""

import itertools
from dataclasses import replace

import problems
import pytest
from training import NYSTROM, Watched, X, Y, bits, fit, model, start, without_time

import cglb
from cglb import CGLB, SGPR, Exact, Stage, bounds
from cglb.methods.stages import STALL
from cglb.optimisers.adam import Adam
from cglb.optimisers.base import Ending
from cglb.training import clock, endings
from cglb.training.problem import random_rows

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
