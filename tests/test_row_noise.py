"""Rows with noise of their own, and rows that count for nothing: all methods against dense code."""

import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import cglb
from cglb import GPRegressor, diagnostics
from cglb.bounds import evidence
from cglb.bounds.certificate import Certificate
from cglb.bounds.interval import certify_at
from cglb.bounds.logdet import Side, by_cost
from cglb.linalg.row_noise import RowNoise, Rows, bucket
from cglb.methods import CGLB, SGPR, Exact, Iterative
from cglb.methods.stages import GIVEN
from cglb.training.kernel_choice import choose_kernel

N, D, M = 40, 2, 8
METHODS = (Exact(), CGLB(logdet="chain"), CGLB(), SGPR(), Iterative(cg_tolerance=1e-6, probes=4, rank=M))


def problem(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=N) + 0.5
    noise = RowNoise(rng.uniform(0.2, 4.0, N), rng.uniform(0.0, 0.2, N))
    gp = cglb.GP(cglb.Matern32(np.array([0.8, 1.3]), 1.1), 0.15, 0.2)
    return gp, X, y, noise


NOISES = {
    "weights": RowNoise(problem()[3].weight, None),
    "known": RowNoise(None, problem()[3].known),
    "both": problem()[3],
    "padding": RowNoise(),
}


def dense(gp, X, noise):
    """K, and the noise variance of each row, by NumPy."""
    r = np.sqrt(3.0) * np.sqrt(
        (((X[:, None] - X[None]) / np.asarray(gp.kernel.lengthscale)) ** 2).sum(-1)
    )
    weight = 1.0 if noise.weight is None else noise.weight
    known = 0.0 if noise.known is None else noise.known
    variances = np.broadcast_to(float(gp.noise) / weight + known, len(X))
    return float(gp.kernel.variance) * (1.0 + r) * np.exp(-r), variances


def log_density(gp, X, y, noise):
    K, variances = dense(gp, X, noise)
    return multivariate_normal(np.full(len(y), float(gp.mean)), K + np.diag(variances)).logpdf(y)


def set_up(kind, padded=True):
    gp, X, y, _ = problem()
    with cglb.float64():
        rows = Rows.of(X, y, NOISES[kind], padded)
        model = rows.model(jax.tree.map(jnp.asarray, gp))
        return gp, X, y, rows, CGLB().system(model, rows.X, rows.at(jnp.asarray(X[:M])))


@given(st.integers(1, 10**7))
def test_buckets_hold_their_rows_and_few_more(n):
    size = bucket(n)
    assert size >= n
    assert bucket(size) == size
    assert size <= n * (1.26 if n < 1000 else 1.13 if n < 8000 else 1.04)


def test_a_decade_has_few_buckets():
    for k, most in ((2, 20), (3, 40), (4, 120)):
        assert len({bucket(n) for n in range(10**k, 10 ** (k + 1), 7)}) <= most


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", NOISES)
def test_the_exact_evidence_is_the_density_of_all_rows(kind, padded):
    gp, X, y, rows, system = set_up(kind, padded)
    with cglb.float64():
        found = evidence.exact(system.gp, system.X, rows.y)
    assert float(found.value) == pytest.approx(log_density(gp, X, y, NOISES[kind]), abs=1e-9)


@pytest.mark.parametrize("kind", NOISES)
def test_every_bound_on_the_log_determinant_is_on_its_side(kind):
    gp, X, _, _, system = set_up(kind)
    K, variances = dense(gp, X, NOISES[kind])
    exact = np.linalg.slogdet(K + np.diag(variances))[1]
    with cglb.float64():
        for side, sign in ((Side.ABOVE, 1.0), (Side.BELOW, -1.0)):
            for bound in by_cost(side):
                value = float(bound.prepare(system)(system.view)) + float(system.log_units())
                assert sign * (value - exact) > -1e-9, bound.name


