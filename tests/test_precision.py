"""Entries of K to the precision that certificates rely on, on every path and for awkward inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import precise
import pytest

import cglb
from cglb import bounds
from cglb.compute import assemble, tiles
from cglb.compute.cpu.backend import CPU
from cglb.compute.parallel import Threads
from cglb.compute.xla import XLA
from cglb.kernels.distance import middle

N = 40  # the shape of the other tests


def rows(case: str, d: int) -> np.ndarray:
    """Inputs on which |x|² + |x'|² − 2xᵀx' cancels."""
    rng = np.random.default_rng(d)
    X = rng.normal(size=(N, d))
    if case == "outlier first":
        X[0] = 1e8
    elif case == "outlier last":
        X[-1] = -1e6
    elif case == "close pairs far apart":
        X = np.repeat(1e5 * X[: N // 2], 2, axis=0)
        X[1::2] += 10.0 ** rng.uniform(-9, 0, size=(N // 2, 1)) * rng.normal(size=(N // 2, d))
    elif case == "far from the origin":
        X = 1e7 + X
    elif case == "duplicates":
        X[1::2] = X[::2]
    return X


CASES = ("outlier first", "outlier last", "close pairs far apart", "far from the origin", "duplicates")


@functools.cache
def exact(kind: type, case: str, d: int) -> np.ndarray:
    X = rows(case, d)
    return precise.covariances(kernel(kind, d), X, X).astype(float)


def kernel(kind: type, d: int):
    return kind(np.linspace(0.7, 1.6, d), 1.3)


def paths(k, X):
    """K by every way in which the package makes it, by name."""
    identity, zero = jnp.eye(len(X)), jnp.asarray(0.0)
    tile = CPU(width=1, tile_rows=10).plan(X, symmetric=True)
    upper = np.triu(assemble.upper_triangle(Threads(1), k, zero, X))
    yield "call", k(X, X)
    yield "dense", assemble.dense(k, zero, X)
    yield "whole", assemble.whole(k, zero, X)
    yield "in place", upper + np.triu(upper, 1).T
    yield "blocks of the chain", assemble.covariance_and_pull(k, X)[0]
    yield "tiles", tiles.product(tile, k, X, X, identity)
    yield "cross", tiles.product(XLA().plan(X, symmetric=False), k, X, X, identity)
    yield "compiled", jax.jit(lambda X: k(X, X))(X)
    yield "one column at a time", jnp.concatenate([k(X, X[i : i + 1]) for i in range(4)], axis=1)


@pytest.mark.parametrize("d", [2, 6])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [cglb.Matern12, cglb.Matern32])
def test_every_path_gives_entries_within_the_stated_rounding(kind, case, d):
    expected, k = exact(kind, case, d), kernel(kind, d)
    allowed = k.rounding(d) * float(k.variance)
    with cglb.float64():
        X = jnp.asarray(rows(case, d))
        for name, K in paths(jax.tree.map(jnp.asarray, k), X):
            error = np.abs(np.asarray(K) - expected[:, : K.shape[1]]).max()
            assert error <= allowed, name


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [cglb.Matern12, cglb.Matern32])
def test_tiles_from_differences_are_within_the_rounding_of_differences(kind, case):
    d = 6  # ordinary tiles come from a matrix product
    k = kernel(kind, d)
    allowed = k.rounding(d, differences=True) * float(k.variance)
    assert allowed < 0.1 * k.rounding(d) * float(k.variance)
    with cglb.float64():
        X = jnp.asarray(rows(case, d))
        plan = CPU(width=1, tile_rows=10).plan(X, symmetric=True)._replace(differences=True)
        K = tiles.product(plan, jax.tree.map(jnp.asarray, k), X, X, jnp.eye(len(X)))
    assert np.abs(np.asarray(K) - exact(kind, case, d)).max() <= allowed


@pytest.mark.parametrize("d", [1, 6])
def test_coincident_rows_have_distance_zero_and_tiny_distances_are_kept(d):
    X = np.full((3, d), 1e3)
    X[2, 0] = np.nextafter(1e3, 2e3)
    with cglb.float64():
        K = np.asarray(cglb.Matern12(1.0)(jnp.asarray(X), jnp.asarray(X)))
    assert K[0, 1] == 1.0
    assert 1.0 - K[0, 2] == pytest.approx(X[2, 0] - 1e3, rel=1e-2)


def test_the_origin_ignores_outliers():
    X = np.random.default_rng(0).normal(size=(50, 3))
    for row in (0, 25, 49):
        spoilt = X.copy()
        spoilt[row] = 1e9
        assert np.abs(np.asarray(middle(jnp.asarray(spoilt)))).max() < 3.0


@pytest.mark.parametrize("row", [0, 20, 39])
def test_an_outlier_in_any_row_leaves_the_evidence_right(row):
    """1e8 in the first row once made this −926.69 instead of 22.44."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=40)
    X[row] = 1e8
    gp = cglb.GP(cglb.Matern32(1.0), 0.01)
    expected = precise.log_likelihood(gp, X, y)
    assert float(bounds.exact(gp, X, y).value) == pytest.approx(expected, rel=1e-11)
    for found in (cglb.certify(gp, X, y, exact=True), cglb.certify(gp, X, y)):
        assert found.lower <= expected <= found.upper
        assert found.width < 1e-2


def test_gradients_are_finite_and_right_with_close_pairs_and_an_outlier():
    X = rows("outlier first", 6)[:8]
    W = np.random.default_rng(1).normal(size=(8, 8))

    def total(log_scale, k=cglb.Matern32):
        x = jnp.asarray(X)
        return jnp.sum(W * k(jnp.exp(log_scale) * jnp.ones(6))(x, x))

    with cglb.float64():
        slope = float(jax.grad(total)(0.3))
        ends = [float(total(0.3 + h)) for h in (1e-5, -1e-5)]
        forward = float(jax.jvp(total, (0.3,), (1.0,))[1])
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)
    assert forward == pytest.approx(slope, rel=1e-12)
