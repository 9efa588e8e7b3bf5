"""Small problems and dense references that the tests share.

The references are plain formulas on n × n arrays with NumPy or plain autodiff: slow and obvious. They
take the kernel's values from the package (test_kernels.py compares those with other code) and nothing
else: no tiles, no factorisation, no gradient.

Nearly all tests use (n, d, m) = (40, 2, 8), so that they share what is compiled.
"""

from __future__ import annotations

from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

import cglb

KERNELS = {
    "rbf": lambda d: cglb.RBF(np.linspace(0.7, 1.6, d), 1.3),
    "matern12": lambda d: cglb.Matern12(np.linspace(0.7, 1.6, d), 1.3),
    "matern32": lambda d: cglb.Matern32(np.linspace(0.7, 1.6, d), 1.3),
    "matern52": lambda d: cglb.Matern52(np.linspace(0.7, 1.6, d), 1.3),
    "rational quadratic": lambda d: cglb.RationalQuadratic(np.linspace(0.7, 1.6, d), 1.3, 0.8),
    "one lengthscale": lambda d: cglb.Matern32(0.9, 0.8),
    "periodic": lambda d: cglb.Periodic(1.2, 2.5, 0.9),
    "linear + constant": lambda d: cglb.Linear(np.linspace(0.5, 1.0, d)) + cglb.Constant(0.4),
    "sum": lambda d: cglb.RBF(1.1) + 0.5 * cglb.Matern12(0.6),
    "product of columns": lambda d: cglb.RBF(1.0).on([0]) * cglb.Matern52(1.5).on([d - 1]),
}


def data(n: int = 40, d: int = 2, m: int = 8, seed: int = 0):
    """X, y, Z: a smooth function with noise, and inducing points off the data."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * X.sum(axis=1) + 0.1 * rng.normal(size=n)
    Z = X[rng.permutation(n)[:m]] + 0.05 * rng.normal(size=(m, d))
    return X, y, Z


def examples(number: int) -> settings:
    """`number` examples in the fixed profile, and as many times more as the chosen profile asks for."""
    fixed = settings.get_profile("fixed").max_examples
    return settings(max_examples=number * settings().max_examples // fixed)


@st.composite
def problem(draw, n: int = 40, d: int = 2, m: int = 8):
    """(gp, X, y, Z, v) with hyperparameters over several orders of magnitude and a v of any kind.

    The kernels are the smoothest and the roughest of their family.
    """
    seed = draw(st.integers(0, 2**31 - 1))
    rng = np.random.default_rng(seed)
    kernel = draw(st.sampled_from([cglb.RBF, cglb.Matern12]))
    log_scale = st.floats(-1.0, 1.0)
    lengthscale = [10.0 ** draw(log_scale) for _ in range(d)]
    noise = 10.0 ** draw(st.floats(-5.0, 1.0))
    gp = cglb.GP(kernel(lengthscale, 10.0 ** draw(log_scale)), noise, draw(st.floats(-2.0, 2.0)))
    X = rng.normal(size=(n, d))
    if draw(st.booleans()):
        X[1] = X[0]  # a duplicate
    y = rng.normal(size=n) + np.sin(3.0 * X[:, 0])
    inside = draw(st.booleans())
    Z = X[2 : 2 + m] if inside else rng.normal(size=(m, d))
    v = 10.0 ** draw(st.floats(-3.0, 2.0)) * rng.normal(size=n)
    return gp, X, y, Z, v


def dense(gp: cglb.GP, X: np.ndarray) -> np.ndarray:
    """K̂ [n, n]."""
    with cglb.float64():
        K = np.array(gp.kernel(jnp.asarray(X), jnp.asarray(X)))
        np.fill_diagonal(K, np.asarray(gp.kernel.diag(jnp.asarray(X))))
    return K + float(gp.noise) * np.eye(len(X))


def dense_Q_hat(gp: cglb.GP, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Q̂ [n, n] by an eigendecomposition of Kuu: no Cholesky, no jitter."""
    with cglb.float64():
        Kuu = np.asarray(gp.kernel(jnp.asarray(Z), jnp.asarray(Z)))
        Kuf = np.asarray(gp.kernel(jnp.asarray(Z), jnp.asarray(X)))
    w, U = np.linalg.eigh(Kuu)
    half = (U / np.sqrt(np.maximum(w, 1e-14 * w.max()))).T @ Kuf
    return half.T @ half + float(gp.noise) * np.eye(len(X))


def log_likelihood(gp: cglb.GP, X: np.ndarray, y: np.ndarray) -> float:
    """log p(y) by SciPy."""
    from scipy.stats import multivariate_normal

    return multivariate_normal(np.full(len(y), float(gp.mean)), dense(gp, X)).logpdf(y)


def slack_for(reference: float, *values: float) -> float:
    """Rounding allowed in a comparison of two sums of these sizes."""
    return 1e-7 * max(1.0, abs(reference), *(abs(value) for value in values))


@contextmanager
def counted():
    """What JAX compiles while the block runs."""
    count = []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            count.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield count
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
