"""Kernels against differences in NumPy and scikit-learn; derivatives, also where points coincide."""

import re
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import problems
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.gaussian_process import kernels as peers

import cglb
from cglb import kernels

D = 3
KERNELS = {name: make(D) for name, make in problems.KERNELS.items()} | {
    "periodic by column": cglb.Periodic([1.2, 0.8, 1.5], [2.5, 3.0, 1.7], 0.9),
    "nested": (cglb.RBF([0.8, 1.4]).on([2, 0]) + 0.5 * cglb.Matern32(0.6)) * cglb.Linear() * 2
    + cglb.Constant(0.4),
    "power": (0.7 * cglb.Matern52([0.8, 1.1, 1.9], 1.2) + cglb.Linear([0.3, 0.2, 0.1])) ** 3,
    "power of columns": (cglb.RationalQuadratic(0.9, 1.1, 0.7).on([1, 2]) ** 2) * cglb.RBF(1.3),
}


def reference(kernel, x, z):
    """k(x, z) for points x and z that broadcast: differences, no matrix product."""
    r = np.sqrt(np.sum(((x - z) / getattr(kernel, "lengthscale", 1.0)) ** 2, axis=-1))
    match kernel:
        case cglb.RBF():
            return kernel.variance * np.exp(-(r**2) / 2)
        case cglb.Matern12():
            return kernel.variance * np.exp(-r)
        case cglb.Matern32():
            return kernel.variance * (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
        case cglb.Matern52():
            return kernel.variance * (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)
        case cglb.RationalQuadratic():
            return kernel.variance * (1 + r**2 / (2 * kernel.alpha)) ** -kernel.alpha
        case cglb.Periodic():
            wave = np.sin(np.pi * (x - z) / kernel.period) / kernel.lengthscale
            return kernel.variance * np.exp(-2 * np.sum(wave**2, axis=-1))
        case cglb.Linear():
            return np.sum(kernel.variance * x * z, axis=-1)
        case cglb.Constant():
            return kernel.variance * np.ones_like(r)
        case kernels.Sum():
            return reference(kernel.left, x, z) + reference(kernel.right, x, z)
        case kernels.Product():
            return reference(kernel.left, x, z) * reference(kernel.right, x, z)
        case kernels.Power():
            return reference(kernel.kernel, x, z) ** kernel.exponent
        case kernels.Scaled():
            return kernel.factor * reference(kernel.kernel, x, z)
        case kernels.Columns():
            columns = list(kernel.columns)
            return reference(kernel.kernel, x[..., columns], z[..., columns])


def reference_matrix(kernel, X1, X2):
    return reference(kernel, X1[:, None, :], X2[None, :, :])


def inputs():
    """X1 and X2 with rows in common and a row of X1 twice, far from the origin in one column."""
    rng = np.random.default_rng(0)
    X1 = rng.normal(size=(8, D)) + np.array([0.0, 0.0, 3.0])
    X1[4] = X1[1]
    X2 = np.concatenate([rng.normal(size=(2, D)), X1[:4]])
    return X1, X2, rng.normal(size=(8, 6))


@jax.jit
def evaluate(kernel, X1, X2, W):
    """(K, diag, gradient of Σ WK in kernel, X1 and X2)."""
    K, pull = jax.vjp(lambda kernel, X1, X2: kernel(X1, X2), kernel, X1, X2)
    return K, kernel.diag(X1), pull(W)


def evaluated(kernel):
    with cglb.float64():
        arguments = jax.tree.map(jnp.asarray, (kernel, *inputs()))
        return jax.tree.map(np.asarray, evaluate(*arguments))


@jax.jit
def call(kernel, X1, X2):
    return kernel(X1, X2)


def matrix(kernel, X1, X2=None):
    """K(X1, X2) by the package, as NumPy."""
    with cglb.float64():
        arguments = jax.tree.map(jnp.asarray, (kernel, X1, X1 if X2 is None else X2))
        return np.asarray(call(*arguments))


def tolerance(name):
    # r² is rounded to 1e-16 of the squared spread; an exponential of √r² feels the root of that
    return 1e-7 if name in ("matern12", "sum") else 1e-13


@pytest.mark.parametrize("name", KERNELS)
def test_values_are_the_formula(name):
    X1, X2, _ = inputs()
    K, diag, _ = evaluated(KERNELS[name])
    np.testing.assert_allclose(K, reference_matrix(KERNELS[name], X1, X2), atol=tolerance(name))
    np.testing.assert_allclose(diag, reference(KERNELS[name], X1, X1), rtol=1e-13)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_in_hyperparameters_are_right_with_coincident_rows(name):
    X1, X2, W = inputs()
    _, _, (kernel_bar, _, _) = evaluated(KERNELS[name])
    leaves, treedef = jax.tree.flatten(KERNELS[name])
    for number, (leaf, got) in enumerate(zip(leaves, jax.tree.leaves(kernel_bar), strict=True)):

        def total(value, number=number):
            kernel = jax.tree.unflatten(treedef, [*leaves[:number], value, *leaves[number + 1 :]])
            return np.sum(W * reference_matrix(kernel, X1, X2))

        np.testing.assert_allclose(got, central_differences(total, leaf), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_in_inputs_are_right_with_coincident_rows(name):
    """A central difference across the cusp of Matérn-1/2 at r = 0 is 0, as is the package's slope."""
    X1, X2, W = inputs()
    _, _, (_, X1_bar, X2_bar) = evaluated(KERNELS[name])
    kernel = KERNELS[name]
    slope = central_differences(lambda X: np.sum(W * reference_matrix(kernel, X, X2)), X1)
    np.testing.assert_allclose(X1_bar, slope, rtol=1e-6, atol=1e-6)
    slope = central_differences(lambda X: np.sum(W * reference_matrix(kernel, X1, X)), X2)
    np.testing.assert_allclose(X2_bar, slope, rtol=1e-6, atol=1e-6)


@partial(jax.jit, static_argnums=0)
def pulled(inputs, kernel, X1, X2, W):
    """The gradient of Σ WK by `pull_between` and the pullback of the features, as tiles do it."""

    def both(kernel, X1, X2):
        return kernel.features(X1, X2[:1]), kernel.features(X2, X2[:1])

    (F1, F2), pull_features = jax.vjp(both, kernel, X1, X2)
    kernel_bar, F1_bar, F2_bar = kernel.pull_between(F1, F2, W, inputs)
    more, X1_bar, X2_bar = pull_features((F1_bar, F2_bar))
    return jax.tree.map(jnp.add, kernel_bar, more), X1_bar, X2_bar


@pytest.mark.parametrize("name", KERNELS)
def test_the_gradient_derived_by_hand_is_that_of_the_matrix(name):
    """With inputs=False only the gradient in the hyperparameters is promised, and it is the same."""
    _, _, gradient = evaluated(KERNELS[name])
    with cglb.float64():
        arguments = jax.tree.map(jnp.asarray, (KERNELS[name], *inputs()))
        whole, without_inputs = pulled(True, *arguments), pulled(False, *arguments)
    assert_close(whole, gradient)
    assert_close(without_inputs[0], gradient[0])


def assert_close(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10 * max(1.0, np.abs(other).max()))


def test_a_gradient_may_be_negative_outside_jit_too():
    with cglb.float64():
        kernel = jax.tree.map(jnp.asarray, 2.0 * cglb.RBF(1.0))
        F = kernel.features(jnp.zeros((2, 1)), jnp.zeros((1, 1)))
        found, _, _ = kernel.pull_between(F, F, -jnp.ones((2, 2)), False)
    assert float(found.factor) == -4.0
    assert float(found.kernel.variance) == -8.0


def products_of_gradient(kernel, n=60, d=50):
    """Products of two matrices in the compiled `pull_between`, vectors not counted."""

    def pull(kernel, F, W):
        return kernel.pull_between(F, F, W, False)

    with cglb.float64():
        held = jax.tree.map(jnp.asarray, kernel)
        F = held.features(jnp.zeros((n, d)), jnp.zeros((1, d)))
        compiled = jax.jit(pull).lower(held, F, jnp.zeros((n, n))).compile()
    return len(re.findall(r"= f64\[\d\d+,\d\d+\]\S* (?:dot|custom-call)\(", compiled.as_text()))


def test_a_combination_costs_no_more_matrix_products_than_its_parts():
    """Two for a stationary kernel: distances, and one side of their pullback; this one once more where
    distances are made from differences. Autodiff takes both sides."""
    plain = cglb.Matern32(np.ones(50))
    assert products_of_gradient(plain) == 3
    every = tuple(range(50))
    for kernel in (2.0 * plain, plain + 1.0, plain * cglb.Constant(0.5), plain.on(every), plain**3):
        assert products_of_gradient(kernel) == 3
    nested = (2.0 * plain).on(every) ** 2 * (cglb.RBF(np.ones(50)) + 0.3)
    assert products_of_gradient(nested) == 6


def central_differences(function, x, h=1e-6):
    slope = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[index] = h
        slope[index] = (function(x + step) - function(x - step)) / (2 * h)
    return slope


ARD = np.array([0.7, 1.1, 1.6])
PEERS = {
    "rbf": (cglb.RBF(ARD, 1.3), 1.3 * peers.RBF(ARD)),
    "matern12": (cglb.Matern12(ARD, 1.3), 1.3 * peers.Matern(ARD, nu=0.5)),
    "matern32": (cglb.Matern32(ARD, 1.3), 1.3 * peers.Matern(ARD, nu=1.5)),
    "matern52": (cglb.Matern52(ARD, 1.3), 1.3 * peers.Matern(ARD, nu=2.5)),
    "rational quadratic": (
        cglb.RationalQuadratic(0.9, 1.3, 0.6),
        1.3 * peers.RationalQuadratic(length_scale=0.9, alpha=0.6),
    ),
    "constant": (cglb.Constant(0.7), peers.ConstantKernel(0.7)),
    "dot product": (cglb.Linear() + cglb.Constant(0.49), peers.DotProduct(sigma_0=0.7)),
    "sum": (cglb.RBF(0.8) + cglb.Matern32(1.9), peers.RBF(0.8) + peers.Matern(1.9, nu=1.5)),
    "product": (cglb.RBF(0.8) * cglb.Matern32(1.9), peers.RBF(0.8) * peers.Matern(1.9, nu=1.5)),
}


@pytest.mark.parametrize("name", PEERS)
def test_values_agree_with_scikit_learn(name):
    X1, X2, _ = inputs()
    ours, theirs = PEERS[name]
    np.testing.assert_allclose(matrix(ours, X1, X2), theirs(X1, X2), atol=tolerance(name))


def test_periodic_of_one_column_agrees_with_scikit_learn():
    X1, X2, _ = inputs()
    ours = cglb.Periodic(0.8, 1.7, 1.3).on([1])
    theirs = 1.3 * peers.ExpSineSquared(length_scale=0.8, periodicity=1.7)
    np.testing.assert_allclose(matrix(ours, X1, X2), theirs(X1[:, 1:2], X2[:, 1:2]), atol=1e-13)


@given(
    name=st.sampled_from(["rbf", "matern12", "matern32", "rational quadratic", "periodic", "nested"]),
    exponents=st.lists(st.floats(-1.0, 1.0), min_size=16, max_size=16),
    seed=st.integers(0, 2**31 - 1),
)
def test_matrices_are_symmetric_and_positive_semidefinite(name, exponents, seed):
    leaves, treedef = jax.tree.flatten(KERNELS[name])
    scaled = [leaf * 10.0**power for leaf, power in zip(leaves, exponents, strict=False)]
    kernel = jax.tree.unflatten(treedef, scaled)
    X = np.random.default_rng(seed).normal(size=(8, D))
    X[3] = X[2]
    K = matrix(kernel, X)
    # lengthscales reach 0.05: the scaled spread is up to about 100
    size = np.abs(K).max()
    room = 1e-5 * size if name == "matern12" else 1e-11 * size
    np.testing.assert_allclose(K, K.T, atol=room)
    assert np.linalg.eigvalsh((K + K.T) / 2).min() >= -8 * room
    with cglb.float64():
        diag = jax.tree.map(jnp.asarray, kernel).diag(jnp.asarray(X))
    np.testing.assert_allclose(np.diag(K), diag, atol=room)


def test_a_constant_offset_of_the_data_does_not_cost_precision():
    """Times since 1970 in seconds, a minute apart: r² without a shift would be all rounding."""
    X = 1.7e9 + 60.0 * np.arange(8.0)[:, None]
    kernel = cglb.Matern32(300.0)
    np.testing.assert_allclose(matrix(kernel, X), reference_matrix(kernel, X, X), atol=1e-12)


# ---- combinations and pytrees ----


def test_operators_build_the_named_combinations():
    k1, k2 = cglb.RBF(0.8), cglb.Matern32(1.9)
    assert isinstance(k1 + k2, kernels.Sum)
    assert isinstance(k1 * k2, kernels.Product)
    assert isinstance(k1.on([1]), kernels.Columns)
    for scaled in (2.0 * k1, k1 * 2.0, 2 * k1, np.float64(2.0) * k1, k1 * np.array(2.0)):
        assert isinstance(scaled, kernels.Scaled)
        assert float(scaled.factor) == 2.0
        assert scaled.factor.dtype == np.float64


def test_numbers_and_sums_of_many_kernels():
    k1, k2, k3 = cglb.RBF(0.8), cglb.Matern32(1.9), cglb.Linear(0.3)
    for shifted in (k1 + 1.5, 1.5 + k1, k1 + np.float64(1.5), np.array(1.5) + k1):
        assert eqx.tree_equal(shifted, kernels.Sum(k1, cglb.Constant(1.5))) is True
    assert eqx.tree_equal(sum([k1, k2, k3]), k1 + k2 + k3) is True
    X1, X2, _ = inputs()
    np.testing.assert_allclose(
        matrix(sum([k1, k2, k3]), X1, X2), sum(matrix(k, X1, X2) for k in (k1, k2, k3)), rtol=1e-13
    )


def test_a_power_has_one_set_of_parameters():
    cube = cglb.RBF([0.8, 0.9, 1.0]) ** 3
    assert isinstance(cube, kernels.Power)
    assert len(jax.tree.leaves(cube)) == 2
    X1, X2, _ = inputs()
    shorter = cglb.RBF(np.array([0.8, 0.9, 1.0]) / np.sqrt(3))  # exp(−r²/2)³ = exp(−3r²/2)
    np.testing.assert_allclose(matrix(cube, X1, X2), matrix(shorter, X1, X2), rtol=1e-12)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (cglb.Matern32([0.8, 1.3], 1.2), "Matern32(lengthscale=[0.8, 1.3], variance=1.2)"),
        (2.0 * cglb.Linear(0.3), "Scaled(kernel=Linear(variance=0.3), factor=2)"),
        (cglb.Constant(1e-7).on([2]), "Columns(kernel=Constant(variance=1e-07), columns=(2,))"),
        (cglb.RBF(np.arange(1.0, 31.0)), "RBF(lengthscale=[1, 2, 3, … 30 values], variance=1)"),
        (cglb.RBF() ** 2, "Power(kernel=RBF(lengthscale=1, variance=1), exponent=2)"),
        (cglb.GP(cglb.Linear(), 0.1), "GP(kernel=Linear(variance=1), noise=0.1, mean=0)"),
    ],
)
def test_kernels_and_models_print_with_their_values(module, text):
    assert repr(module) == str(module) == text
    with cglb.float64():
        assert repr(jax.tree.map(jnp.asarray, module)) == text


