"""Selections of inducing points: the greedy one step by step, and never the same point twice."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import problems
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cglb
from cglb.linalg import inducing


def pivoted_cholesky(K, m):
    """Row numbers of the largest remaining diagonal entries, by eliminating in the matrix itself."""
    E = K.copy()
    pivots = []
    for _ in range(m):
        pivot = int(np.argmax(np.diag(E)))
        pivots.append(pivot)
        E -= np.outer(E[:, pivot], E[pivot]) / E[pivot, pivot]
        E[pivot, pivot] = -1.0  # never again
    return pivots


def prior(kernel, X):
    return problems.dense(cglb.GP(kernel, 1.0), X) - np.eye(len(X))


def rows_of(kernel, X, m, seed=None):
    """Row numbers of the greedy choice, by the function the package uses."""
    with cglb.float64():
        return inducing.greedy_rows(kernel, jnp.asarray(X), m, seed)


def distinct(Z):
    return len(np.unique(Z, axis=0)) == len(Z)


@pytest.mark.parametrize("kernel", [cglb.Matern32([0.7, 1.6], 1.3), cglb.Matern12(0.5) * cglb.Linear()])
def test_greedy_is_pivoted_cholesky(kernel):
    """m = 70 passes the first stage of the factor, which is 64 wide."""
    X, _, _ = problems.data(n=90, d=2, m=1)
    found = rows_of(kernel, X, 70)
    assert found.tolist() == pivoted_cholesky(prior(kernel, X), 70)


def test_greedy_gives_the_rows_of_its_indices():
    X, _, _ = problems.data(n=30, d=2, m=1)
    kernel = cglb.Matern32([0.7, 1.6])
    np.testing.assert_array_equal(inducing.greedy(kernel, X, 12), X[rows_of(kernel, X, 12)])


def test_fewer_points_are_a_prefix_and_each_lowers_the_trace():
    X, _, _ = problems.data(n=30, d=2, m=1)
    kernel = cglb.Matern32([0.7, 1.6])
    chosen = rows_of(kernel, X, 12)
    np.testing.assert_array_equal(rows_of(kernel, X, 5), chosen[:5])
    K = prior(kernel, X)

    def residual_trace(rows):
        return np.trace(K) - np.sum(K[rows] * np.linalg.solve(K[np.ix_(rows, rows)], K[rows]))

    traces = [residual_trace(chosen[:m]) for m in range(1, 13)]
    assert (np.diff(traces) < 0.0).all()
    others = [np.random.default_rng(seed).permutation(30)[:12] for seed in range(20)]
    assert traces[-1] < min(residual_trace(rows) for rows in others)


@given(
    kernel=st.sampled_from([cglb.RBF, cglb.Matern12]),
    power=st.floats(-2.0, 2.0),
    copies=st.lists(st.integers(0, 9), min_size=20, max_size=20),
    seed=st.integers(0, 2**31 - 1),
    order=st.none() | st.integers(0, 100),
)
def test_no_row_is_taken_twice(kernel, power, copies, seed, order):
    """20 rows that repeat at most 10 different ones, 10 of them asked for."""
    rows = np.random.default_rng(seed).normal(size=(10, 2))
    X = rows[copies]
    Z = inducing.greedy(kernel(10.0**power), X, 10, order)
    assert distinct(Z)
    assert 1 <= len(Z) <= len(set(copies))
    if kernel is cglb.Matern12 and power < 0.0:  # far from degenerate: every different row is taken
        assert len(Z) == len(set(copies))
    assert {tuple(row) for row in Z} <= {tuple(row) for row in X}


def test_greedy_stops_when_the_rest_is_determined():
    X, _, _ = problems.data(n=30, d=2, m=1)
    assert inducing.greedy(cglb.Linear(), X, 12).shape == (2, 2)  # two weights: rank two
    assert inducing.greedy(cglb.Constant(), X, 12).shape == (1, 2)


def test_the_seed_decides_between_equal_variances():
    X, _, _ = problems.data(n=30, d=2, m=1)
    kernel = cglb.Matern32([0.7, 1.6])
    without = rows_of(kernel, X, 12)
    assert without[0] == 0
    first = {int(rows_of(kernel, X, 12, seed)[0]) for seed in range(5)}
    assert len(first) > 1
    once, again = (rows_of(kernel, X, 12, seed=3) for _ in range(2))
    np.testing.assert_array_equal(once, again)


@pytest.mark.parametrize("select", [inducing.uniform, inducing.kmeans])
def test_other_selections_are_seeded_and_distinct(select):
    X, _, _ = problems.data(n=30, d=2, m=1)
    X = np.concatenate([X, X, X])  # every row three times
    Z = select(X, 20, seed=1)
    assert Z.shape == (20, 2)
    assert Z.dtype == np.float64
    assert distinct(Z)
    np.testing.assert_array_equal(Z, select(X, 20, seed=1))
    assert not np.array_equal(Z, select(X, 20, seed=2))
    assert distinct(select(X, 30))  # as many as there are different rows
    with pytest.raises(ValueError, match=r"m must be .* distinct rows in X \(30\), found 31"):
        select(X, 31)


def test_uniform_takes_rows_of_the_data_to_the_last_bit():
    X, _, _ = problems.data(n=30, d=2, m=1)
    assert {tuple(row) for row in inducing.uniform(X, 20)} <= {tuple(row) for row in X}


def test_kmeans_finds_separate_clusters():
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    X = np.repeat(centres, 30, axis=0) + rng.normal(size=(90, 2))
    Z = inducing.kmeans(X, 3)
    nearest = np.linalg.norm(Z[:, None] - centres[None], axis=-1).argmin(axis=0)
    np.testing.assert_allclose(Z[nearest], centres, atol=1.0)


SELECTIONS = {
    "greedy": lambda X, m: inducing.greedy(cglb.RBF(), X, m),
    "uniform": inducing.uniform,
    "kmeans": inducing.kmeans,
}


@pytest.mark.parametrize("select", SELECTIONS.values(), ids=SELECTIONS)
def test_bad_counts_and_data_are_named(select):
    jaxtyping.config.update("jaxtyping_disable", True)  # as for a user: m is not type-checked
    try:
        X, _, _ = problems.data(n=30, d=2, m=1)
        for m in (0, -1, 31, 2.5):
            with pytest.raises(ValueError, match=rf"m must be a whole number .* \(30\), found {m}"):
                select(X, m)
        with pytest.raises(ValueError, match=r"X has 1 entries that are NaN .* column\(s\) 1"):
            select(np.where(np.arange(60).reshape(30, 2) == 3, np.nan, X), 3)
        with pytest.raises(ValueError, match=r"X must have 2 axes .* found shape \(30,\)"):
            select(X[:, 0], 3)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
