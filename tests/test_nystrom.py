"""Q̂ through its factors against dense arrays, jitter, and triangular solves by blocks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import scipy.linalg

import cglb
from cglb import bounds
from cglb.compute import triangular
from cglb.compute.backend import using
from cglb.compute.cpu import blas, routines
from cglb.compute.cpu.backend import CPU
from cglb.compute.xla import XLA
from cglb.core.errors import NystromError
from cglb.linalg import nystrom

GP = cglb.GP(cglb.Matern32([0.7, 1.6], 1.3), 0.05, 0.2)


def factor(gp, X, Z, **settings):
    """`nystrom.factor` on NumPy data; the result as NumPy."""
    with cglb.float64():
        gp, X, Z = jax.tree.map(jnp.asarray, (gp, X, Z))
        return nystrom.factor(gp, X, Z, **settings)


@pytest.fixture(scope="module")
def case():
    X, y, Z = problems.data(n=40, d=2, m=8)
    return factor(GP, X, Z), problems.dense_Q_hat(GP, X, Z), X, y, Z


def test_solves_are_those_of_q_hat(case):
    factors, Q_hat, _, y, _ = case
    assert (factors.n, factors.m) == (40, 8)
    R = np.stack([y, np.cos(3.0 * y), np.ones(40)], axis=1)
    with cglb.float64():
        for V in (R, R[:, 0]):
            V = jnp.asarray(V)
            np.testing.assert_allclose(factors.solve(V), np.linalg.solve(Q_hat, V), atol=1e-8)


def test_the_factors_and_the_log_determinant_are_those_of_q_hat(case):
    factors, Q_hat, *_ = case
    At, LB = np.asarray(factors.At), np.asarray(factors.LB)
    np.testing.assert_allclose(0.05 * (np.eye(40) + At @ At.T), Q_hat, atol=1e-10)
    np.testing.assert_allclose(LB @ LB.T, np.eye(8) + At.T @ At, rtol=1e-12, atol=1e-12)
    with cglb.float64():
        assert float(factors.logdet) == pytest.approx(np.linalg.slogdet(Q_hat)[1], abs=1e-9)


def test_residual_diagonal_is_that_of_k_minus_q(case):
    factors, Q_hat, X, *_ = case
    with cglb.float64():
        found = np.asarray(factors.residual_diag)
    np.testing.assert_allclose(found, np.diag(problems.dense(GP, X) - Q_hat), atol=1e-10)
    assert found.max() > 0.1  # not merely clipped


def test_residual_diagonal_is_never_negative_even_where_rounding_says_so():
    X, _, _ = problems.data(n=40, d=2, m=8)
    factors = factor(cglb.GP(cglb.Matern32(30.0), 1e-6), X, X, jitter=0.0)
    explained = 1e-6 * np.sum(np.asarray(factors.At) ** 2, axis=1)
    assert (np.asarray(factors.k_diag) - explained).min() < 0.0  # every row is an inducing point
    with cglb.float64():
        found = np.asarray(factors.residual_diag)
    assert (found >= 0.0).all()
    np.testing.assert_allclose(found, 0.0, atol=1e-11)


def test_inducing_weights_are_those_of_sgprs_mean(case):
    factors, Q_hat, X, y, Z = case
    with cglb.float64():
        Kuu = np.asarray(GP.kernel(jnp.asarray(Z), jnp.asarray(Z)))
        Kuf = np.asarray(GP.kernel(jnp.asarray(Z), jnp.asarray(X)))
        found = factors.inducing_weights(jnp.asarray(y))
    np.testing.assert_allclose(found, np.linalg.solve(Kuu, Kuf @ np.linalg.solve(Q_hat, y)), rtol=1e-8)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_chunks_of_rows_do_not_show(width):
    """47 rows in seven chunks of 7, the last of which overlaps the one before; two and three threads
    need one and two chunks more that own no row."""
    X, y, Z = problems.data(n=47, d=2, m=8)
    with cglb.float64():
        whole = gradient(X, y, Z)
        with using(CPU(chunk_rows=7, width=width)):
            At = np.asarray(factor(GP, X, Z).At)
            parts = gradient(X, y, Z)
    found = 0.05 * (np.eye(47) + At @ At.T)
    np.testing.assert_allclose(found, problems.dense_Q_hat(GP, X, Z), atol=1e-10)
    for a, b in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


def gradient(X, y, Z):
    """Of a bound that looks at A itself, so that every path of the gradient is taken."""

    def bound(gp, Z):
        return bounds.sgpr(gp, X, y, Z, logdet="hadamard").value

    return jax.grad(bound, argnums=(0, 1))(jax.tree.map(jnp.asarray, GP), jnp.asarray(Z))


@pytest.mark.parametrize("n", [30, 600])
def test_blas_and_xla_give_the_same_factors(n):
    """Inside a trace there is no BLAS to call: the two ways must agree."""
    X, _, Z = problems.data(n=n, d=2, m=8)
    with cglb.float64():
        data = jax.tree.map(jnp.asarray, (GP, X, Z))
        eager, traced = nystrom.factor(*data), jax.jit(nystrom.factor)(*data)
        with using(XLA()):
            by_xla = nystrom.factor(*data)
    for name in ("At", "L", "G", "LB", "noise", "k_diag", "jitter"):
        a, b, c = (np.asarray(getattr(one, name)) for one in (eager, traced, by_xla))
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(a, c, rtol=1e-9, atol=1e-10)


# ---- jitter ----


def test_distinct_points_need_no_jitter():
    X, _, Z = problems.data(n=40, d=2, m=8)
    assert float(factor(GP, X, Z, jitter=0.0).jitter) == 0.0
    assert float(factor(GP, X, Z).jitter) == nystrom.DEFAULT_JITTER


def test_jitter_grows_until_coincident_points_factor_and_the_bound_holds():
    X, y, Z = problems.data(n=40, d=2, m=8)
    Z = np.concatenate([Z[:4], Z[:4]])
    gp = cglb.GP(cglb.RBF([0.7, 1.6], 1.3), 0.05, 0.2)
    factors = factor(gp, X, Z, jitter=0.0)
    assert 1e-14 <= float(factors.jitter) <= 1e-10
    assert np.isfinite(np.asarray(factors.At)).all()
    exact = bounds.exact(gp, X, y).value
    doubled = bounds.sgpr(gp, X, y, Z, jitter=0.0).value
    # the same points once: coincident ones add nothing
    assert doubled == pytest.approx(bounds.sgpr(gp, X, y, Z[:4]).value, abs=1e-6)
    assert doubled <= exact


def test_jitter_shrinks_q_hat_so_bounds_stay_bounds():
    X, y, Z = problems.data(n=40, d=2, m=8)
    exact = float(bounds.exact(GP, X, y).value)
    values = [float(bounds.sgpr(GP, X, y, Z, jitter=jitter).value) for jitter in (0.0, 1e-6, 1e-2, 1.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] <= exact
    v = np.zeros(40)
    assert all(bounds.upper(GP, X, y, Z, v, jitter=jitter).value >= exact for jitter in (0.0, 1e-2, 1.0))


@pytest.mark.parametrize("jitter", [-1e-12, np.nan, np.inf])
def test_a_jitter_that_would_break_the_bounds_is_refused(jitter):
    X, y, Z = problems.data(n=40, d=2, m=8)
    with pytest.raises(ValueError, match=f"jitter must be finite and at least 0, found {jitter}"):
        bounds.sgpr(GP, X, y, Z, jitter=jitter)


class NotPositiveDefinite(cglb.RBF):
    """1 − r² is no covariance beyond r = √2."""

    def profile(self, r2):
        return 1.0 - r2


class Infinite(cglb.RBF):
    """log r² is −∞ between points that coincide."""

    def profile(self, r2):
        return jnp.log(r2)


def with_nan_noise(gp):
    """Past the checks of the constructor, as a failed optimiser might."""
    return eqx.tree_at(lambda gp: gp.noise, gp, np.array(np.nan))


@pytest.mark.parametrize(
    ("gp", "coincident", "cause"),
    [
        (with_nan_noise(GP), False, "a hyperparameter is not finite"),
        (cglb.GP(NotPositiveDefinite()), False, "the kernel is not positive definite"),
        (cglb.GP(NotPositiveDefinite()), True, "some inducing points coincide"),
        (cglb.GP(Infinite()), True, "the kernel gives values that are not finite at the"),
    ],
)
def test_a_failed_factorisation_names_the_likely_cause(gp, coincident, cause):
    X, y, Z = problems.data(n=40, d=2, m=8)
    if coincident:
        Z[1] = Z[0]
    with pytest.raises(NystromError, match=rf"Kuu \[8 x 8\].*Likely cause: {cause}"):
        bounds.sgpr(gp, X, y, Z)
    assert issubclass(NystromError, ValueError)


# ---- triangular solves ----


@pytest.mark.parametrize("m", [5, 64, 65, 300])
def test_triangular_inverses_and_solves_agree_with_scipy(m):
    """Sizes below, at and above the block of 64; the lower triangle alone is read."""
    rng = np.random.default_rng(m)
    L = np.tril(rng.normal(size=(m, m)) / np.sqrt(m), -1) + np.diag(rng.uniform(1.0, 2.0, size=m))
    B = rng.normal(size=(7, m))
    in_place = blas.empty((7, m), np.float64)
    in_place[:] = B
    blas.solve_rows(L, in_place, 0.5)
    with cglb.float64():
        inverse, solved = jax.jit(lambda L, B: (triangular.inverse(L), triangular.solve_right(L, B)))(
            L, B
        )
    wanted = scipy.linalg.solve_triangular(L, B.T, lower=True).T
    wanted_inverse = scipy.linalg.solve_triangular(L, np.eye(m), lower=True)
    for ours, theirs in ((inverse, wanted_inverse), (solved, wanted), (2.0 * in_place, wanted)):
        np.testing.assert_allclose(ours, theirs, atol=1e-10 * np.abs(theirs).max())
    assert not np.triu(inverse, 1).any()
    half = np.zeros((m, m))
    for _ in range(2):
        blas.add_gram(half, in_place)
    np.testing.assert_allclose(blas.whole(half), 2.0 * in_place.T @ in_place, rtol=1e-12, atol=1e-12)


def test_routines_change_only_their_part_of_an_array_in_either_precision():
    for dtype, tolerance in ((np.float64, 1e-13), (np.float32, 1e-5)):
        rng = np.random.default_rng(0)
        A, B, C = (rng.normal(size=(7, 9)).astype(dtype) for _ in range(3))
        part, wanted = C[2:5, 1:5], C.copy()
        wanted[2:5, 1:5] += 2.0 * A[2:5, 3:6] @ B[4:7, 2:6]
        # the product of the transposes, which BLAS sees
        sizes = (4, 3, 3, 2.0, B[4:7, 2:6], 9, A[2:5, 3:6], 9, 1.0, part, routines.leading(part))
        routines.call("gemm", "N", "N", *sizes)
        np.testing.assert_allclose(C, wanted, rtol=tolerance, atol=tolerance)


def test_solves_are_as_stable_as_substitution():
    """Kuu's condition number is about 1e13: the residual stays at rounding level, like LAPACK's."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(size=300))
    L = np.linalg.cholesky(np.exp(-0.5 * ((x[:, None] - x) / 0.1) ** 2) + 1e-12 * np.eye(300))
    assert np.linalg.cond(L) > 1e6
    B = np.exp(-0.5 * ((rng.uniform(size=(7, 1)) - x) / 0.1) ** 2)
    in_place = B.copy()
    blas.solve_rows(L, in_place, 1.0)
    with cglb.float64():
        A = np.asarray(jax.jit(triangular.solve_right)(L, B))
    lapack = scipy.linalg.solve_triangular(L, B.T, lower=True).T
    for found in (A, in_place):
        assert np.abs(found @ L.T - B).max() <= 100 * np.abs(lapack @ L.T - B).max()


def test_an_array_is_handed_to_jax_without_a_copy():
    array = blas.empty((3, 5), np.float64)
    array[:] = 1.0
    with cglb.float64():
        taken = blas.to_jax(array)
        assert taken.unsafe_buffer_pointer() == array.ctypes.data
