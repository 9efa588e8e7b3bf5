"""Intervals that hold in floating point: against 50 digits, at sane and at extreme settings."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import precise
import problems
import pytest

import cglb
from cglb import bounds
from cglb.bounds.certificate import Certificate
from cglb.bounds.logdet import AMGM, Auto
from cglb.core.precision import to_numpy
from cglb.linalg.cg import Limits
from cglb.linalg.rounding import Rounding
from cglb.linalg.system import System
from cglb.posteriors import variance

N, M = 40, 8  # the shape of the other tests, so that they share what is compiled


@functools.cache
def case(name: str):
    """(gp, X, y, log p(y) in 50 digits)."""
    rng = np.random.default_rng(len(name))
    X = rng.normal(size=(N, 2))
    y = X @ np.array([1.0, -0.5]) + (0.0 if "linear data" in name else 0.1) * rng.normal(size=N)
    kernels = {
        "sane": (cglb.Matern32([0.8, 1.2]), 0.01),
        "noise at its floor": (cglb.RBF([1.5, 1.0]), 1e-6),
        "linear data": (cglb.Matern32([6.0, 6.0], 5181.0), 1e-6),
        "smooth linear data": (cglb.RBF([6.0, 6.0], 5181.0), 1e-6),
        "huge variance": (cglb.Matern32([6.0, 6.0], 1e8), 1e-6),
        "only noise": (cglb.Matern12([1e-3, 1e-3], 1e-6), 10.0),
        "close pairs": (cglb.Matern12([1.0, 1.0]), 1e-3),
        "far linear": (cglb.Linear(1.0), 0.01),
    }
    kernel, noise = kernels[name]
    if name == "close pairs":
        X = np.repeat(1e6 * X[: N // 2], 2, axis=0)
        X[1::2] += rng.normal(size=(N // 2, 2))
    if name == "far linear":
        X = X + 1e6
    gp = cglb.GP(kernel, noise)
    L = precise.factor(gp, X)
    return gp, X, y, L, precise.log_likelihood(gp, X, y, L)


CASES = (
    "sane", "noise at its floor", "linear data", "smooth linear data", "huge variance", "only noise",
    "close pairs", "far linear",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_certificates_contain_the_exact_value_and_are_ordered(name):
    gp, X, y, _, truth = case(name)
    found = [cglb.certify(gp, X, y, X[:M]), cglb.certify(gp, X, y), cglb.certify(gp, X, y, exact=True)]
    for evidence in found:
        assert evidence.lower <= truth <= evidence.upper
    useless = [not np.isfinite(evidence.rounding) for evidence in found]
    for evidence in (one for one, says_nothing in zip(found, useless, strict=True) if says_nothing):
        assert "too ill-conditioned for float64" in evidence.message
    # two columns explain all of a linear kernel: with its own points less can go wrong
    assert useless == {"huge variance": [True] * 3, "far linear": [True, False, True]}.get(
        name, [False] * 3
    )
    if not any(
        useless
    ):  # as small as honesty allows: below a tenth of a nat with a factor, ten by products
        assert found[-1].rounding < 0.1
        assert max(evidence.rounding for evidence in found) < 10.0


@pytest.mark.parametrize("name", CASES)
def test_every_bound_holds_with_its_margin_at_any_v(name):
    gp, X, y, _, truth = case(name)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        v = 10.0 ** rng.uniform(-3, 3) * rng.normal(size=N)
        for logdet in ("amgm", "hadamard", "waterfill", "trace", "chain"):
            assert bounds.cglb(gp, X, y, X[:M], v, logdet=logdet).lower <= truth
        for logdet in ("nystrom", "spectral", "moments"):
            assert bounds.upper(gp, X, y, X[:M], v, logdet=logdet).upper >= truth
    assert bounds.sgpr(gp, X, y, X[:M]).lower <= truth
    if name != "huge variance":  # which has no Cholesky factor
        exact = bounds.exact(gp, X, y)
        assert exact.lower <= truth <= exact.upper


@pytest.mark.parametrize("name", CASES)
def test_variance_brackets_and_local_variances_hold(name):
    gp, X, _, L, _ = case(name)
    X_star = np.concatenate([X[:2], X[:2] + 0.1])
    truth = precise.variances(gp, X, X_star, L)
    found = variance.bracket(gp, X, X[:M], X_star)
    assert (found.lower <= truth).all()
    assert (truth <= found.upper).all()
    assert (truth <= variance.local(gp, X, X_star, X[:M], neighbours=N)).all()
    assert (truth <= variance.local(gp, X, X_star, None, neighbours=N)).all()


@pytest.mark.parametrize("noise", [1e-2, 1e-6, 1e-9])
def test_the_determinant_of_graded_factors_is_as_precise_as_its_margin_says(noise):
    """Also where the largest eigenvalue of I + AAᵀ drowns the smallest ones."""
    X, _, _ = problems.data(n=N, m=M)
    gp = cglb.GP(cglb.Matern32([2.0, 2.0], 1e4), noise)
    with cglb.float64():
        gp, X = jax.tree.map(jnp.asarray, (gp, X))
        system = System(gp, X, jnp.asarray(cglb.inducing.greedy(gp.kernel, X, M, seed=0)))
        rounding, factors = Rounding.of(system), system.nystrom
    A = precise.exactly(np.asarray(factors.At).T)
    B = A @ A.T
    B[np.diag_indices(M)] += 1
    truth = 2 * sum(pivot.ln() for pivot in np.diagonal(precise.cholesky(B)))
    found = 2.0 * np.sum(np.log(np.diagonal(np.asarray(factors.LB))))
    assert abs(float(truth) - found) <= rounding.logdet_B < 1e-6
    assert np.isfinite(rounding.eigenvalues_B) == (noise > 1e-9)


@pytest.mark.parametrize("noise", [1e-3, 1e-6])
def test_a_precise_product_narrows_the_quadratic_term_and_keeps_the_truth(noise):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 6))  # more columns than differences are made for by themselves
    y = np.tanh(X[:, 0]) + 0.1 * rng.normal(size=N)
    gp = cglb.GP(cglb.Matern32(np.full(6, 20.0), 1e3), noise)
    truth = float(np.sum(precise.half_solve(precise.factor(gp, X), precise.exactly(y)) ** 2))
    with cglb.float64():
        gp, X, y = jax.tree.map(jnp.asarray, (gp, X, y))
        system = System(gp, X, X[:M])
        solution, rounding = system.solve(y, None, Limits(1e-16)), Rounding.of(system)
        rough = to_numpy(rounding.quadratic(y, solution))
        fine = to_numpy(rounding.precise_quadratic(system, y, solution))
    for found in (rough, fine):
        assert found.lower <= truth <= found.upper
    assert fine.upper - fine.lower < 0.2 * (rough.upper - rough.lower)


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 1.0])
def test_a_model_is_never_proven_better_than_itself(noise):
    for seed in range(4):
        X, y, _ = problems.data(seed=seed)
        gp = cglb.GP(cglb.Matern32([0.8, 1.2]), noise)
        found = cglb.compare(
            {"one": gp, "same": gp, "twin": cglb.GP(gp.kernel, noise * (1 + 1e-15))}, X, y
        )
        assert not found.proven


class Broken(AMGM):
    """A bound that overflows."""

    key = ""

    @property
    def name(self):
        return "broken"

    def __call__(self, view):
        return jnp.asarray(jnp.nan)


def test_a_bound_that_is_not_finite_is_left_out_and_named(monkeypatch):
    X, y, Z = problems.data()
    gp = cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01)
    usual = Certificate._bounds
    expected = cglb.certify(gp, X, y, Z)
    monkeypatch.setattr(
        Certificate, "_bounds", staticmethod(lambda side, system: [Broken(), *usual(side, system)])
    )
    found = cglb.certify(gp, X, y, Z)
    assert (found.lower, found.upper) == (expected.lower, expected.upper)
    assert "left out: broken" in found.message


def test_auto_ignores_a_candidate_that_is_not_finite():
    X, y, Z = problems.data()
    gp = cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01)
    expected = bounds.sgpr(gp, X, y, Z, logdet="amgm").logdet
    some = replace(Auto(), candidates=(Broken(), AMGM()))
    assert bounds.sgpr(gp, X, y, Z, logdet=some).logdet == expected


def test_a_matrix_without_a_factor_is_an_error_with_a_name():
    X = np.repeat(np.linspace(0.0, 1.0, 12)[:, None], 2, axis=0)
    gp = cglb.GP(cglb.RBF(1.0, 1e12), 1e-8)
    for call in (bounds.exact, cglb.posteriors.exact):
        with pytest.raises(np.linalg.LinAlgError, match="raise the noise"):
            call(gp, X, np.sin(X[:, 0]))


def test_a_local_variance_is_the_prior_one_where_nothing_can_be_said():
    X = np.repeat(np.linspace(0.0, 1.0, 12)[:, None], 2, axis=0)
    found = variance.local(cglb.GP(cglb.RBF(1.0, 1e12), 1e-8), X, X[:3])
    assert (found == 1e12).all()
