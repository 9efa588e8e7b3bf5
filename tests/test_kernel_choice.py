"""Kernels as people write them: by name, in their own units, by column, as scikit-learn's; gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import kernels as theirs
from sklearn.model_selection import GridSearchCV

import cglb
from cglb import GPRegressor, kernels
from cglb.core.parameters import parameter
from cglb.kernels.foreign import from_scikit_learn
from cglb.kernels.located import located

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)) * [30.0, 0.02] + [500.0, -1.0]
Y = np.sin(X[:, 0] / 20.0) + 20.0 * X[:, 1] + 0.1 * RNG.normal(size=40)
NEW = X[:6] + np.array([3.0, 0.004])
FRAME = pd.DataFrame(X, columns=["hour", "width"]).assign(colour=["red", "blue"] * 20)
SAMPLE = RNG.normal(size=(7, 2))


def make(kernel="rbf", **settings):
    return GPRegressor("exact", kernel, **{"max_steps": 1, **settings})


def matrix(kernel, inputs):
    """The kernel's matrix in float64."""
    with cglb.float64():
        held = jax.tree.map(jnp.asarray, kernel)
        return np.asarray(held(jnp.asarray(inputs), jnp.asarray(inputs)))


# ---- names ----


@pytest.mark.parametrize(
    ("name", "kind"),
    [("RBF", cglb.RBF), ("Periodic", cglb.Periodic), ("linear", cglb.Linear), (None, cglb.Matern32)],
)
def test_a_name_in_any_case_and_none_are_kernels(name, kind):
    model = make(name).fit(X, Y)
    assert type(model.gp_.kernel) is kind
    assert np.isfinite(model.predict(NEW)).all()


def test_what_is_no_kernel_is_refused():
    with pytest.raises(ValueError, match=r"kernel must be a name.*found 3\.0"):
        make(3.0).fit(X, Y)


# ---- arithmetic ----


def test_numbers_powers_and_sum_make_kernels():
    k = cglb.RBF([1.0, 2.0], 1.5)
    other = cglb.Linear(0.3)
    K, L = matrix(k, SAMPLE), matrix(other, SAMPLE)
    for kernel, expected in [
        (k + 1.0, K + 1.0),
        (1.0 + k, K + 1.0),
        (k**2, K**2),
        (2.0 * k, 2.0 * K),
        (sum([k, other]), K + L),
    ]:
        np.testing.assert_allclose(matrix(kernel, SAMPLE), expected, rtol=1e-12)


def test_a_kernel_prints_its_values():
    assert repr(cglb.RBF([0.8, 1.3], 1.2)) == "RBF(lengthscale=[0.8, 1.3], variance=1.2)"
    assert "columns=('hour',)" in repr(cglb.RBF(2.0).on("hour"))


# ---- units ----


@pytest.mark.parametrize(
    "kernel",
    [
        cglb.RBF(3.0, 1.3),
        cglb.Matern32([30.0, 0.01]),
        cglb.Periodic(0.7, [24.0, 0.1]),
        cglb.Linear([1e-4, 30.0]),
        cglb.RationalQuadratic([20.0, 0.02], alpha=0.6) + 2.0,
        cglb.RBF(40.0).on([0]) * cglb.Matern52(0.02).on([1]),
        (0.5 * cglb.RBF([20.0, 0.03])) ** 2,
    ],
    ids=repr,
)
def test_a_rescaled_kernel_is_the_same_function_of_the_same_inputs(kernel):
    units = np.array([30.0, 0.02])
    inside = X - X.mean(axis=0)
    rescaled = matrix(kernel.rescaled(units), inside / units)
    np.testing.assert_allclose(rescaled, matrix(kernel, inside), rtol=1e-9, atol=1e-12)


def test_a_kernel_in_the_users_units_is_the_one_in_standardised_units():
    lengthscale = np.array([25.0, 0.03])
    model = make(cglb.RBF(lengthscale), kernel_units="data").fit(X, Y)
    same = make(cglb.RBF(lengthscale / X.std(axis=0))).fit(X, Y)
    np.testing.assert_allclose(model.predict(NEW), same.predict(NEW), rtol=1e-9)
    learned = model.gp_.kernel.lengthscale * model.X_scale_
    np.testing.assert_allclose(model.kernel_.lengthscale, learned, rtol=1e-12)


