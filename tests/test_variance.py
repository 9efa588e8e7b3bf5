"""Variances with a guarantee: one-sided or enclosed, never a guess."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from hypothesis import given
from problems import problem

import cglb
from cglb import posteriors as posterior
from cglb.compute.backend import using
from cglb.compute.cpu.backend import CPU
from cglb.compute.xla import XLA
from cglb.posteriors import nearest, variance
from cglb.posteriors.local import Local


@given(problem())
def test_the_bracket_contains_the_exact_variance(case):
    gp, X, y, Z, _ = case
    rows = np.concatenate([X[:5] + 0.01, X[:5] + 0.3])
    exact = posterior.exact(gp, X, y).variance(rows)
    found = variance.bracket(gp, X, Z, rows, tolerance=0.1)
    room = 1e-9 * float(gp.kernel.variance)
    assert (found.lower <= exact + room).all()
    assert (exact <= found.upper + room).all()
    assert (found.upper - found.lower <= 0.1 * found.lower + room)[found.tight].all()


@given(problem())
def test_the_bracket_holds_at_training_rows(case):
    """There a distance of 0 comes out as up to √eps, which the roughest kernel passes on."""
    gp, X, y, Z, _ = case
    exact = posterior.exact(gp, X, y).variance(X[:5])
    found = variance.bracket(gp, X, Z, X[:5], tolerance=0.1)
    room = 1e-7 * float(gp.kernel.variance)
    assert ((found.lower <= exact + room) & (exact <= found.upper + room)).all()


@given(problem())
def test_local_variance_is_never_below_the_exact_one(case):
    gp, X, y, _, _ = case
    rows = np.concatenate([X[:5] + 0.01, X[:5] + 0.3])
    exact = posterior.exact(gp, X, y).variance(rows)
    room = 1e-9 * float(gp.kernel.variance)
    few, many = (variance.local(gp, X, rows, neighbours=k) for k in (3, 15))
    assert (few >= exact - room).all()
    assert (many >= exact - room).all()
    assert (few >= many - room).all()
    np.testing.assert_allclose(variance.local(gp, X, rows, neighbours=40), exact, atol=100 * room)


@given(problem())
def test_local_variance_with_inducing_rows_counts_no_observation_twice(case):
    gp, X, y, _, _ = case
    rows = np.concatenate([X[:5] + 0.01, X[:5] + 0.3])
    exact = posterior.exact(gp, X, y).variance(rows)
    room = 1e-9 * float(gp.kernel.variance)
    strangers = X[:4] + 0.123  # inducing points that are no observations
    plain = variance.local(gp, X, rows, neighbours=3)
    with_rows = variance.local(gp, X, rows, np.concatenate([X[::3], X[:1], strangers]), neighbours=3)
    assert (with_rows >= exact - 100 * room).all()
    np.testing.assert_allclose(variance.local(gp, X, rows, strangers, neighbours=3), plain)
    for Z in (X[::3], X):  # the other rows as neighbours, and no other rows
        everything = variance.local(gp, X, rows, Z, neighbours=40)
        np.testing.assert_allclose(everything, exact, atol=1000 * room)


def test_batches_do_not_show_and_a_tighter_tolerance_is_tighter():
    X, _, Z = problems.data(n=200, m=10)
    gp = cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01)
    rows = np.random.default_rng(0).normal(size=(70, 2))  # one batch and a bit
    seen = []
    found = variance.bracket(gp, X, Z, rows, tolerance=0.01, on_batch=lambda *at: seen.append(at))
    assert seen == [(64, 70), (70, 70)]
    assert found.tight.all()
    assert (found.upper <= 1.01 * found.lower).all()
    alone = variance.bracket(gp, X, Z, rows[64:], tolerance=0.01)
    assert (np.maximum(alone.lower, found.lower[64:]) <= np.minimum(alone.upper, found.upper[64:])).all()


def nystrom_bracket(gp, X, Z, rows, tolerance, max_steps=500):
    """Without the chain, which solves for so few rows in one step."""
    with cglb.float64():
        gp, X, Z, rows = jax.tree.map(jnp.asarray, (gp, X, Z, rows))
        system = cglb.System(gp, X, Z, cglb.Solver(max_steps=max_steps, precondition="nystrom"))
        return jax.tree.map(np.asarray, variance.bracket_at(system, rows, tolerance))


def test_a_bracket_is_not_made_much_narrower_than_was_asked():
    """Also at rows of tiny variance, where the first bracket reaches down to 0 and says little."""
    X, _, Z = problems.data(n=200, m=10)
    gp = cglb.GP(cglb.Matern32([2.0, 2.0]), 1e-4)
    found, finer = (nystrom_bracket(gp, X, Z, X[:20], tolerance) for tolerance in (0.5, 1e-4))
    assert found.tight.all()
    assert finer.tight.all()
    assert finer.upper.max() < 1e-3  # tiny compared with the prior variance of 1
    assert np.max(found.upper - found.lower) > 10 * np.max(finer.upper - finer.lower)


def test_a_step_limit_widens_the_bracket_and_is_reported():
    X, y, Z = problems.data(n=200, m=10)
    gp = cglb.GP(cglb.Matern32([0.3, 0.3]), 1e-4)
    rows = np.random.default_rng(0).normal(size=(5, 2))
    found = nystrom_bracket(gp, X, Z, rows, tolerance=1e-6, max_steps=1)
    exact = posterior.exact(gp, X, y).variance(rows)
    assert not found.tight.all()
    assert (found.lower <= exact).all()
    assert (exact <= found.upper).all()


@pytest.mark.parametrize(("name", "value"), [("tolerance", 0.0), ("neighbours", 0)])
def test_impossible_settings_are_named(name, value):
    X, _, Z = problems.data()
    gp = cglb.GP(cglb.RBF())
    call = partial(variance.bracket, gp, X, Z) if name == "tolerance" else partial(variance.local, gp, X)
    with pytest.raises(ValueError, match=name):
        call(X, **{name: value})


def neighbours_of(gp, X, row, others, k):
    """The k rows among `others` that are nearest in inputs divided by lengthscales."""
    distance = np.sum(((X[others] - row) / gp.kernel.lengthscale) ** 2, axis=1)
    return others[np.argsort(distance)[:k]]


def dense_variance(gp, X, row):
    """Var(f(row) | y at X), on dense arrays."""
    K_hat = problems.dense(gp, np.concatenate([X, row[None]]))
    k = K_hat[:-1, -1]
    return K_hat[-1, -1] - float(gp.noise) - k @ np.linalg.solve(K_hat[:-1, :-1], k)


@pytest.mark.parametrize("backend", [CPU(width=2), XLA()], ids=["CPU", "XLA"])
def test_a_local_variance_is_that_given_its_neighbours_and_the_shared_rows(backend):
    X, _, _ = problems.data(n=60, m=10)
    gp = cglb.GP(cglb.Matern32([0.8, 1.2], 1.4), 0.01)
    rows = np.random.default_rng(0).normal(size=(11, 2))  # a group and some single ones
    for shared in (np.arange(10), np.arange(0)):
        others = np.setdiff1d(np.arange(60), shared)
        used = [np.concatenate([shared, neighbours_of(gp, X, row, others, 12)]) for row in rows]
        wanted = [dense_variance(gp, X[index], row) for index, row in zip(used, rows, strict=True)]
        with using(backend):
            Z = X[shared] if len(shared) else None
            found = variance.local(gp, X, rows, Z, neighbours=12)
            alone = [variance.local(gp, X, rows[i : i + 1], Z, neighbours=12)[0] for i in (0, 10)]
        np.testing.assert_allclose(found, wanted, rtol=1e-8)
        np.testing.assert_allclose(alone, found[[0, 10]], rtol=1e-9)  # whatever else is asked for


@pytest.mark.parametrize("columns", [3, 30])
def test_nearest_rows_are_nearly_the_nearest_ones(columns):
    rng = np.random.default_rng(0)
    rows, stars = rng.normal(size=(nearest.FEW + 100, columns)), rng.normal(size=(20, columns))
    search = nearest.Nearest(rows)
    assert (search._tree is None) == (columns == 30)
    found = search(stars, 50)
    np.testing.assert_array_equal(found[3:4], search(stars[3:4], 50))
    distance = np.linalg.norm(stars[:, None, :] - rows[None], axis=2)
    farthest = np.take_along_axis(distance, found, axis=1).max(axis=1)
    assert all(len(set(row)) == 50 for row in found)
    room = 1.0 + nearest.NEARLY if columns == 3 else 1.0
    assert (farthest <= room * np.sort(distance, axis=1)[:, 49] + 1e-12).all()


@pytest.mark.one_cpu
def test_local_variances_of_any_number_of_rows_run_the_same_programs():
    X, _, _ = problems.data(n=100)
    gp = cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01)
    rows = np.random.default_rng(0).normal(size=(40, 2))
    with cglb.float64():
        gp, X = jax.tree.map(jnp.asarray, (gp, X))
        local = Local(gp, X, X[:5])
        for count in (1, 8, 9):  # in this thread, where `strict_jax` counts, and in those of the pool
            local(jax.device_put(rows[:count]))
        with problems.counted() as programs:
            for count in (1, 2, 7, 17, 40):
                local(jax.device_put(rows[:count]))
    assert not programs


TWO_THREADS = """
import jax
import jax.numpy as jnp
import numpy as np
import cglb
from cglb.compute.backend import using
from cglb.compute.cpu.backend import CPU
from cglb.posteriors.local import Local

rng = np.random.default_rng(0)
with cglb.float64(), using(CPU(width=2)):
    import jax, jax.numpy as jnp
    gp = jax.tree.map(jnp.asarray, cglb.GP(cglb.RBF([1.0, 1.0]), 0.1))
    X, rows = jnp.asarray(rng.normal(size=(300, 2))), jnp.asarray(rng.normal(size=(400, 2)))
    assert np.isfinite(np.asarray(Local(gp, X, X[:50])(rows))).all()
"""


def test_local_variances_of_many_rows_return_where_there_are_two_threads():
    """Batched factorisations in two threads at once wait for each other for ever."""
    subprocess.run([sys.executable, "-c", TWO_THREADS], timeout=120, check=True)
