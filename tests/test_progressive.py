"""Training from few rows to all: stages, starts, floors, and what it reaches beside scikit-learn."""

import warnings
from dataclasses import replace

import jax
import numpy as np
import problems
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

import cglb
from cglb import CGLB, SGPR, Exact
from cglb.methods.stages import (
    EXACT_ROWS,
    GIVEN,
    GROWTH,
    SEARCH_FLOOR,
    STARTS,
    Stage,
    Start,
    progressive,
)
from cglb.optimisers.lbfgs import LBFGS
from cglb.training.endings import stalled
from cglb.training.options import Options, default_stages


def toy(n, seed, d=4):
    """y = sin 2x₀ + 0.3x₁² + 0.1ε: the other columns do not matter."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] ** 2 + 0.1 * rng.normal(size=n)
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()


def start(d=4):
    return cglb.GP(cglb.Matern32(np.ones(d)))


# ---- the stages ----


@pytest.mark.parametrize("n", [40, 700, 3000, 5000, 12_000, 30_000, 1_000_000])
def test_stages_grow_from_few_rows_to_all_and_are_exact_on_few(n):
    method = CGLB(logdet="chain")
    found = default_stages(method, n, 0, Options())
    rows = [stage.rows or n for stage in found]
    assert rows == sorted(rows)
    assert rows[-1] == n
    assert found[-1].rows is None
    assert found[-1].method == method.in_training
    searches = [stage for stage in found if stage.start is not None]
    assert [stage.start for stage in searches] == [GIVEN, *STARTS]
    assert found[: len(searches)] == tuple(searches)
    for stage in found[:-1]:
        size = stage.rows or n
        assert stage.rows is None or n >= GROWTH * size
        assert isinstance(stage.method, Exact) == (size <= EXACT_ROWS)
        assert stage.extra
        few = stage.rows is not None and size <= EXACT_ROWS
        assert stage.noise_floor == (SEARCH_FLOOR if few else 0.0)


def test_the_progressive_schedule_alone_trains_with_slopes_at_the_solution():
    stages = default_stages(CGLB(), 20_000, 0, Options())
    assert {one.method.slopes for one in stages if one.method.name == "cglb"} == {"solution"}
    direct = default_stages(CGLB(), 20_000, 0, Options(schedule="direct"))
    assert {one.method.slopes for one in direct} == {"bound"}
    with pytest.raises(ValueError, match="slopes must be one of bound, solution, found 'steep'"):
        CGLB(slopes="steep")


def test_a_method_with_stages_of_its_own_keeps_them():
    method = cglb.Iterative()
    assert default_stages(method, 30_000, 0, Options()) == method.stages(30_000, 10_000, False)
    direct = default_stages(SGPR(), 30_000, 0, Options(schedule="direct"))
    assert direct == SGPR().stages(30_000, 10_000, False)


def test_only_the_last_stage_optimises_inducing_points():
    found = progressive(CGLB(), 20_000, (500, 2500, 10_000), Exact, joint=True)
    assert [stage.joint for stage in found] == [False] * (len(found) - 1) + [True]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parts": (500, 100)}, "parts must be growing"),
        ({"parts": (1,)}, "parts must be growing"),
        ({"starts": ()}, "starts must name"),
        ({"schedule": "slow"}, "schedule must be one of progressive, direct, found 'slow'"),
        ({"transform": "square"}, "transform must be one of log, softplus, found 'square'"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(options, words):
    with pytest.raises(ValueError, match=words):
        Options(**options)


# ---- the starts ----


def test_a_start_is_in_the_units_of_the_data():
    X, y = toy(50, 0)
    units = np.array([1e3, 1e-3, 1.0, 7.0])
    small, large = Start(2.0, 0.1)(start(), X, y), Start(2.0, 0.1)(start(), X * units, 5.0 * y + 3.0)
    np.testing.assert_allclose(large.kernel.lengthscale, small.kernel.lengthscale * units, rtol=1e-9)
    np.testing.assert_allclose(small.kernel.lengthscale, 4.0, rtol=1e-9)  # 2√d standard deviations
    assert float(large.kernel.variance) == pytest.approx(25.0)
    assert float(large.noise) == pytest.approx(2.5)
    assert float(large.mean) == pytest.approx(3.0)


def test_a_start_leaves_what_is_no_scale_and_takes_any_kernel():
    X, y = toy(50, 0)
    kernel = (
        cglb.Periodic(period=0.7) + 2.0 * cglb.RBF(np.ones(4)) + cglb.Linear(np.ones(4)).on([0, 1, 2, 3])
    )
    found = Start(1.0)(cglb.GP(kernel), X, y)
    assert jax.tree.structure(found) == jax.tree.structure(cglb.GP(kernel))
    assert [np.shape(a) for a in jax.tree.leaves(found)] == [
        np.shape(a) for a in jax.tree.leaves(cglb.GP(kernel))
    ]
    assert float(found.kernel.left.left.period) == 0.7
    assert GIVEN(cglb.GP(kernel), X, y).kernel is kernel


def test_columns_that_do_not_vary_are_not_counted():
    X, y = toy(50, 0)
    wide = np.column_stack([X, np.ones((50, 5))])
    found = Start(1.0)(start(9), wide, y)
    np.testing.assert_allclose(found.kernel.lengthscale[:4], 2.0, rtol=1e-9)


def test_a_column_that_a_part_does_not_see_vary_starts_at_its_own_scale():
    X, y = toy(60, 0)
    X[:, 3] = 0.1  # whose standard deviation is rounding, not 0
    X[np.random.default_rng(0).permutation(60)[-1], 3] = 5.0
    first = cglb.train(
        start(), X, y, Exact(), parts=(20,), starts=(Start(1.0),), max_steps=1, seed=0
    ).history[0]
    assert first["rows"] == 20
    assert first["parameters"]["kernel.lengthscale[3]"] > 0.1


def test_inherited_curvature_saves_evaluations_and_ends_at_the_same_optimum():
    X, y = toy(90, 0)
    stages = progressive(Exact(), 90, (20, 40), Exact, (Start(1.0),))
    assert [stage.inherits for stage in stages] == [False, False, True]
    # with as many steps before the last stage as they need to know the curvature
    stages = tuple(replace(stage, optimiser=LBFGS()) for stage in stages)
    alone = (*stages[:-1], replace(stages[-1], inherits=False))
    found, other = (cglb.train(start(), X, y, Exact(), stages=one) for one in (stages, alone))
    assert found.evaluations < other.evaluations
    assert found.bound == pytest.approx(other.bound, abs=0.05)


# ---- what is reached ----


def fitted(n=90, parts=(30, 60), **settings):
    X, y = toy(n, 0)
    return cglb.train(start(), X, y, **{"method": Exact(), "parts": parts, **settings})


def test_training_goes_on_from_the_best_end_by_the_bound_on_more_rows():
    found = fitted()
    X, y = toy(90, 0)
    by_stage = {}
    for row in found.history:
        by_stage.setdefault(row["stage"], []).append(row)
    searches = [rows[-1] for stage, rows in by_stage.items() if stage < 1 + len(STARTS)]
    assert {row["rows"] for row in searches} == {30}
    second = next(rows for rows in by_stage.values() if rows[0]["rows"] == 60)
    chosen = np.sort(np.random.default_rng(0).permutation(90)[:60])

    def lml(row):
        p = row["parameters"]
        kernel = cglb.Matern32([p[f"kernel.lengthscale[{i}]"] for i in range(4)], p["kernel.variance"])
        gp = cglb.GP(kernel, p["noise"], p["mean"])
        return float(cglb.bounds.exact(gp, X[chosen], y[chosen]).value)

    best = max(lml(row) for row in searches)
    assert second[0]["bound"] >= best - 1e-6  # its first step starts from there
    assert found.stop == "converged"


def test_the_noise_has_a_higher_floor_on_parts_of_the_rows_alone():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 1))
    found = cglb.train(start(1), X, np.sin(X[:, 0]), Exact(), parts=(30,))  # no noise at all
    on_part = [row["parameters"]["noise"] for row in found.history if row["rows"] == 30]
    assert min(on_part) >= SEARCH_FLOOR
    assert float(found.gp.noise) < 0.1 * SEARCH_FLOOR


def test_several_starts_are_never_worse_than_the_best_of_them():
    X, y = toy(60, 1)
    both = cglb.train(start(), X, y, Exact())
    for one in (GIVEN, *STARTS):
        alone = cglb.train(start(), X, y, Exact(), starts=(one,))
        assert both.bound >= alone.bound - 0.1


@pytest.mark.parametrize("seed", range(3))
def test_no_collapse_and_at_least_scikit_learns_optimum(seed):
    X, y = toy(100, seed)
    found = cglb.train(start(), X, y, Exact())
    kernel = ConstantKernel(1.0, (1e-5, 1e8)) * Matern(np.ones(4), (1e-5, 1e8), nu=1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = GaussianProcessRegressor(kernel + WhiteKernel(1.0, (1e-6, 1e3))).fit(X, y)
    assert found.bound >= theirs.log_marginal_likelihood_value_ - 0.5
    assert float(found.gp.noise) > 1e-3


def test_a_sparse_method_ends_where_the_searches_led_it():
    X, y = toy(96, 2)
    found = cglb.train(start(), X, y, CGLB(logdet="chain"), num_inducing=8, parts=(30,))
    exact = cglb.train(start(), X, y, Exact(), parts=(30,))
    assert found.history[0]["method"] == "exact"
    assert found.history[-1]["method"] == "cglb"
    assert found.bound <= float(cglb.bounds.exact(found.gp, X, y).value) <= exact.bound + 0.1
    assert float(cglb.bounds.exact(found.gp, X, y).value) > exact.bound - 5.0


def test_steps_that_take_more_work_must_gain_more():
    stage = Stage(CGLB(), gain=5.0, window=2)
    bounds = [0.0, 100.0, 106.0, 110.0]
    assert not stalled(stage, True, bounds, 2)  # 10 nats in two steps, where 2 are asked
    assert stalled(stage, True, bounds, 20)  # 20 are asked
    assert not stalled(stage, True, bounds[:3], 20)  # too few steps to judge


def test_training_ends_when_no_step_is_worth_its_cost():
    """One step shows the curvature; then new inducing points are tried once, and that is the end."""
    X, y = toy(96, 3)
    stages = (Stage(CGLB(logdet="amgm"), LBFGS(worth=1e9), gain=1e9),)
    found = cglb.train(start(), X, y, CGLB(), num_inducing=8, stages=stages)
    assert found.stop == "converged"
    assert len(found.history) == 1
    assert found.evaluations <= 6


# ---- compiled programs ----


def test_another_number_of_rows_compiles_next_to_nothing():
    """A fit, predictions and updates with other numbers of rows run the programs of the first."""
    X, y = toy(240, 0)
    first = cglb.GPRegressor().fit(X[:200], y[:200])
    first.predict(X[:5], return_std=True)
    first.update(X[200:201], y[200:201])
    with problems.counted() as programs:
        model = cglb.GPRegressor().fit(X[:201], y[:201])
        model.predict(X[:7], return_std=True)
        model.predict(X[:30], return_std=True)
    assert programs == []
    with problems.counted() as programs:
        cglb.GPRegressor().fit(X, y)
    assert len(programs) <= 2  # copies of X and y


@pytest.mark.parametrize(
    "method",
    # "auto" may need another preconditioner for other rows
    [CGLB(logdet="chain", precondition="nystrom"), CGLB(precondition="nystrom"), SGPR()],
    ids=["chain", "amgm", "sgpr"],
)
def test_rows_of_a_bucket_share_their_programs(method):
    """With inducing points, rows that count for nothing fill up to one of few sizes (here 96)."""
    X, y = toy(96, 0)

    def model():
        return cglb.GPRegressor(method, num_inducing=8, max_steps=2, schedule="direct")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = model().fit(X[:93], y[:93])
        for rows in (1, 3, 20):
            first.predict(X[:rows], return_std=True)
        first.update(X[93:94], y[93:94]).predict(X[:1], return_std=True)
        with problems.counted() as programs:
            second = model().fit(X[:94], y[:94])
            for rows in (5, 1, 30, 64):
                second.predict(np.resize(X, (rows, 4)), return_std=True)
            for row in (94, 95):
                second.update(X[row : row + 1], y[row : row + 1]).predict(X[:2], return_std=True)
    assert programs == []


# ---- where a floor has held the noise up ----


def test_a_stage_begins_with_less_noise_where_a_floor_held_it_up_and_the_data_have_less():
    """Two stages of one step each: without a probe the second would begin at the floor of the first."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(60, 1))
    y = np.sin(3.0 * X[:, 0])
    gp = cglb.GP(cglb.Matern32(np.ones(1)), np.asarray(1e-3))
    few = Stage(Exact(), rows=30, steps=1, extra=True, noise_floor=1e-3)
    all_rows = Stage(CGLB(), steps=1)
    free = cglb.train(gp, X, y, stages=(few, all_rows), num_inducing=20, floor=1e-6)
    held = cglb.train(
        gp, X, y, stages=(few, replace(all_rows, noise_floor=1e-3)), num_inducing=20, floor=1e-6
    )
    assert float(held.gp.noise) >= 1e-3
    assert float(free.gp.noise) < 2e-4
    assert free.bound > held.bound


# ---- columns that a lengthscale has lost ----


def test_a_stage_brings_back_the_columns_that_matter_and_no_others():
    """From a start where only one of three columns is in sight, and no gradient knows the others."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=40)
    gp = cglb.GP(cglb.Matern32(np.array([1.0, 1e9, 1e9])), np.asarray(0.1))

    def end(brings_back):
        stage = Stage(Exact(), steps=12, brings_back=brings_back)
        return cglb.train(gp, X, y, Exact(), stages=(stage,), transform="log")

    lost, found = end(False), end(True)
    assert np.all(lost.gp.kernel.lengthscale[1:] > 1e8)
    assert found.bound > lost.bound + 5.0
    assert found.gp.kernel.lengthscale[1] < 10.0
    assert found.gp.kernel.lengthscale[2] > 100.0
