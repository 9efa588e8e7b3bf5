"""Claims about the metrics, against SciPy where it has them and as properties where they are."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import norm

from cglb.data import metrics

VALUES = st.floats(-1e3, 1e3)
SPREADS = st.floats(1e-3, 1e3)
LEVELS = st.floats(0.01, 0.99)
ROWS = st.lists(st.tuples(VALUES, VALUES, SPREADS), min_size=1, max_size=20)


def columns(rows):
    """A drawn list of (y, mean, variance) as three arrays."""
    return tuple(np.array(rows).T)


@given(ROWS)
def test_nlpd_is_the_mean_of_the_gaussian_log_density(rows):
    y, mean, variance = columns(rows)
    expected = -norm.logpdf(y, mean, np.sqrt(variance)).mean()
    np.testing.assert_allclose(metrics.nlpd(y, mean, variance), expected, rtol=1e-9, atol=1e-9)


@given(ROWS, st.floats(0.1, 10))
def test_nlpd_is_lowest_at_the_mean_squared_error(rows, factor):
    y, mean, _ = columns(rows)
    error = metrics.rmse(y, mean) ** 2
    assume(error > 1e-6)
    best = metrics.nlpd(y, mean, np.full_like(y, error))
    other = metrics.nlpd(y, mean, np.full_like(y, factor * error))
    assert best <= other + 1e-9


@given(ROWS, VALUES)
def test_nlpd_is_lowest_at_the_target(rows, offset):
    y, _, variance = columns(rows)
    assert metrics.nlpd(y, y, variance) <= metrics.nlpd(y, y + offset, variance)


@given(ROWS, LEVELS, LEVELS)
def test_coverage_and_intervals_grow_with_the_level(rows, level, other):
    y, mean, variance = columns(rows)
    low, high = sorted((level, other))
    assert metrics.coverage(y, mean, variance, low) <= metrics.coverage(y, mean, variance, high)
    inner, outer = metrics.interval(mean, variance, low), metrics.interval(mean, variance, high)
    assert np.all(outer[0] <= inner[0])
    assert np.all(inner[1] <= outer[1])


@given(ROWS, LEVELS)
def test_an_interval_holds_its_level_of_probability(rows, level):
    _, mean, variance = columns(rows)
    lower, upper = metrics.interval(mean, variance, level)
    spread = np.sqrt(variance)
    held = norm.cdf((upper - mean) / spread) - norm.cdf((lower - mean) / spread)
    np.testing.assert_allclose(held, level, atol=1e-6)


def test_coverage_of_gaussian_targets_is_the_level():
    rng = np.random.default_rng(0)
    mean, spread = rng.normal(size=20_000), rng.uniform(0.5, 2, size=20_000)
    y = mean + spread * rng.standard_normal(20_000)
    for level in (0.5, 0.8, 0.95):
        assert metrics.coverage(y, mean, spread**2, level) == pytest.approx(level, abs=0.01)


def test_a_sure_and_right_prediction_is_covered():
    assert metrics.coverage([1.0, 2.0], [1.0, 3.0], [0.0, 0.0]) == 0.5


@given(ROWS)
def test_rmse_is_symmetric_and_zero_only_without_error(rows):
    y, mean, _ = columns(rows)
    assert metrics.rmse(y, mean) == metrics.rmse(mean, y)
    assert metrics.rmse(y, y) == 0
    assert abs(np.mean(y - mean)) <= metrics.rmse(y, mean) + 1e-9


@given(ROWS)
def test_r2_is_one_minus_the_squared_error_over_the_variance(rows):
    y, mean, _ = columns(rows)
    assume(np.std(y) > 1e-3)
    assert metrics.r2(y, y) == 1
    assert metrics.r2(y, np.full_like(y, y.mean())) == pytest.approx(0, abs=1e-6)
    expected = 1 - metrics.rmse(y, mean) ** 2 / np.var(y)
    np.testing.assert_allclose(metrics.r2(y, mean), expected, rtol=1e-9, atol=1e-9)


def test_known_values():
    assert metrics.rmse([0, 0], [3, 4]) == pytest.approx(np.sqrt(12.5))
    assert metrics.nlpd([0], [0], [1]) == pytest.approx(0.5 * np.log(2 * np.pi))
    lower, upper = metrics.interval([0.0], [4.0])
    assert (lower[0], upper[0]) == pytest.approx((-3.92, 3.92), abs=1e-3)


def test_a_column_against_a_vector_is_refused_not_broadcast():
    y = np.zeros(3)
    for call in (metrics.rmse, metrics.r2):
        with pytest.raises(ValueError, match=r"mean does not fit.*y \(3,\), mean \(3, 1\).*ravel"):
            call(y, y[:, None])
    with pytest.raises(ValueError, match="variance does not fit"):
        metrics.nlpd(y, y, np.ones(2))
    with pytest.raises(ValueError, match="variance does not fit"):
        metrics.coverage(y, y, 1.0)
    with pytest.raises(ValueError, match="y does not fit"):
        metrics.rmse([], [])


def test_numbers_that_are_not_finite_are_named():
    with pytest.raises(ValueError, match=r"mean\[1\] is nan"):
        metrics.rmse([1, 2], [1, np.nan])
    with pytest.raises(ValueError, match=r"y\[0\] is inf"):
        metrics.coverage([np.inf], [0], [1])


def test_impossible_variances_levels_and_targets_are_named():
    with pytest.raises(ValueError, match=r"variance\[1\] is 0.0, but must be above 0"):
        metrics.nlpd([1, 2], [1, 2], [1, 0])
    with pytest.raises(ValueError, match=r"variance\[0\] is -1.0, but must be at least 0"):
        metrics.interval([1], [-1])
    for level in (0, 1, 95, np.nan):
        with pytest.raises(ValueError, match="level="):
            metrics.interval([1], [1], level)
    with pytest.raises(ValueError, match="no variance to explain"):
        metrics.r2([2, 2], [1, 2])
