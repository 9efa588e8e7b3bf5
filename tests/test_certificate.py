"""Certificates: every level contains the evidence, and comparisons claim only what is proven."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from hypothesis import given
from problems import problem, slack_for
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

import cglb
from cglb import bounds, dense, logdet, moments, nystrom
from cglb.auto import Auto, AutoBound
from cglb.certificate import Certificate

X, Y, Z = problems.data(n=150, d=2, m=10)
GP = cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01)


def arrays(gp, *data):
    """As JAX arrays, inside a float64 scope."""
    return jax.tree.map(jnp.asarray, gp), *(jnp.asarray(array) for array in data)


# ---- the moment bound ----


def test_the_moments_are_those_of_the_dense_matrix():
    with cglb.float64():
        gp, x, z = arrays(GP, X, Z)
        factors = nystrom.factor(gp, x, z)
        t, f = moments.residual_moments(gp, x, factors)
        Q_hat = np.asarray(factors.matmul(jnp.eye(150)))
        K_hat = np.asarray(cglb.kernel_operator(GP, X).dense())
        T = np.linalg.solve(Q_hat, K_hat - Q_hat)
        np.testing.assert_allclose([t, f], [np.trace(T), np.trace(T @ T)], rtol=1e-9)


@given(problem())
def test_the_moment_bound_is_below_the_exact_value_and_above_nystroms(case):
    gp, x, y, z, _ = case
    exact = bounds.exact(gp, x, y)
    with cglb.float64():
        gp, x, z = arrays(gp, x, z)
        factors = nystrom.factor(gp, x, z)
        found = float(moments.lower(gp, x, factors))
        room = 2.0 * slack_for(exact.logdet, exact.quadratic)
        assert float(factors.logdet) - room <= found <= -2.0 * float(exact.logdet) + room


# ---- the automatic choice of a log-det bound ----


@given(problem())
def test_auto_is_the_smallest_of_its_candidates_and_never_crosses_the_exact_value(case):
    gp, x, y, z, _ = case
    exact = bounds.exact(gp, x, y)
    room = slack_for(exact.logdet, exact.quadratic)
    settings = Auto(block=7, neighbours=5)
    found = bounds.sgpr(gp, x, y, z, logdet=settings).logdet
    others = [bounds.sgpr(gp, x, y, z, logdet=name).logdet for name in ("amgm", "hadamard")]
    assert max(others) - room <= found <= exact.logdet + room


@pytest.mark.parametrize(("noise", "kind"), [(1e-3, "chain"), (50.0, "amgm")])
def test_auto_settles_on_the_chain_only_where_it_gains(noise, kind):
    with cglb.float64():
        gp, x, z = arrays(cglb.GP(GP.kernel, noise), X, Z)
        prepared = Auto(block=10, neighbours=10).prepare(gp.kernel, x)
        assert isinstance(prepared, AutoBound)
        chosen = prepared.settle(bounds.spectrum(gp, x, nystrom.factor(gp, x, z)))
    assert chosen.name.startswith(kind)


def test_training_with_auto_records_what_it_chose():
    fit = cglb.train(
        cglb.GP(cglb.Matern32([1.0, 1.0])), X, Y, cglb.Objective(logdet=Auto(10, 10)),
        num_inducing=10, max_steps=12, steps_per_round=4,
    )  # fmt: skip
    names = [row["logdet_bound"] for row in fit.history]
    assert names[0] == "amgm"
    assert "auto" not in names
    assert fit.bound <= float(bounds.exact(fit.gp, X, Y).value)


# ---- the interval ----


@given(problem())
def test_every_level_contains_the_evidence(case):
    gp, x, y, z, _ = case
    exact = bounds.exact(gp, x, y)
    room = slack_for(exact.value, exact.logdet, exact.quadratic)
    with cglb.float64():
        certificate = Certificate(*arrays(gp, x, y, z))
        widths = []
        for _ in range(3):
            certificate.refine()
            assert certificate.lower - room <= float(exact.value) <= certificate.upper + room
            widths.append(certificate.width)
    assert widths == sorted(widths, reverse=True)


def test_refinement_reaches_the_tolerance_and_says_so():
    exact = float(bounds.exact(GP, X, Y).value)
    loose = cglb.certify(GP, X, Y, Z)
    found = cglb.certify(GP, X, Y, Z, tolerance=0.5)
    assert loose.width > 0.5 >= found.width
    assert found.lower <= exact <= found.upper
    assert "asked for" in found.message


def test_a_budget_ends_refinement_and_says_so():
    small = cglb.certify(GP, X, Y, Z, tolerance=1e-9, memory_gb=1e-4)
    assert "memory_gb" in small.message
    short = cglb.certify(GP, X, Y, Z, tolerance=1e-9, max_seconds=1e-3)
    assert "longer" in short.message
    for found in (small, short):
        assert found.lower <= float(bounds.exact(GP, X, Y).value) <= found.upper


def test_the_exact_certificate_agrees_with_scikit_learn():
    kernel = ConstantKernel(1.0) * Matern([0.8, 1.2], nu=1.5) + WhiteKernel(0.01)
    reference = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, Y)
    found = cglb.certify(GP, X, Y, exact=True)
    expected = reference.log_marginal_likelihood_value_
    assert found.lower <= expected <= found.upper
    assert found.width < 1e-5


def test_in_place_cholesky_agrees_with_the_differentiable_one():
    found = dense.condition(GP, X, Y)
    assert found.lml == pytest.approx(float(bounds.exact(GP, X, Y).value), rel=1e-10)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan")])
def test_a_tolerance_must_be_positive(tolerance):
    with pytest.raises(ValueError, match=r"tolerance must be positive"):
        cglb.certify(GP, X, Y, Z, tolerance=tolerance)


# ---- comparison ----


def test_rankings_are_claimed_only_where_the_exact_values_agree():
    models = {
        "good": GP,
        "rough": cglb.GP(cglb.Matern12([0.8, 1.2]), 0.01),
        "twin": cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01 * (1 + 1e-12)),
    }
    found = cglb.compare(models, X, Y, max_seconds=1e-3)
    finer = cglb.compare(models, X, Y)
    exact = {name: float(bounds.exact(gp, X, Y).value) for name, gp in models.items()}
    for comparison in (found, finer):
        assert all(exact[better] > exact[worse] for better, worse in comparison.proven)
        for model in comparison.ranking:
            assert model.evidence.lower - 1e-6 <= exact[model.name] <= model.evidence.upper + 1e-6
    # the twins differ by less than rounding: no claim between them, but one against the third
    assert ("good", "twin") not in finer.proven
    assert ("twin", "good") not in finer.proven
    assert len(finer.proven) == 2
    assert finer.best is None
    assert "Not all rankings are proven" in finer.message


def test_fitted_models_are_compared_in_the_users_units():
    fits = {
        name: cglb.GPRegressor("cglb", name, num_inducing=10, max_steps=5).fit(X, 50.0 + 9.0 * Y)
        for name in ("matern32", "matern12")
    }
    found = cglb.compare(list(fits.values()), X, 50.0 + 9.0 * Y)
    exact = {name: fit.evidence(exact=True).lower for name, fit in fits.items()}
    assert {model.name for model in found.ranking} == set(exact)
    for model in found.ranking:
        assert model.evidence.lower - 1e-4 <= exact[model.name] <= model.evidence.upper + 1e-4
    assert found.best == max(exact, key=exact.get)
    assert "proven better" in str(found)


@pytest.mark.parametrize(
    ("models", "words"),
    [([GP], "at least two models, found 1"), ({"a": GP, "b": 3}, r"models\['b'\] must be a fitted")],
)
def test_what_cannot_be_compared_is_refused(models, words):
    with pytest.raises(ValueError, match=words):
        cglb.compare(models, X, Y)


def test_the_lower_bounds_of_the_log_determinant_are_ordered():
    with cglb.float64():
        gp, x, z = arrays(GP, X, Z)
        factors = nystrom.factor(gp, x, z)
        spectrum = bounds.spectrum(gp, x, factors)
        spectral = float(logdet.LOWER["spectral"](spectrum))
        assert float(factors.logdet) < spectral < float(moments.lower(gp, x, factors))