def test_a_kernel_under_a_trace_prints_its_shapes():
    seen = []

    @jax.jit
    def look(kernel):
        seen.append(repr(kernel))
        return kernel.variance

    with cglb.float64():
        look(jax.tree.map(jnp.asarray, cglb.RBF([1.0, 2.0])))
    assert seen == ["RBF(lengthscale=float64[2], variance=float64[])"]


def test_columns_number_the_data_not_the_restriction():
    X1, X2, _ = inputs()
    found = matrix(cglb.RBF([0.5, 2.0]).on([2, 0]), X1, X2)
    wanted = matrix(cglb.RBF([0.5, 2.0]), X1[:, [2, 0]], X2[:, [2, 0]])
    np.testing.assert_array_equal(found, wanted)
    twice = matrix(cglb.RBF(0.5).on([1]).on([2, 0]), X1, X2)  # column 1 of (2, 0) is column 0
    np.testing.assert_array_equal(twice, matrix(cglb.RBF(0.5), X1[:, :1], X2[:, :1]))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_pytrees_of_their_hyperparameters(name):
    kernel = KERNELS[name]
    leaves, treedef = jax.tree.flatten(kernel)
    assert all(isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 for leaf in leaves)
    assert eqx.tree_equal(jax.tree.unflatten(treedef, leaves), kernel) is True
    _, _, (kernel_bar, _, _) = evaluated(kernel)
    assert jax.tree.structure(kernel_bar) == treedef
    assert [leaf.shape for leaf in jax.tree.leaves(kernel_bar)] == [leaf.shape for leaf in leaves]