def test_other_units_and_kernels_without_units_are_refused():
    with pytest.raises(ValueError, match="kernel_units must be one of standardised, data"):
        make(kernel_units="metres").fit(X, Y)

    class Unitless(cglb.Kernel, known_as="unitless"):
        factor: Any = parameter(1.0)

        def between(self, F1, F2):
            return self.factor * (F1 @ F2.T)

        def diag(self, X):
            return self.factor * (X * X).sum(axis=1)

    with pytest.raises(ValueError, match=r"Unitless does not say how.*rescaled"):
        make(Unitless(), kernel_units="data").fit(X, Y)
    model = make(Unitless()).fit(X, Y)
    assert not hasattr(model, "kernel_")
    assert "Gaussian process on 40 rows" in model._html_repr()


# ---- columns by name ----


def test_columns_by_name_are_columns_by_number():
    by_name = cglb.RBF(0.7).on("width") + cglb.Matern32(2.0).on(["hour"])
    by_number = cglb.RBF(0.7).on([1]) + cglb.Matern32(2.0).on([0])
    frame = FRAME[["hour", "width"]]
    expected = make(by_number).fit(X, Y).predict(NEW)
    model = make(by_name).fit(frame, Y)
    np.testing.assert_allclose(model.predict(pd.DataFrame(NEW, columns=frame.columns)), expected)


def test_a_text_column_stands_for_all_that_it_becomes(tmp_path):
    kernel = cglb.RBF([1.0, 2.0, 3.0]) + cglb.Matern12(2.0).on("colour")
    model = make(kernel).fit(FRAME, Y)
    found = model.gp_.kernel
    assert found.left.lengthscale.shape == (4,)
    assert found.right.columns == (2, 3)
    model.save(tmp_path / "model")
    again = GPRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(FRAME), model.predict(FRAME))
    assert again.kernel.right.columns == ("colour",)


def test_per_column_values_follow_their_column():
    kernel = located(cglb.RBF([1.0, 2.0, 3.0]).on(["c", "a", "b"]), ["a", "b", "c"], [[0], [1, 2], [3]])
    assert kernel.columns == (3, 0, 1, 2)
    np.testing.assert_array_equal(kernel.kernel.lengthscale, [1.0, 2.0, 3.0, 3.0])


@pytest.mark.parametrize(
    ("kernel", "table", "words"),
    [
        (cglb.RBF().on("depth"), FRAME, "column 'depth', which is not there.*'hour'"),
        (cglb.RBF().on([7]), FRAME, "column 7, but the data has 3"),
        (cglb.RBF().on("hour"), X, "named 'hour', but an array has no names"),
        (cglb.RBF().on("same"), FRAME.assign(same=1.0), "'same', which is constant"),
    ],
)
def test_a_column_that_is_not_there_is_named(kernel, table, words):
    with pytest.raises(ValueError, match=words):
        make(kernel).fit(table, Y)


# ---- parameters by name ----


def test_parameters_of_the_kernel_are_set_by_name():
    model = make(cglb.RBF(2.0) + cglb.Linear(0.3)).set_params(kernel__left__lengthscale=0.5, max_steps=2)
    assert model.kernel.left.lengthscale == 0.5
    assert model.kernel.right.variance == 0.3
    assert model.max_steps == 2
    assert model.get_params()["kernel__left__lengthscale"] == 0.5
    assert clone(model).get_params()["kernel__left__lengthscale"] == 0.5
    assert make("rbf").set_params(kernel__lengthscale=0.25).kernel.lengthscale == 0.25
    assert make(theirs.RBF()).set_params(kernel__length_scale=0.25).kernel.length_scale == 0.25


def test_a_parameter_that_is_not_there_or_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"RBF has no parameter 'width'. It has: lengthscale, variance"):
        make(cglb.RBF()).set_params(kernel__width=1.0)
    with pytest.raises(ValueError, match="lengthscale must be positive"):
        make(cglb.RBF()).set_params(kernel__lengthscale=-1.0)


