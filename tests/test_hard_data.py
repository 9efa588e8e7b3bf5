"""Data that hurts: a useful answer or a plain error, never a wrong number."""

import functools

import numpy as np
import pandas as pd
import polars as pl
import problems
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from cglb import GPRegressor

X, Y, _ = problems.data(n=40, d=2, m=8)
NEW = np.random.default_rng(3).normal(size=(7, 2))
METHODS = ("cglb", "sgpr", "exact")


def make(method="cglb", **settings):
    # the default schedule where it is the default method; few steps from one start are enough elsewhere
    schedule = "progressive" if method == "exact" else "direct"
    return GPRegressor(method, **{"num_inducing": 8, "max_steps": 3, "schedule": schedule, **settings})


@functools.cache
def fitted(method="cglb"):
    return make(method).fit(X, Y)


def assert_sound(model, X, y, rows):
    """Finite predictions with positive spread, and an evidence interval that is true."""
    mean, std = model.predict(rows, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0.0).all()
    assert all(np.isfinite(row["bound"]) for row in model.history_)
    inside = (np.asarray(X) - model.X_shift_) / model.X_scale_
    targets = (np.asarray(y) - model.y_shift_) / model.y_scale_
    covariance = problems.dense(model.gp_, inside)
    prior = multivariate_normal(np.full(len(targets), float(model.gp_.mean)), covariance)
    exact = prior.logpdf(targets) - len(targets) * np.log(model.y_scale_)
    found = model.evidence()
    room = problems.slack_for(exact, found.lower, found.upper)
    assert found.lower - room <= exact <= found.upper + room


# ---- shapes ----


@pytest.mark.parametrize("method", METHODS)
def test_one_row(method):
    model = make(method).fit([[3.0, 4.0]], [5.0])
    assert model.predict([[3.0, 4.0]])[0] == pytest.approx(5.0)
    assert_sound(model, [[3.0, 4.0]], [5.0], NEW)


def test_one_column():
    model = make().fit(X[:, :1], Y)
    assert list(model.relevance_.items()) == [("x0", 1.0)]
    assert_sound(model, X[:, :1], Y, NEW[:, :1])


def test_more_inducing_points_than_rows_are_as_many_as_rows():
    many, all_rows = make(num_inducing=1000).fit(X, Y), make(num_inducing=40).fit(X, Y)
    np.testing.assert_array_equal(many.predict(NEW), all_rows.predict(NEW))
    assert_sound(many, X, Y, NEW)


# ---- columns and rows without information ----


def test_a_constant_column_changes_nothing_and_matters_nothing():
    alone = make().fit(X[:, :1], Y)
    beside = np.column_stack([X[:, 0], np.full(40, 1e9 / 3.0)])
    model = make().fit(beside, Y)
    rows = np.column_stack([NEW[:, 0], beside[:7, 1]])
    np.testing.assert_allclose(model.predict(rows), alone.predict(NEW[:, :1]), rtol=1e-6, atol=1e-6)
    assert model.relevance_ == {"x0": 1.0, "x1": 0.0}
    assert_sound(model, beside, Y, rows)


def test_only_constant_columns_leave_the_mean():
    model = make().fit(np.ones((40, 2)), Y)
    assert model.predict(np.ones((1, 2)))[0] == pytest.approx(Y.mean(), abs=0.1 * Y.std())
    assert set(model.relevance_.values()) == {0.0}
    assert_sound(model, np.ones((40, 2)), Y, np.ones((2, 2)))


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_repeat_with_other_targets(method):
    twice = np.concatenate([X[:20], X[:20]])
    model = make(method, num_inducing=40).fit(twice, Y)
    assert_sound(model, twice, Y, NEW)


@pytest.mark.parametrize("value", [0.0, 5.0, -1e12 / 3.0, 1e-12])
def test_constant_targets_are_predicted_as_they_are(value):
    model = make().fit(X, np.full(40, value))
    mean, std = model.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, value, rtol=1e-9)
    assert (std > 0.0).all()
    assert (std <= (abs(value) or 1.0)).all()


def test_the_unit_of_a_constant_column_does_not_matter():
    beside, rows = (np.column_stack([part[:, 0], np.full(len(part), 3.0)]) for part in (X, NEW))
    rows[:, 1] = 4.0  # not what training saw
    units = np.array([1.0, 2.0**-30])
    one, other = make().fit(beside, Y), make().fit(beside * units, Y)
    np.testing.assert_array_equal(one.predict(rows), other.predict(rows * units))