def test_values_of_hyperparameters_do_not_recompile():
    traces = 0

    @jax.jit
    def trace(kernel, X):
        nonlocal traces
        traces += 1
        return kernel(X, X)

    with cglb.float64():
        X = jnp.zeros((8, D))
        for lengthscale in (0.5, 0.7):
            trace(jax.tree.map(jnp.asarray, cglb.RBF(lengthscale)), X)
        assert traces == 1
        trace(jax.tree.map(jnp.asarray, cglb.RBF(0.5).on([0])), X)
        trace(jax.tree.map(jnp.asarray, cglb.RBF(0.5).on([1])), X)
        assert traces == 3  # columns are structure, not values


# ---- errors ----


@pytest.fixture
def without_type_checks():
    """As for a user: no beartype in front of the package's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cglb.RBF(0.0), "RBF: lengthscale must be positive and finite, found 0.0"),
        (lambda: cglb.Matern12(-1.0), "Matern12: lengthscale .* found -1.0"),
        (lambda: cglb.Matern32([1.0, np.nan]), "Matern32: lengthscale .* nan"),
        (lambda: cglb.Matern52(np.inf), "Matern52: lengthscale .* inf"),
        (lambda: cglb.RBF(np.ones((2, 2))), r"RBF: lengthscale .* one number per column.*\(2, 2\)"),
        (lambda: cglb.RBF([]), r"RBF: lengthscale .* found shape \(0,\)"),
        (lambda: cglb.RBF(1.0, 0.0), "RBF: variance must be positive"),
        (lambda: cglb.RBF(1.0, [1.0, 2.0]), r"RBF: variance must be a number, found shape \(2,\)"),
        (lambda: cglb.RationalQuadratic(0.0), "RationalQuadratic: lengthscale"),
        (lambda: cglb.RationalQuadratic(1.0, 1.0, -2.0), "RationalQuadratic: alpha .* -2.0"),
        (lambda: cglb.Periodic(-1.0), "Periodic: lengthscale"),
        (lambda: cglb.Periodic(1.0, 0.0), "Periodic: period"),
        (lambda: cglb.Periodic(1.0, 1.0, None), "Periodic: variance .* nan"),
        (lambda: cglb.Linear([1.0, 0.0]), "Linear: variance"),
        (lambda: cglb.Constant(-1.0), "Constant: variance"),
        (lambda: -2.0 * cglb.RBF(), "Scaled: factor .* -2.0"),
        (lambda: cglb.RBF() * np.nan, "Scaled: factor .* nan"),
        (lambda: cglb.RBF("long"), "hyperparameter must be a number.* found 'long'"),
        (lambda: cglb.RBF(1j), "hyperparameter must be a number.* found 1j"),
        (lambda: cglb.RBF() + -1.0, "Constant: variance .* found -1.0"),
        (lambda: cglb.RBF() + "long", "hyperparameter must be a number.* found 'long'"),
        (lambda: cglb.RBF() * np.array([1.0, 2.0]), r"Scaled: factor must be a number.* \(2,\)"),
        (lambda: np.array([1.0, 2.0]) * cglb.RBF(), r"Scaled: factor must be a number.* \(2,\)"),
        (lambda: cglb.RBF() ** 0, "power of a kernel must be a positive integer, found 0"),
        (lambda: cglb.RBF() ** -2, "power of a kernel .* found -2"),
        (lambda: cglb.RBF() ** 0.5, "power of a kernel .* found 0.5"),
        (lambda: cglb.RBF() ** True, "power of a kernel .* found True"),
        (lambda: cglb.RBF().on([]), r"columns .* found \(\)"),
        (lambda: cglb.RBF().on([0, -1]), r"columns .* found \(0, -1\)"),
        (lambda: cglb.GP(cglb.RBF(), 0.0), "GP: noise must be positive and finite, found 0.0"),
        (lambda: cglb.GP(cglb.RBF(), -0.1), "GP: noise .* found -0.1"),
        (lambda: cglb.GP(cglb.RBF(), np.nan), "GP: noise .* found nan"),
        (lambda: cglb.GP(cglb.RBF(), [0.1, 0.2]), r"GP: noise must be a number, found shape \(2,\)"),
        (lambda: cglb.GP(cglb.RBF(), 1.0, np.inf), "GP: mean must be finite, found inf"),
        (lambda: cglb.GP(cglb.RBF(), 1.0, [0.0, 0.0]), r"GP: mean must be a number.* \(2,\)"),
        (lambda: cglb.GP("rbf"), "GP: kernel must be a cglb kernel, found str"),
    ],
)
def test_a_bad_parameter_is_named(make, words, without_type_checks):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (cglb.RBF([1.0, 2.0]), "RBF has 2 lengthscales, but the data has 3 columns"),
        (cglb.Periodic([1.0, 2.0]), "Periodic has 2 lengthscales"),
        (cglb.Periodic(1.0, [1.0, 2.0]), "Periodic has 2 periods"),
        (cglb.Linear([1.0, 2.0]), "Linear has 2 variances"),
        (cglb.RBF().on([0, 3]), "uses column 3, but the data has 3 columns"),
        (cglb.RBF([1.0, 2.0]).on([0]), "RBF has 2 lengthscales, but the data has 1 columns"),
        (cglb.Constant() + 2.0 * cglb.RBF([1.0, 2.0]), "RBF has 2 lengthscales"),
        (cglb.RBF([1.0, 2.0]) * cglb.Constant(), "RBF has 2 lengthscales"),
    ],
)
def test_a_kernel_that_does_not_fit_the_columns_is_refused(kernel, words):
    X, y, _ = problems.data(n=5, d=D, m=2)
    with pytest.raises(ValueError, match=words):
        cglb.bounds.exact(cglb.GP(kernel), X, y)
    with pytest.raises(ValueError, match=words):
        cglb.inducing.greedy(kernel, X, 2)


def test_a_restricted_kernel_fits_data_with_more_columns():
    X, _, _ = problems.data(n=5, d=D, m=2)
    assert cglb.inducing.greedy(cglb.RBF([1.0, 2.0]).on([0, 2]), X, 2).shape == (2, D)


def test_a_direct_call_does_not_broadcast_columns(without_type_checks):
    """One column against two would broadcast to the wrong distance without a word."""
    with cglb.float64():
        X = jnp.ones((4, 2))
        with pytest.raises(ValueError, match="X1 has 1 columns, but X2 has 2"):
            cglb.RBF()(X[:, :1], X)
        with pytest.raises(ValueError, match="2 lengthscales, but the data has 1 columns"):
            cglb.RBF([1.0, 2.0])(X[:, :1], X[:, :1])
        with pytest.raises(ValueError, match="uses column 2, but the data has 2 columns"):
            cglb.RBF().on([2])(X, X)