def test_a_grid_search_goes_over_parameters_of_the_kernel():
    search = GridSearchCV(
        make(cglb.RBF(1.0), max_steps=1, schedule="direct"), {"kernel__lengthscale": [1e-3, 1.0]}, cv=2
    )
    assert search.fit(X, Y).best_params_ == {"kernel__lengthscale": 1.0}


# ---- scikit-learn's kernels ----


@pytest.mark.parametrize(
    "kernel",
    [
        theirs.RBF([0.5, 2.0]),
        theirs.Matern(1.3, nu=0.5),
        theirs.Matern([1.0, 3.0], nu=1.5),
        theirs.Matern(nu=2.5),
        theirs.RationalQuadratic(0.7, 1.4),
        theirs.DotProduct(1.5),
        theirs.ConstantKernel(2.0) * theirs.RBF() + theirs.ConstantKernel(0.5),
        theirs.RBF() * theirs.Matern(),
        theirs.RBF() ** 2,
    ],
    ids=repr,
)
def test_their_kernels_are_the_same_functions(kernel):
    found = matrix(from_scikit_learn(kernel, 2), SAMPLE)
    np.testing.assert_allclose(found, kernel(SAMPLE), rtol=1e-10, atol=1e-12)


def test_their_periodic_kernel_is_ours_on_one_column_and_refused_on_more():
    kernel, column = theirs.ExpSineSquared(0.7, 1.9), SAMPLE[:, :1]
    found = matrix(from_scikit_learn(kernel, 1), column)
    np.testing.assert_allclose(found, kernel(column), rtol=1e-9)
    with pytest.raises(ValueError, match=r"cglb.Periodic"):
        from_scikit_learn(kernel, 2)


def test_their_noise_is_left_out_of_a_sum_and_the_model_is_saved(tmp_path):
    model = make(theirs.RBF(1.0) + theirs.WhiteKernel(0.1)).fit(X, Y)
    np.testing.assert_array_equal(model.predict(NEW), make(cglb.RBF(1.0)).fit(X, Y).predict(NEW))
    model.save(tmp_path / "model")
    assert isinstance(GPRegressor.load(tmp_path / "model").kernel, cglb.RBF)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (theirs.WhiteKernel(), "leave it out"),
        (theirs.Matern(nu=0.8), "nu must be one of"),
        (theirs.PairwiseKernel(), "no counterpart"),
    ],
)
def test_their_kernels_without_a_counterpart_say_what_to_do(kernel, words):
    with pytest.raises(ValueError, match=words):
        make(kernel).fit(X, Y)


# ---- gradients ----


@functools.cache
def fitted(method):
    return GPRegressor(method, "rbf", num_inducing=12, max_steps=2, schedule="direct").fit(X, Y)


@pytest.mark.parametrize("method", ["cglb", "sgpr", "exact", "iterative"])
def test_gradients_are_slopes_in_the_users_units(method):
    model = fitted(method)
    mean, std = model.predict_gradient(NEW, return_std=True)
    np.testing.assert_array_equal(mean, model.predict_gradient(NEW))
    for column, step in enumerate([1e-3, 1e-6]):
        move = np.eye(2)[column] * step
        above, below = (
            model.predict_f(NEW + sign * move, return_std=True, variance="sgpr") for sign in (1.0, -1.0)
        )
        slopes = [(a - b) / (2.0 * step) for a, b in zip(above, below, strict=True)]
        np.testing.assert_allclose(mean[:, column], slopes[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(std[:, column], slopes[1], rtol=1e-3, atol=1e-4)


def test_text_has_no_gradient_and_constants_have_0():
    model = make().fit(FRAME.assign(same=1.0), Y)
    found = model.predict_gradient(FRAME.assign(same=1.0)[:3])
    assert found.shape == (3, 4)
    assert np.isnan(found[:, 2]).all()
    assert (found[:, 3] == 0.0).all()
    assert np.isfinite(found[:, :2]).all()


def test_every_kernel_has_a_name():
    assert {"RBF", "Periodic", "Linear"} <= set(kernels.names())
