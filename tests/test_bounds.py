"""The theorems about the bounds, stated for random models, data, inducing points and v."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from hypothesis import given
from jax.scipy.linalg import cho_solve
from problems import problem, slack_for

import cglb
from cglb import bounds
from cglb.bounds import evidence
from cglb.bounds.logdet import Side, find
from cglb.training.free import Parameters

UPPER = ("trace", "amgm", "hadamard", "waterfill")
LOWER = ("nystrom", "spectral")
ORDER = (
    ("trace", "amgm"),
    ("amgm", "hadamard"),
    ("amgm", "waterfill"),
    ("hadamard", "exact"),
    ("waterfill", "exact"),
)


@given(problem())
def test_exact_is_the_gaussian_log_density(case):
    gp, X, y, _, _ = case
    terms = bounds.exact(gp, X, y)
    reference = problems.log_likelihood(gp, X, y)
    assert abs(terms.value - reference) <= slack_for(reference, terms.quadratic)
    assert terms.constant == pytest.approx(-0.5 * len(y) * np.log(2 * np.pi))


@given(problem())
def test_order_of_the_sgpr_bounds(case):
    gp, X, y, Z, _ = case
    value = {name: float(bounds.sgpr(gp, X, y, Z, logdet=name).value) for name in UPPER}
    value["exact"] = float(bounds.exact(gp, X, y).value)
    for low, high in ORDER:
        room = slack_for(value[low], value[high])  # of these two: "trace" alone may be -1e6
        assert value[low] <= value[high] + room, (low, high)


@given(problem())
def test_every_v_gives_an_interval_that_contains_the_evidence(case):
    gp, X, y, Z, v = case
    exact = bounds.exact(gp, X, y)
    for name in UPPER:
        lower = bounds.cglb(gp, X, y, Z, v, logdet=name)
        assert lower.value <= exact.value + slack_for(exact.value, lower.value)
        assert lower.logdet <= exact.logdet + slack_for(exact.logdet, exact.quadratic)
    for name in LOWER:
        upper = bounds.upper(gp, X, y, Z, v, logdet=name)
        assert upper.value >= exact.value - slack_for(exact.value, upper.value)
        assert upper.logdet >= exact.logdet - slack_for(exact.logdet, exact.quadratic)


@given(problem())
def test_spectral_is_at_least_as_tight_as_nystrom(case):
    gp, X, y, Z, v = case
    loose, tight = (bounds.upper(gp, X, y, Z, v, logdet=name).value for name in LOWER)
    assert tight <= loose + slack_for(loose)


@given(problem())
def test_quadratic_interval_contains_the_quadratic_form(case):
    gp, X, y, Z, v = case
    e = y - float(gp.mean)
    form = e @ np.linalg.solve(problems.dense(gp, X), e)
    interval = bounds.quadratic_interval(gp, X, y, Z, v)
    room = slack_for(form, interval.lower, interval.upper)
    assert interval.lower <= form + room
    assert form <= interval.upper + room


@given(problem())
def test_v_zero_is_sgpr(case):
    gp, X, y, Z, v = case
    for name in UPPER:
        sparse = bounds.sgpr(gp, X, y, Z, logdet=name).value
        at_zero = bounds.cglb(gp, X, y, Z, 0.0 * v, logdet=name).value
        assert at_zero == pytest.approx(sparse, rel=1e-12)


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "linear + constant"])  # full rank, and rank 3
def test_the_solution_with_all_points_reproduces_exact(kernel):
    X, y, _ = problems.data()
    gp = cglb.GP(problems.KERNELS[kernel](2), 0.05, 0.2)
    v = np.linalg.solve(problems.dense(gp, X), y - 0.2)
    exact = float(bounds.exact(gp, X, y).value)
    for logdet in UPPER:
        bound = bounds.cglb(gp, X, y, X, v, logdet=logdet).value
        assert bound == pytest.approx(exact, abs=1e-5)


def test_waterfill_solves_the_constrained_problem():
    """Against SciPy's solver for max Σ log(ℓ + e), e ≥ 0, Σe = t."""
    from scipy.optimize import minimize

    X, y, Z = problems.data()
    gp = cglb.GP(cglb.Matern32(1.5, 1.0), 0.3)
    Q_hat = problems.dense_Q_hat(gp, X, Z)
    ell = np.linalg.eigvalsh(Q_hat)
    t = np.trace(problems.dense(gp, X)) - ell.sum()
    found = minimize(
        lambda e: -np.sum(np.log(ell + e)),
        np.full(40, t / 40),
        bounds=[(0, None)] * 40,
        constraints={"type": "eq", "fun": lambda e: e.sum() - t},
        tol=1e-12,
    )
    value = -2.0 * bounds.sgpr(gp, X, y, Z, logdet="waterfill").logdet
    assert value == pytest.approx(-found.fun, abs=1e-6)


# ---- gradients ----