def test_small_differences_between_large_numbers_are_not_lost():
    microseconds = 1_700_000_000_000_000 + 50 * np.arange(40)
    wave = np.sin(np.arange(40) / 4.0)
    model = make("exact", max_steps=20).fit(microseconds[:, None], wave)
    assert model.score(microseconds[:, None], wave) > 0.99


# ---- units ----


@pytest.mark.parametrize("method", ["cglb", "exact"])
@pytest.mark.parametrize(("power_X", "power_y"), [(40, -40), (-40, 40), (1000, -1000)])
def test_units_that_are_powers_of_two_change_no_bit(method, power_X, power_y):
    scaled = make(method).fit(np.ldexp(X, power_X), np.ldexp(Y, power_y))
    mean, std = scaled.predict(np.ldexp(NEW, power_X), return_std=True)
    expected, expected_std = fitted(method).predict(NEW, return_std=True)
    np.testing.assert_array_equal(mean, np.ldexp(expected, power_y))
    np.testing.assert_array_equal(std, np.ldexp(expected_std, power_y))
    assert scaled.relevance_ == fitted(method).relevance_


@pytest.mark.parametrize("unit", [1e12, 1e-12])
def test_huge_and_tiny_units_side_by_side(unit):
    units = np.array([unit, 1.0 / unit])
    model, other = (make().fit(*data) for data in ((X * units, Y * unit), (X, Y)))
    mean, std = model.predict(NEW * units, return_std=True)
    expected, expected_std = other.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, expected * unit, rtol=1e-6)
    np.testing.assert_allclose(std, expected_std * unit, rtol=1e-6)
    shift = 40 * np.log(unit)  # a density of y has units, too
    assert model.evidence().lower == pytest.approx(other.evidence().lower - shift, abs=1e-4)


def test_origins_far_away():
    model = make().fit(X + 1e6, Y - 1e6)
    np.testing.assert_allclose(model.predict(NEW + 1e6) + 1e6, fitted().predict(NEW), atol=1e-5)


# ---- values ----


@pytest.mark.parametrize("method", METHODS)
def test_outliers_in_targets_and_inputs(method):
    wild_X, wild_y = X.copy(), Y.copy()
    wild_X[3, 0], wild_y[5] = 1e3, -1e6
    model = make(method, max_steps=8).fit(wild_X, wild_y)
    assert_sound(model, wild_X, wild_y, np.concatenate([NEW, wild_X[:6]]))


def test_targets_without_noise_end_at_the_floor_and_not_below():
    smooth = np.sin(X[:, 0])
    model = make("exact", max_steps=25, noise_floor=1e-2).fit(X, smooth)
    assert float(model.gp_.noise) >= 1e-2
    assert "noise" in model.fit_report_.at_floor
    assert_sound(model, X, smooth, NEW)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16, bool, np.float32, object])
def test_numbers_of_any_type_are_the_numbers_they_are(dtype):
    counts = np.abs(np.round(3.0 * Y)).astype(dtype)
    inputs = np.abs(np.round(10.0 * X)).astype(dtype if dtype is not bool else np.int64)
    model = make("exact").fit(inputs, counts)
    same = make("exact").fit(inputs.astype(np.float64), counts.astype(np.float64))
    np.testing.assert_array_equal(model.predict(NEW), same.predict(NEW))


kinds = {
    "normal": lambda rng: rng.normal(size=40),
    "counts": lambda rng: rng.integers(0, 12, size=40).astype(float),
    "constant": lambda rng: np.full(40, 1.0 / 3.0),
    "outlier": lambda rng: np.where(np.arange(40) == rng.integers(40), 100.0, rng.normal(size=40)),
    "two groups": lambda rng: rng.choice([-1e9, 1e9], size=40) + rng.normal(size=40),
}


@problems.examples(15)
@given(st.sampled_from(sorted(kinds)), st.sampled_from(sorted(kinds)), st.integers(0, 2**31))
def test_whatever_the_columns_the_answer_is_sound(column, target, seed):
    rng = np.random.default_rng(seed)
    inputs = np.column_stack([kinds[column](rng), rng.normal(size=40)])
    targets = kinds[target](rng)
    model = make(max_steps=2).fit(inputs, targets)
    assert_sound(model, inputs, targets, inputs[:7] + 0.1)


# ---- missing, infinite and foreign values ----


def with_gaps(array, value=np.nan):
    array = np.array(array, dtype=float)
    array[2, 1] = array[5, 1] = value
    return array


