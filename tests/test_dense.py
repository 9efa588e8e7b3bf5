"""The exact process in one n × n array."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import cglb
from cglb.compute import assemble
from cglb.linalg import dense
from cglb.posteriors import cholesky


def test_the_exact_posterior_is_that_of_dense_formulas():
    X, y, _ = problems.data(n=2 * assemble.SIZES[-1] + 1, d=2)
    gp = cglb.GP(cglb.Matern32([0.8, 1.7], 1.3), 0.05, 0.2)
    rows = np.random.default_rng(1).normal(size=(cholesky.BATCH_ROWS + 3, 2))
    found, K_hat = cglb.posteriors.exact(gp, X, y), problems.dense(gp, X)
    with cglb.float64():
        cross = np.asarray(gp.kernel(jnp.asarray(X), jnp.asarray(rows)))
    np.testing.assert_allclose(found.lml, problems.log_likelihood(gp, X, y), rtol=1e-9)
    mean = 0.2 + cross.T @ np.linalg.solve(K_hat, y - 0.2)
    variance = 1.3 - np.einsum("ij,ij->j", cross, np.linalg.solve(K_hat, cross))
    np.testing.assert_allclose(found.mean(rows), mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.variance(rows), variance, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n", [40, 2 * assemble.SIZES[-1] + 1])
def test_one_array_gives_the_gradient_of_the_exact_likelihood(n):
    X, y, _ = problems.data(n=n, d=2)
    kernel = cglb.Matern32([0.8, 1.7], 1.3) + cglb.Linear(0.3).on([1])
    with cglb.float64():
        gp = jax.tree.map(jnp.asarray, cglb.GP(kernel, 0.05, 0.2))
        quadratic, logdet, found = dense.value_and_gradient(gp, jnp.asarray(X), jnp.asarray(y))
        terms = cglb.bounds.exact(gp, X, y)
        # under a trace XLA computes all of it: none of the code that is tested here
        expected = jax.jit(jax.grad(lambda gp: cglb.bounds.exact(gp, X, y).value))(gp)
    np.testing.assert_allclose(-0.5 * float(quadratic), terms.quadratic, rtol=1e-10)
    np.testing.assert_allclose(-0.5 * float(logdet), terms.logdet, rtol=1e-10)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8)


def test_the_array_is_factored_in_its_place(monkeypatch):
    filled = []
    fill = assemble.upper_triangle
    monkeypatch.setattr(
        assemble, "upper_triangle", lambda *args: filled.append(fill(*args)) or filled[0]
    )
    X, y, _ = problems.data(n=40, d=2)
    with cglb.float64():
        gp, X, y = jax.tree.map(jnp.asarray, (cglb.GP(cglb.RBF(1.0), 0.1), X, y))
        found = dense.factor(gp, X, y)
    assert np.shares_memory(found.factor.L, filled[0])


def test_a_matrix_that_cannot_be_factored_is_an_error():
    X = np.zeros((4, 1))
    gp = cglb.GP(cglb.RBF(1.0), 1e-300)
    with pytest.raises(np.linalg.LinAlgError, match="noise"):
        cglb.posteriors.exact(gp, X, np.ones(4))