def dense_bound(gp, X, y, Z, v, logdet):
    """Every bound again on n × n arrays, for plain autodiff."""
    n = X.shape[0]
    eye = jnp.eye(n)
    K = gp.kernel(X, X)
    K = jnp.where(eye > 0, gp.kernel.diag(X)[:, None], K)
    Kuu = gp.kernel(Z, Z)
    Kuf = gp.kernel(Z, X)
    Q = Kuf.T @ jnp.linalg.solve(Kuu, Kuf)
    K_hat, Q_hat = K + gp.noise * eye, Q + gp.noise * eye
    e = y - gp.mean
    r = e - K_hat @ v
    LQ = jnp.linalg.cholesky(Q_hat)
    logdet_Q = 2.0 * jnp.sum(jnp.log(jnp.diagonal(LQ)))
    t = jnp.trace(K - Q)
    delta = jnp.diagonal(K - Q)
    quadratic = r @ cho_solve((LQ, True), r) + 2.0 * e @ v - v @ K_hat @ v
    if logdet == "trace":
        bound = logdet_Q + t / gp.noise
    elif logdet == "amgm":
        bound = logdet_Q + n * jnp.log(1.0 + t / (n * gp.noise))
    elif logdet == "hadamard":
        bound = logdet_Q + jnp.sum(jnp.log(1.0 + delta / gp.noise))
    elif logdet == "nystrom":
        bound, quadratic = logdet_Q, 2.0 * e @ v - v @ K_hat @ v
    elif logdet == "spectral":
        _, U = jnp.linalg.eigh(jax.lax.stop_gradient(Q_hat))
        top = U[:, -1] @ Q_hat @ U[:, -1]
        bound, quadratic = logdet_Q + jnp.log(1.0 + t / top), 2.0 * e @ v - v @ K_hat @ v
    else:
        raise ValueError(logdet)
    return -0.5 * (n * jnp.log(2.0 * jnp.pi) + quadratic + bound)


def package_bound(gp, X, y, Z, v, logdet):
    if logdet in LOWER:
        return bounds.upper(gp, X, y, Z, v, logdet=logdet).value
    return bounds.cglb(gp, X, y, Z, v, logdet=logdet).value


@pytest.mark.parametrize("kernel", ["matern12", "sum"])
@pytest.mark.parametrize("logdet", ["trace", "amgm", "hadamard", "nystrom", "spectral"])
def test_value_and_gradient_agree_with_autodiff_of_a_dense_reference(kernel, logdet):
    X, y, Z = problems.data()
    v = np.random.default_rng(1).normal(size=40)
    gp = cglb.GP(problems.KERNELS[kernel](2), 0.07, 0.3)
    with cglb.float64():
        X, y, Z, v = (jnp.asarray(array) for array in (X, y, Z, v))
        gp = jax.tree.map(jnp.asarray, gp)
        want = jax.value_and_grad(dense_bound, argnums=(0, 3))(gp, X, y, Z, v, logdet)
        got = jax.value_and_grad(package_bound, argnums=(0, 3))(gp, X, y, Z, v, logdet)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), got, want)


def test_traced_and_eager_calls_agree():
    X, y, Z = problems.data()
    v = np.random.default_rng(1).normal(size=40)
    with cglb.float64():
        X, y, Z, v = (jnp.asarray(array) for array in (X, y, Z, v))
        gp = jax.tree.map(jnp.asarray, cglb.GP(cglb.Matern12([1.0, 2.0]), 0.1))

        def gradient(gp, Z):
            return jax.value_and_grad(lambda *a: package_bound(a[0], X, y, a[1], v, "hadamard"))(gp, Z)

        eager, traced = gradient(gp, Z), jax.jit(gradient)(gp, Z)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), eager, traced)


# ---- slopes at the solution ----


def slopes_of(bound, gp, X, y, Z, v):
    """Value and slopes in the hyperparameters of a bound at v, and (to compare) of the same bound with
    the exact quadratic form."""
    with cglb.float64():
        gp, X, y, Z, v = jax.tree.map(jnp.asarray, (gp, X, y, Z, v))
        system = cglb.System(gp, X, Z)
        logdet = find("hadamard", Side.ABOVE)

        def value(gp):
            return bound(system, gp, Z, y, v, system.operator @ v, logdet).value

        def ideal(gp):
            e, K_hat = y - gp.mean, gp.kernel(X, X) + gp.noise * jnp.eye(len(y))
            at_v = evidence.cglb_at(system, gp, Z, y, jnp.zeros_like(y), jnp.zeros_like(y), logdet)
            return at_v.value - at_v.quadratic - 0.5 * e @ jnp.linalg.solve(K_hat, e)

        found, slopes = jax.value_and_grad(value)(gp)
        wanted = jax.grad(ideal)(gp)
        flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(s)]) for s in (slopes, wanted)]
        return float(found), *flat