@pytest.mark.parametrize("kind", NOISES)
def test_the_certificate_contains_the_density(kind):
    gp, X, y, rows, system = set_up(kind)
    with cglb.float64():
        found = certify_at(Certificate(system, rows.y), tolerance=1e-6, exact=False, max_seconds=None)
    assert found.lower <= log_density(gp, X, y, NOISES[kind]) <= found.upper
    assert found.width < 1e-5


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.name}-{getattr(m, 'logdet', '')}")
def test_the_gradient_is_that_of_the_value(method, kind):
    """By central differences in each hyperparameter, at fixed v and fixed blocks."""
    gp, X, y, _ = problem()
    padded = not isinstance(method, Iterative)
    with cglb.float64():
        rows = Rows.of(X, y, NOISES[kind], padded)
        gp = jax.tree.map(jnp.asarray, gp)
        leaves, structure = jax.tree.flatten(gp)

        def value(gp, v=None):
            system = method.system(rows.model(gp), rows.X, rows.at(jnp.asarray(X[:M])), prepared)
            if isinstance(method, CGLB) and v is not None:
                K_hat_v = system.operator @ v
                terms = evidence.cglb_at(
                    system, system.gp, system.Z, rows.y, v, K_hat_v, prepared.logdet
                )
                return float(terms.value)
            return method.evaluate(prepared, system, rows.y)

        prepared = None
        first = method.system(rows.model(gp), rows.X, rows.at(jnp.asarray(X[:M])))
        prepared = method.prepare(first)
        found = value(gp)
        slopes = jax.tree.leaves(rows.slopes(gp, found.gp_bar))
        # random probes: only the slope along the mean is not random
        places = [len(leaves) - 1] if isinstance(method, Iterative) else range(len(leaves))
        for place in places:
            for entry in np.ndindex(np.shape(leaves[place])):
                # a value by CG is rough, but quadratic in the mean: any step serves
                step = 0.1 if isinstance(method, Iterative) else 1e-5
                ends = []
                for sign in (1.0, -1.0):
                    moved = list(leaves)
                    moved[place] = leaves[place].at[entry].add(sign * step)
                    there = value(jax.tree.unflatten(structure, moved), found.v)
                    ends.append(there if isinstance(there, float) else there.value)
                slope = (ends[0] - ends[1]) / (2.0 * step)
                tolerance = 1e-2 if isinstance(method, Iterative) else 1e-5
                assert float(slopes[place][entry]) == pytest.approx(slope, rel=tolerance, abs=1e-5)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("method", METHODS[:1] + METHODS[2:], ids=lambda m: m.name)
def test_posteriors_are_those_of_dense_code(method, kind):
    """With all rows as inducing points, every method predicts exactly."""
    gp, X, y, _ = problem()
    K, variances = dense(gp, X, NOISES[kind])
    star = np.random.default_rng(1).normal(size=(5, D))
    both = dense(gp, np.concatenate([star, X]), RowNoise())[0]
    K_hat = K + np.diag(variances)
    mean = float(gp.mean) + both[:5, 5:] @ np.linalg.solve(K_hat, y - float(gp.mean))
    variance = np.diag(both[:5, :5] - both[:5, 5:] @ np.linalg.solve(K_hat, both[5:, :5]))
    with cglb.float64():
        rows = Rows.of(X, y, NOISES[kind], not isinstance(method, Iterative))
        model = rows.model(jax.tree.map(jnp.asarray, gp))
        found = method.condition(method.system(model, rows.X, rows.at(jnp.asarray(X))), rows.y)
    loose = isinstance(method, Iterative)  # its CG stops at a residual of 1 %
    assert np.asarray(found.posterior.mean(star)) == pytest.approx(mean, abs=2e-2 if loose else 1e-4)
    assert np.asarray(found.posterior.variance(star)) == pytest.approx(
        variance, abs=1e-2 if loose else 1e-6
    )


