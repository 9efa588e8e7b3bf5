"""The likely interval for log p(y): brackets per probe, and never outside the certain interval."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import scipy.linalg

import cglb
from cglb import bounds
from cglb.bounds import certificate
from cglb.linalg import quadrature
from cglb.linalg.quadrature import LogQuadrature
from cglb.linalg.system import System

X, Y, Z = problems.data()
GP = cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01)


@pytest.fixture(scope="module")
def system():
    """One whose chain is far from exact: blocks of 64 rows would hold all 40."""
    from cglb.linalg.blocks import Neighbours, find_blocks

    with cglb.float64():
        gp, x, z = jax.tree.map(jnp.asarray, (GP, X, Z))
        blocks = find_blocks(gp.kernel, x, 5, 3)
        return System(gp, x, z, neighbours=Neighbours.given(blocks))


def whitened(found, K_hat):
    """M as an array, and its rows that are not padding."""
    with cglb.float64():
        W = np.asarray(quadrature._forward(found._whitening, jnp.eye(len(K_hat))))
    return W @ K_hat @ W.T, np.asarray(found._whitening.real)


def test_the_whitening_has_the_stated_determinant(system):
    with cglb.float64():
        found = LogQuadrature(system)
    K_hat = problems.dense(GP, X)
    M, real = whitened(found, K_hat)
    exact = np.linalg.slogdet(K_hat)[1]
    assert found.logdet_P + np.linalg.slogdet(M[np.ix_(real, real)])[1] == pytest.approx(exact, abs=1e-8)
    assert abs(exact - found.logdet_P) > 0.1  # the chain alone does not say it


@pytest.mark.parametrize("steps", [2, 5, 100])
def test_the_two_rules_bracket_every_probe(system, monkeypatch, steps):
    monkeypatch.setattr(quadrature, "MOST_STEPS", steps)
    monkeypatch.setattr(quadrature, "CLOSE", 0.0)
    with cglb.float64():
        found = LogQuadrature(system, seed=3)
        found.more()
    M, real = whitened(found, problems.dense(GP, X))
    signs = np.random.default_rng(3).choice([-1.0, 1.0], size=(len(real), quadrature.PROBES))[real]
    log_M = scipy.linalg.logm(M[np.ix_(real, real)])
    exact = np.einsum("nt,nm,mt->t", signs, log_M, signs)
    assert (found.found.lower <= exact + 1e-8).all()
    assert (exact <= found.found.upper + 1e-8).all()
    if steps == 100:
        np.testing.assert_allclose(found.found.upper, exact, atol=1e-6)
        np.testing.assert_allclose(found.found.squares, np.sum((log_M @ signs) ** 2, axis=0), atol=1e-6)
    else:
        assert (found.found.lower < found.found.upper).all()


def test_the_interval_covers_the_exact_value_as_often_as_it_says(system):
    exact = np.linalg.slogdet(problems.dense(GP, X))[1]
    covered = []
    for seed in range(20):
        with cglb.float64():
            found = LogQuadrature(system, seed)
            found.more()
        low, high = found.interval(2.5758)  # 99 % of the normal distribution
        covered.append(low <= exact <= high)
    assert sum(covered) >= 19


def test_the_spread_is_at_least_the_standard_deviation_of_a_probe(system):
    with cglb.float64():
        found = LogQuadrature(system)
        for _ in range(20):
            found.more()
    M, real = whitened(found, problems.dense(GP, X))
    log_M = scipy.linalg.logm(M[np.ix_(real, real)])
    off = log_M - np.diag(np.diagonal(log_M))  # a sign squared is 1: the diagonal adds no variance
    assert np.sqrt(2.0) * np.linalg.norm(off) <= found.found.spread <= 2.0 * np.linalg.norm(log_M)


def test_the_likely_interval_is_inside_the_certain_one_and_says_how_it_was_found():
    x, y, z = problems.data(n=200, m=10)
    exact = float(bounds.exact(GP, x, y).value)
    found = cglb.certify(GP, x, y, z, confidence=0.99)
    low, high = found.likely
    assert found.lower <= low <= exact <= high <= found.upper
    assert high - low < 0.2 * found.width
    assert "probes" in found.message
    assert "99% confidence" in str(found)
    assert found.shifted(3.0).likely == (low + 3.0, high + 3.0)


def test_a_wider_chain_takes_the_place_of_many_probes(monkeypatch):
    """A chain with few neighbours would need hundreds of probes for a hundredth of a nat."""
    monkeypatch.setattr(certificate, "PROBE_NEIGHBOURS", 16)
    monkeypatch.setattr(certificate, "MOST_PROBES", 80)
    x, y, z = problems.data(n=300, m=10)
    exact = float(bounds.exact(GP, x, y).value)
    with cglb.float64():
        gp, x, y, z = jax.tree.map(jnp.asarray, (GP, x, y, z))
        found = certificate.Certificate(System(gp, x, z), y)
        found.refine()
        narrow = copy.copy(found)
        narrow._memory_gb = 0.0  # a wider chain does not fit
        (low, high), probes = found.likely(0.99, 0.05, None)
        _, many = narrow.likely(0.99, 0.05, None)
    assert low <= exact <= high <= low + 0.05
    assert probes <= certificate.MANY_PROBES < many


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, float("nan")])
def test_a_confidence_is_a_probability(confidence):
    with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
        cglb.certify(GP, X, Y, Z, confidence=confidence)


def test_a_comparison_with_a_confidence_decides_what_one_level_leaves_open(monkeypatch):
    monkeypatch.setattr(cglb.bounds.interval, "FIRST_INDUCING", 10)
    x, y, _ = problems.data(n=200, m=10)
    near = {"a": GP, "b": cglb.GP(GP.kernel, 0.0101), "far": cglb.GP(GP.kernel, 1e4)}
    exact = {name: float(bounds.exact(gp, x, y).value) for name, gp in near.items()}
    found = cglb.compare({**near, "twin": GP}, x, y, confidence=0.99)
    models = {model.name: model for model in found.ranking}
    assert models["far"].evidence.likely is None  # proven worse, so no probes were spent on it
    assert {"far"} <= set(models["a"].beats)
    for name in ("a", "b"):
        low, high = models[name].evidence.likely
        assert models[name].evidence.lower <= low <= exact[name] <= high <= models[name].evidence.upper
    assert "twin" not in models["a"].likely_beats
    assert "a" not in models["twin"].likely_beats
    with pytest.raises(ValueError, match="confidence must be"):
        cglb.compare(near, x, y, confidence=1.0)


def test_likely_rankings_are_right_where_certain_intervals_overlap(monkeypatch):
    """One certain level of few inducing points leaves these two open; probes decide."""
    monkeypatch.setattr(cglb.bounds.interval, "FIRST_INDUCING", 10)
    x, y, _ = problems.data(n=200, m=10)
    models = {"better": GP, "worse": cglb.GP(cglb.Matern32([0.6, 1.0]), 0.02)}
    exact = {name: float(bounds.exact(gp, x, y).value) for name, gp in models.items()}
    found = cglb.compare(models, x, y, confidence=0.95)
    first, second = found.ranking
    assert exact[first.name] > exact[second.name]
    assert first.likely_beats == (second.name,)
    if not first.beats:
        assert "with 95% confidence" in str(found)