@given(problem())
def test_slopes_at_the_solution_belong_to_the_same_value(case):
    gp, X, y, Z, v = case
    value, slopes, _ = slopes_of(evidence.cglb_at_solution, gp, X, y, Z, v)
    same, _, _ = slopes_of(evidence.cglb_at, gp, X, y, Z, v)
    assert value == same
    assert np.isfinite(slopes).all()


def test_at_the_solution_all_slopes_are_those_of_the_exact_quadratic_form():
    X, y, Z = problems.data()
    gp = cglb.GP(cglb.Matern32([0.8, 1.3]), 1e-2, 0.1)
    v = np.linalg.solve(problems.dense(gp, X), y - 0.1)
    for bound in (evidence.cglb_at, evidence.cglb_at_solution):
        _, slopes, exact = slopes_of(bound, gp, X, y, Z, v)
        np.testing.assert_allclose(slopes, exact, rtol=1e-7, atol=1e-7)


def test_near_the_solution_at_low_noise_slopes_at_fixed_v_are_far_off():
    """Few inducing points and little noise: w = Q̂⁻¹r is much larger than K̂⁻¹r."""
    X, y, Z = problems.data()
    gp = cglb.GP(cglb.Matern32([0.8, 1.3]), 1e-5, 0.1)
    e, K_hat = y - 0.1, problems.dense(gp, X)
    r = 1e-4 * np.random.default_rng(1).normal(size=len(y))
    v = np.linalg.solve(K_hat, e - r)  # whose residual is r
    error = {}
    for bound in (evidence.cglb_at, evidence.cglb_at_solution):
        _, slopes, exact = slopes_of(bound, gp, X, y, Z, v)
        error[bound] = np.abs(slopes - exact)[:-2].max()  # of the kernel's parameters
    assert error[evidence.cglb_at_solution] < 0.1 * error[evidence.cglb_at]


@pytest.mark.parametrize("bound", ["exact", "sgpr", *UPPER, *LOWER])
def test_gradients_agree_with_finite_differences(bound):
    X, y, Z = problems.data()
    v = 0.3 * np.random.default_rng(2).normal(size=40)
    template = cglb.GP(cglb.RBF([0.8, 1.7], 1.2), 0.05, 0.1)
    parameters = Parameters(template)

    def value(free, Z):
        gp = parameters.unflatten(free)
        if bound == "exact":
            return bounds.exact(gp, X, y).value
        if bound == "sgpr":
            return bounds.sgpr(gp, X, y, Z).value
        return package_bound(gp, X, y, Z, v, bound)

    with cglb.float64():
        free = np.asarray(parameters.flatten(template))
        free_bar, Z_bar = jax.grad(value, argnums=(0, 1))(jnp.asarray(free), jnp.asarray(Z))
        h = 1e-5
        for i in range(free.size):
            step = h * np.eye(free.size)[i]
            slope = (value(free + step, Z) - value(free - step, Z)) / (2 * h)
            assert free_bar[i] == pytest.approx(float(slope), rel=1e-5, abs=1e-5)
        if bound != "exact":
            for i in range(2):
                step = np.zeros_like(Z)
                step[3, i] = h
                slope = (value(free, Z + step) - value(free, Z - step)) / (2 * h)
                assert Z_bar[3, i] == pytest.approx(float(slope), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("noise", [1e-6, 1e-3])
def test_sgpr_stays_accurate_when_kuu_is_nearly_singular(noise):
    """Kuu's condition number is about 1e12; the reference eliminates through eigenvalues."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-1, 1, size=(40, 1)), axis=0)
    Z = np.linspace(-1, 1, 11)[:, None]
    gp = cglb.GP(cglb.RBF(0.9, 1.0), noise)
    with cglb.float64():
        assert 1e10 < np.linalg.cond(np.asarray(gp.kernel(jnp.asarray(Z), jnp.asarray(Z)))) < 1e15
    y = np.sin(3 * X[:, 0]) + np.sqrt(noise) * rng.normal(size=40)
    Q_hat = problems.dense_Q_hat(gp, X, Z)
    quadratic = y @ np.linalg.solve(Q_hat, y)
    terms = bounds.sgpr(gp, X, y, Z, jitter=1e-14)
    assert -2 * terms.quadratic == pytest.approx(quadratic, rel=1e-3)
    assert terms.value <= bounds.exact(gp, X, y).value + 1e-3


@pytest.mark.parametrize("logdet", ["", "nystrom", bounds.logdet.Nystrom()])
def test_what_does_not_bound_from_above_is_refused(logdet):
    X, y, Z = problems.data(n=30)
    with pytest.raises(ValueError, match="logdet must be one of amgm, hadamard"):
        bounds.sgpr(cglb.GP(cglb.RBF()), X, y, Z, logdet=logdet)


def test_results_can_be_written_to():
    X, y, Z = problems.data(n=30)
    mean = cglb.posteriors.sgpr(cglb.GP(cglb.RBF()), X, y, Z).mean(X)
    mean += 1.0
    assert mean.dtype == np.float64