GAPS = {
    "NumPy": (with_gaps(X), r"column 1 \(2\)"),
    "objects": (with_gaps(X).astype(object), r"column 1 \(2\)"),
    "pandas": (pd.DataFrame(with_gaps(X), columns=["a", "b"]), r"b \(2\)"),
    "pandas NA": (pd.DataFrame(with_gaps(X), columns=["a", "b"]).convert_dtypes(), r"b \(2\)"),
    "polars": (pl.DataFrame(with_gaps(X), schema=["a", "b"]), r"b \(2\)"),
    "polars null": (pl.DataFrame(with_gaps(X), schema=["a", "b"]).fill_nan(None), r"b \(2\)"),
}


@pytest.mark.parametrize("kind", GAPS)
def test_missing_inputs_are_refused_by_column_and_count(kind):
    table, words = GAPS[kind]
    with pytest.raises(ValueError, match=words):
        make().fit(table, Y)
    with pytest.raises(ValueError, match=words):
        fitted().predict(table)
    with pytest.raises(ValueError, match=words):
        fitted().update(table, Y)


HOLES = np.where(np.isin(np.arange(40), [4, 7, 30]), np.nan, Y)
TARGETS = {
    "NumPy": HOLES,
    "list with None": [None if np.isnan(y) else float(y) for y in HOLES],
    "pandas": pd.Series(HOLES),
    "pandas NA": pd.Series(HOLES).convert_dtypes(),
    "pandas objects": pd.Series([pd.NA if np.isnan(y) else y for y in HOLES], dtype=object),
    "polars null": pl.Series(HOLES).fill_nan(None),
}
TABLES = {
    "NumPy": X,
    "list": X.tolist(),
    "pandas": pd.DataFrame(X, index=np.arange(40)[::-1]),
    "polars": pl.DataFrame(X),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_missing_targets_are_refused_with_their_number(kind):
    with pytest.raises(ValueError, match=r"3 of 40 targets are missing.*drop_missing=True"):
        make().fit(X, TARGETS[kind])


@functools.cache
def without_holes():
    keep = ~np.isnan(HOLES)
    return make("exact").fit(X[keep], Y[keep])


@pytest.mark.parametrize("kind", TARGETS)
def test_missing_targets_can_be_dropped(kind):
    model = make("exact", drop_missing=True).fit(X, TARGETS[kind])
    np.testing.assert_array_equal(model.predict(NEW), without_holes().predict(NEW))


@pytest.mark.parametrize("kind", TABLES)
def test_rows_are_dropped_from_any_table(kind):
    model = make("exact", drop_missing=True).fit(TABLES[kind], HOLES)
    rows = NEW if kind in ("NumPy", "list") else type(TABLES[kind])(NEW)
    np.testing.assert_array_equal(model.predict(rows), without_holes().predict(NEW))


def test_an_update_drops_rows_too():
    one, other = (make("exact", drop_missing=True).fit(X, Y) for _ in range(2))
    keep = ~np.isnan(HOLES)
    one.update(X + 0.1, HOLES)
    other.update(X[keep] + 0.1, HOLES[keep])
    np.testing.assert_array_equal(one.predict(NEW), other.predict(NEW))
    with pytest.raises(ValueError, match="3 of 40"):
        make("exact").fit(X, Y).update(X, HOLES)


def test_dropping_every_row_is_an_error():
    with pytest.raises(ValueError, match="0 sample"):
        make(drop_missing=True).fit(X, np.full(40, np.nan))


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinite_values_are_refused(value):
    with pytest.raises(ValueError, match="X contains infinity"):
        make().fit(with_gaps(X, value), Y)
    with pytest.raises(ValueError, match="y contains infinity"):
        make().fit(X, np.where(np.arange(40) == 3, value, Y))
    with pytest.raises(ValueError, match="X contains infinity"):
        fitted().predict(with_gaps(X, value))


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (pd.DataFrame({"a": ["red"] * 40, "b": [[1]] * 40}), Y, "'b' holds a list"),
        (X, ["red"] * 40, "could not convert string|Unknown label|dtype"),
        (X * 1j, Y, "Complex data not supported"),
        (X, None, "target y is None"),
        (X, Y[:-1], "inconsistent numbers of samples"),
        (X[:0], Y[:0], "0 sample"),
        (X[:, :0], Y, "0 feature"),
        (X[:, 0], Y, "Expected 2D array"),
        (X, np.column_stack([Y, Y]), "1d array"),
    ],
)
def test_what_is_not_a_table_of_numbers_is_refused(inputs, targets, words):
    with pytest.raises(ValueError, match=words):
        make().fit(inputs, targets)


def test_an_update_without_targets_is_refused():
    with pytest.raises(ValueError, match="target y is None"):
        fitted().update(X, None)
