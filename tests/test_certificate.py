"""Certificates: every level contains the evidence, and comparisons claim only what is proven."""

import itertools

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
from cglb import bounds
from cglb.bounds.certificate import CG_NATS, Certificate
from cglb.bounds.logdet import Auto, Moments, Nystrom, Spectral
from cglb.bounds.logdet.moments import residual_moments
from cglb.linalg.system import System

X, Y, Z = problems.data(n=200, m=10)
GP = cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01)


def arrays(gp, *data):
    """As JAX arrays, inside a float64 scope."""
    return jax.tree.map(jnp.asarray, gp), *(jnp.asarray(array) for array in data)


# ---- the moment bound ----


def test_the_moments_are_those_of_the_dense_matrix():
    with cglb.float64():
        gp, x, z = arrays(GP, X, Z)
        t, f = residual_moments(System(gp, x, z).view)
        Q_hat, K_hat = problems.dense_Q_hat(GP, X, Z), problems.dense(GP, X)
        T = np.linalg.solve(Q_hat, K_hat - Q_hat)
        np.testing.assert_allclose([t, f], [np.trace(T), np.trace(T @ T)], rtol=1e-9)


@given(problem())
def test_the_moment_bound_is_below_the_exact_value_and_above_nystroms(case):
    gp, x, y, z, _ = case
    exact = bounds.exact(gp, x, y)
    with cglb.float64():
        view = System(*arrays(gp, x, z)).view
        found = float(Moments()(view))
        room = 2.0 * slack_for(exact.logdet, exact.quadratic)
        assert float(Nystrom()(view)) - room <= found <= -2.0 * float(exact.logdet) + room


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
        system = System(gp, x, z)
        chosen = Auto(block=10, neighbours=10).prepare(system).settle(system)
    assert chosen.name.startswith(kind)


def test_training_with_auto_records_what_it_chose():
    fit = cglb.train(
        cglb.GP(cglb.Matern32([1.0, 1.0])), X, Y, cglb.CGLB(logdet=Auto(10, 10)),
        num_inducing=10, max_steps=8, steps_per_round=3, schedule="direct",
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
        gp, x, y, z = arrays(gp, x, y, z)
        certificate = Certificate(System(gp, x, z), y)
        for _ in range(2):
            certificate.refine()
            assert certificate.lower - room <= float(exact.value) <= certificate.upper + room


def test_every_level_gains_until_all_rows_are_inducing_points():
    """Not by construction: the best bounds are kept, but a level that gained nothing would show."""
    x, y, z = problems.data()
    exact = float(bounds.exact(GP, x, y).value)
    widths = []
    with cglb.float64():
        gp, x, y, z = arrays(GP, x, y, z)
        certificate = Certificate(System(gp, x, z), y)
        while not certificate.settled:
            certificate.refine()
            assert certificate.lower - 1e-6 <= exact <= certificate.upper + 1e-6
            widths.append(certificate.width)
    assert all(wide > 1.5 * narrow for wide, narrow in itertools.pairwise(widths))
    assert widths[-1] <= 2.0 * CG_NATS


def test_refinement_reaches_the_tolerance_and_says_so():
    exact = float(bounds.exact(GP, X, Y).value)
    loose = cglb.certify(GP, X, Y, Z)
    found = cglb.certify(GP, X, Y, Z, tolerance=0.5)
    assert loose.width > 0.5 >= found.width
    assert found.lower <= exact <= found.upper
    assert "requested" in found.message


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
    found = cglb.posteriors.exact(GP, X, Y)
    assert float(found.lml) == pytest.approx(float(bounds.exact(GP, X, Y).value), rel=1e-10)


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


def test_nothing_is_claimed_between_models_that_differ_by_rounding():
    """Also where the bounds meet: the chain of 64 rows and 64 neighbours is exact for 40 rows."""
    x, y, _ = problems.data()
    found = cglb.compare({"one": GP, "twin": cglb.GP(GP.kernel, 0.01 * (1 + 1e-12))}, x, y)
    assert not found.proven


def test_fitted_models_are_compared_in_the_users_units():
    x, y, _ = problems.data()
    y = 50.0 + 9.0 * y
    fits = {
        name: cglb.GPRegressor("cglb", name, num_inducing=40, max_steps=5, schedule="direct").fit(x, y)
        for name in ("matern32", "matern12")
    }
    found = cglb.compare(list(fits.values()), x, y)
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
        view = System(*arrays(GP, X, Z)).view
        values = [float(bound(view)) for bound in (Nystrom(), Spectral(), Moments())]
        assert values[0] < values[1] < values[2]
