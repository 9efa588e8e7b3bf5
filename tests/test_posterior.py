"""Predictions: exact limits, agreement with dense formulas, and never a negative variance."""

import numpy as np
import problems
import pytest
from hypothesis import given
from problems import problem
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

import cglb
from cglb import posteriors as posterior
from cglb.compute.cpu import cholesky as blocked


@pytest.fixture
def setting():
    X, y, Z = problems.data()
    gp = cglb.GP(cglb.Matern32([0.9, 1.4], 1.3), 0.05, 0.2)
    X_star = np.random.default_rng(5).normal(size=(7, 2))
    return gp, X, y, Z, X_star


def test_exact_agrees_with_scikit_learn(setting):
    gp, X, y, _, X_star = setting
    kernel = ConstantKernel(1.3) * Matern([0.9, 1.4], nu=1.5)
    peer = GaussianProcessRegressor(kernel, alpha=0.05, optimizer=None).fit(X, y - 0.2)
    mean, cov = peer.predict(X_star, return_cov=True)
    found = posterior.exact(gp, X, y)
    np.testing.assert_allclose(found.mean(X_star), mean + 0.2, atol=1e-9)
    np.testing.assert_allclose(found.covariance(X_star), cov, atol=1e-9)
    np.testing.assert_allclose(found.variance(X_star), np.diag(cov), atol=1e-9)


def test_many_rows_are_factored_by_blocks_to_the_same_posterior(setting, monkeypatch):
    gp, X, y, _, X_star = setting
    few = posterior.exact(gp, X, y)
    for name in ("LEAF", "ALONE", "PART", "BLOCK"):
        monkeypatch.setattr(blocked, name, 16)
    many = posterior.exact(gp, X, y)
    for name in ("mean", "variance", "covariance"):
        wanted = getattr(few, name)(X_star)
        np.testing.assert_allclose(getattr(many, name)(X_star), wanted, rtol=1e-10, atol=1e-12)


def test_cglb_mean_is_exact_when_v_solves_the_system(setting):
    gp, X, y, Z, X_star = setting
    v = np.linalg.solve(problems.dense(gp, X), y - 0.2)
    np.testing.assert_allclose(
        posterior.cglb(gp, X, y, Z, v).mean(X_star),
        posterior.exact(gp, X, y).mean(X_star),
        atol=1e-9,
    )


def test_cglb_mean_is_exact_when_q_is_k_whatever_v(setting):
    gp, X, y, _, X_star = setting
    v = np.random.default_rng(0).normal(size=40)
    found, exact = posterior.cglb(gp, X, y, X, v), posterior.exact(gp, X, y)
    np.testing.assert_allclose(found.mean(X_star), exact.mean(X_star), atol=1e-6)
    np.testing.assert_allclose(found.covariance(X_star), exact.covariance(X_star), atol=1e-6)


def test_sgpr_is_cglb_at_zero(setting):
    gp, X, y, Z, X_star = setting
    sparse, at_zero = posterior.sgpr(gp, X, y, Z), posterior.cglb(gp, X, y, Z, np.zeros(40))
    np.testing.assert_allclose(sparse.mean(X_star), at_zero.mean(X_star), atol=1e-12)
    np.testing.assert_array_equal(sparse.variance(X_star), at_zero.variance(X_star))


def dense_sgpr(gp, X, y, Z, X_star):
    """Mean and covariance of SGPR at X_star on dense arrays."""
    n, noise = len(X), float(gp.noise)
    Q_hat = problems.dense_Q_hat(gp, np.concatenate([X, X_star]), Z)
    cross = Q_hat[n:, :n]
    mean = cross @ np.linalg.solve(Q_hat[:n, :n], y - float(gp.mean)) + float(gp.mean)
    prior = problems.dense(gp, X_star) - noise * np.eye(len(X_star))
    return mean, prior - cross @ np.linalg.solve(Q_hat[:n, :n], cross.T)


def dense_exact_variance(gp, X, X_star):
    """Var f(X_star) given noisy observations at X, on dense arrays."""
    n, noise = len(X), float(gp.noise)
    K_hat = problems.dense(gp, np.concatenate([X, X_star]))
    reduction = np.linalg.solve(K_hat[:n, :n], K_hat[:n, n:])
    return np.diag(K_hat)[n:] - noise - np.sum(K_hat[:n, n:] * reduction, axis=0)


def test_sgpr_agrees_with_dense_formulas(setting):
    gp, X, y, Z, X_star = setting
    mean, cov = dense_sgpr(gp, X, y, Z, X_star)
    found = posterior.sgpr(gp, X, y, Z)
    np.testing.assert_allclose(found.mean(X_star), mean, atol=1e-7)
    np.testing.assert_allclose(found.covariance(X_star), cov, atol=1e-7)
    np.testing.assert_allclose(found.variance(X_star), np.diag(cov), atol=1e-7)


@given(problem())
def test_variances_are_those_of_the_dense_formulas_and_never_negative(case):
    """Cut off at 0, a variance that came out negative would only be found by the comparison."""
    gp, X, y, Z, v = case
    rows = np.concatenate([X, X + 1e-9, Z, 10.0 * X])
    exact = posterior.exact(gp, X, y), dense_exact_variance(gp, X, rows), 1e-8
    # the reference has no jitter, which shows where Kuu is nearly singular
    sparse = posterior.cglb(gp, X, y, Z, v), np.diag(dense_sgpr(gp, X, y, Z, rows)[1]), 1e-4
    for found, variance, relative in (exact, sparse):
        room = relative * float(gp.kernel.variance)
        np.testing.assert_allclose(found.variance(rows), variance, rtol=0.0, atol=room)
        assert (found.variance(rows) >= 0.0).all()
        covariance = found.covariance(rows)
        np.testing.assert_allclose(np.diag(covariance), variance, rtol=0.0, atol=room)
        assert (np.diag(covariance) >= 0.0).all()
        assert np.linalg.eigvalsh(covariance).min() >= -len(rows) * room


def test_batches_do_not_show(setting, monkeypatch):
    gp, X, y, Z, X_star = setting
    found = posterior.cglb(gp, X, y, Z, 0.1 * y)
    mean, variance = found.mean(X_star), found.variance(X_star)
    monkeypatch.setattr(posterior.base, "BATCH_ROWS", 4)
    np.testing.assert_allclose(found.mean(X_star), mean, atol=1e-12)
    np.testing.assert_allclose(found.variance(X_star), variance, atol=1e-12)