@given(st.lists(st.integers(1, 4), min_size=12, max_size=12), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_a_weight_is_a_number_of_equal_rows(copies, seed):
    """k copies of (x, y) with noise σ² are one row with σ²/k, and k − 1 residuals of 0:
    log p of the copies is that of the row minus (k − 1)/2·log 2πσ² + ½ log k."""
    gp, X, y, _ = problem(seed)
    X, y, copies = X[:12], y[:12], np.array(copies)
    many = np.repeat(X, copies, axis=0), np.repeat(y, copies)
    noise = RowNoise(copies.astype(float), None)
    known = 0.5 * np.sum((copies - 1) * np.log(2.0 * np.pi * float(gp.noise)) + np.log(copies))
    with cglb.float64():
        rows = Rows.of(X, y, noise)
        found = evidence.exact(rows.model(jax.tree.map(jnp.asarray, gp)), rows.X, rows.y)
    repeated = cglb.bounds.exact(gp, *many)
    assert float(found.value) - known == pytest.approx(float(repeated.value), abs=1e-8)


# ---- GPRegressor ----

SETTINGS = {"num_inducing": M, "max_steps": 3, "schedule": "direct", "random_state": 0}


@cache
def fitted(method, kind, points=M):
    _, X, y, _ = problem()
    noise = NOISES[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GPRegressor(method, **SETTINGS | {"num_inducing": points})
        return model.fit(X, y, noise.weight, noise_variance=noise.known)


@pytest.mark.parametrize("method", ["exact", "cglb", "sgpr", "iterative"])
def test_a_regressor_knows_the_noise_of_its_rows(method, tmp_path):
    """Its evidence is the density of the targets in their own units, also after a file and an update.

    With all rows as inducing points the first level of a certificate is narrow enough.
    """
    _, X, y, noise = problem()
    model = fitted(method, "both", points=N)
    gp = model.gp_
    units = (X - model.X_shift_) / model.X_scale_, (y - model.y_shift_) / model.y_scale_
    standard = RowNoise(noise.weight, noise.known / model.y_scale_**2)
    exact = log_density(gp, *units, standard) - N * np.log(model.y_scale_)
    found = model.evidence(tolerance=1e-3)
    assert found.lower - 1e-9 <= exact <= found.upper + 1e-9
    assert found.width < 1e-2
    model.save(tmp_path / "model")
    again = GPRegressor.load(tmp_path / "model")
    assert np.array_equal(again.predict(X), model.predict(X))
    assert again.evidence().lower == pytest.approx(model.evidence().lower, abs=1e-6)
    again.update(X[:3], y[:3], noise_variance=0.5 * np.ones(3))
    more = RowNoise(
        np.append(noise.weight, np.ones(3)), np.append(noise.known, 0.5 * np.ones(3)) / model.y_scale_**2
    )
    rows = [np.concatenate([part, part[:3]]) for part in units]
    exact = log_density(gp, *rows, more) - (N + 3) * np.log(model.y_scale_)
    found = again.evidence(tolerance=1e-3)
    assert found.lower - 1e-9 <= exact <= found.upper + 1e-9


@pytest.mark.parametrize("method", ["exact", "cglb"])
def test_left_out_rows_are_predicted_with_their_own_noise(method):
    """Against a model conditioned on the other rows by dense code."""
    _, X, y, noise = problem()
    model = fitted(method, "both")
    X, y = (X - model.X_shift_) / model.X_scale_, (y - model.y_shift_) / model.y_scale_
    K, variances = dense(model.gp_, X, RowNoise(noise.weight, noise.known / model.y_scale_**2))
    mean, std = model.leave_one_out()
    held = diagnostics.leave_one_out(model)
    for i in (0, 7):
        others = np.arange(N) != i
        solved = np.linalg.solve(K[np.ix_(others, others)] + np.diag(variances[others]), K[others, i])
        prior = float(model.gp_.mean)
        expected = (prior + solved @ (y[others] - prior)) * model.y_scale_ + model.y_shift_
        spread = np.sqrt(K[i, i] + variances[i] - solved @ K[others, i]) * model.y_scale_
        assert mean[i] == pytest.approx(expected, abs=1e-8)
        assert std[i] == pytest.approx(spread, rel=1e-8)
        assert held.mean[i] == pytest.approx(expected, abs=1e-8)
        assert held.std[i] == pytest.approx(spread, rel=1e-8)


@pytest.mark.parametrize("variance", ["local", "cg"])
def test_variances_with_a_guarantee_keep_it(variance):
    _, X, _, noise = problem()
    model = fitted("cglb", "both")
    star = np.random.default_rng(2).normal(size=(6, D))
    units = [(rows - model.X_shift_) / model.X_scale_ for rows in (X, star)]
    K, variances = dense(model.gp_, units[0], RowNoise(noise.weight, noise.known / model.y_scale_**2))
    both = dense(model.gp_, np.concatenate(units), RowNoise())[0]
    exact = np.diag(both[N:, N:] - both[N:, :N] @ np.linalg.solve(K + np.diag(variances), both[:N, N:]))
    _, std = model.predict_f(star, return_std=True, variance=variance)
    found = (std / model.y_scale_) ** 2
    assert np.all(found >= exact - 1e-12)
    assert np.all(found <= 1.05 * exact)


def test_rows_of_weight_0_are_left_out_and_weights_of_1_say_nothing():
    _, X, y, _ = problem()
    weight = np.ones(N)
    plain = fitted("exact", "padding")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.array_equal(
            GPRegressor("exact", **SETTINGS).fit(X, y, weight).predict(X), plain.predict(X)
        )
        weight[:5] = 0.0
        fewer = GPRegressor("exact", **SETTINGS).fit(X[5:], y[5:])
        assert np.array_equal(
            GPRegressor("exact", **SETTINGS).fit(X, y, weight).predict(X), fewer.predict(X)
        )


@pytest.mark.parametrize(
    "given",
    [
        {"sample_weight": np.ones(N - 1)},
        {"sample_weight": -np.ones(N)},
        {"sample_weight": np.zeros(N)},
        {"noise_variance": np.full(N, np.nan)},
        {"noise_variance": -np.ones(N)},
    ],
)
def test_noise_that_makes_no_sense_is_refused(given):
    _, X, y, _ = problem()
    with pytest.raises(ValueError, match=next(iter(given))):
        GPRegressor("exact", **SETTINGS).fit(X, y, **given)


def test_weights_count_in_the_choice_of_a_kernel():
    """The value of the best kernel is the density of the rows with their own noise."""
    _, X, y, noise = problem()
    found = choose_kernel(X, y, families=("matern32",), starts=(GIVEN,), row_noise=noise)
    with cglb.float64():
        rows = Rows.of(X, y, noise)
        exact = evidence.exact(rows.model(jax.tree.map(jnp.asarray, found.gp)), rows.X, rows.y)
    assert found.rounds[0][1][0][1] == pytest.approx(float(exact.value), abs=1e-8)


def test_weights_follow_their_rows_where_some_are_dropped():
    _, X, y, noise = problem()
    gaps = y.copy()
    gaps[[3, 11]] = np.nan
    kept = ~np.isnan(gaps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GPRegressor("exact", drop_missing=True, **SETTINGS).fit(X, gaps, noise.weight)
    assert np.array_equal(model._weight, noise.weight[kept])
