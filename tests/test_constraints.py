"""Natural and free parameters: round trips, floors, names."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import cglb
from cglb.training.free import LOG, SOFTPLUS, Parameters

TEMPLATE = cglb.GP(cglb.RationalQuadratic([1.0, 2.0], 1.5, 0.7) + 0.5 * cglb.Constant(0.3), 0.2, -0.4)
NAMES = (
    "kernel.left.lengthscale[0]",
    "kernel.left.lengthscale[1]",
    "kernel.left.variance",
    "kernel.left.alpha",
    "kernel.right.kernel.variance",
    "kernel.right.factor",
    "noise",
    "mean",
)
NATURAL = (1.0, 2.0, 1.5, 0.7, 0.3, 0.5, 0.2, -0.4)


def gp_of(lengthscale, variance, noise, mean):
    return cglb.GP(cglb.Matern32(lengthscale, variance), noise, mean)


def assert_same(gp, other, **room):
    assert jax.tree.structure(gp) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **room), gp, other)


powers = st.floats(-5.0, 8.0).map(lambda power: 10.0**power)


transforms = pytest.mark.parametrize("transform", [SOFTPLUS, LOG], ids=lambda t: t.name)


@transforms
@given(first=powers, second=powers, variance=powers, noise=powers, mean=st.floats(-1e6, 1e6))
def test_natural_to_free_and_back_over_orders_of_magnitude(
    transform, first, second, variance, noise, mean
):
    gp = gp_of([first, second], variance, noise, mean)
    parameters = Parameters(gp_of([1.0, 1.0], 1.0, 1.0, 0.0), transform=transform)
    # exp(t) passes on the rounding of t = log x, at most 20 here
    assert_same(parameters.unflatten(parameters.flatten(gp)), gp, rtol=1e-13)


@given(arrays(float, 8, elements=st.floats(-10.0, 1e3)))
def test_free_to_natural_and_back(free):
    parameters = Parameters(TEMPLATE)
    np.testing.assert_allclose(parameters.flatten(parameters.unflatten(free)), free, atol=1e-9)


@given(arrays(float, 8, elements=st.floats(-10.0, 700.0)))
def test_logarithms_to_natural_and_back(free):
    parameters = Parameters(TEMPLATE, transform=LOG)
    np.testing.assert_allclose(parameters.flatten(parameters.unflatten(free)), free, atol=1e-9)


def test_logarithms_are_logarithms_above_the_floor():
    parameters = Parameters(TEMPLATE, floor=1e-3, transform=LOG)
    wanted = [*np.log(np.array(NATURAL[:-1]) - 1e-3), NATURAL[-1]]
    np.testing.assert_allclose(parameters.flatten(TEMPLATE), wanted, rtol=1e-13)


@given(arrays(float, 8, elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_no_logarithm_goes_below_a_floor(free):
    parameters = Parameters(TEMPLATE, floor={"noise": 1e-4, "kernel": 1e-6}, transform=LOG)
    natural = parameters.natural(parameters.unflatten(free))
    assert (natural >= parameters.floors).all()
    assert np.isfinite(natural[:-1][free[:-1] < 700.0]).all()


@given(arrays(float, 8, elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_no_free_vector_goes_below_a_floor(free):
    parameters = Parameters(TEMPLATE, floor={"noise": 1e-4, "kernel": 1e-6})
    natural = parameters.natural(parameters.unflatten(free))
    assert np.isfinite(natural).all()
    assert (natural >= parameters.floors).all()
    assert natural[-1] == free[-1]  # the mean is free as it is


def test_names_are_in_the_order_of_the_values():
    parameters = Parameters(TEMPLATE)
    assert parameters.names == NAMES
    np.testing.assert_array_equal(parameters.natural(TEMPLATE), NATURAL)
    for number, name in enumerate(NAMES):
        free = np.array(parameters.flatten(TEMPLATE))
        free[number] += 0.1
        changed = parameters.natural(parameters.unflatten(free)) - NATURAL
        assert np.flatnonzero(np.abs(changed) > 1e-6).tolist() == [number], name


def test_one_floor_holds_for_every_positive_parameter():
    np.testing.assert_array_equal(Parameters(TEMPLATE, 1e-3).floors, [1e-3] * 7 + [-np.inf])
    np.testing.assert_array_equal(Parameters(TEMPLATE).floors, [1e-6] * 7 + [-np.inf])


def test_the_longest_name_sets_the_floor():
    floor = {"kernel": 1e-2, "kernel.left.lengthscale": 1e-3, "noise": 1e-4}
    found = Parameters(TEMPLATE, floor).floors
    np.testing.assert_array_equal(found, [1e-3, 1e-3, 1e-2, 1e-2, 1e-2, 1e-2, 1e-4, -np.inf])


def test_the_last_part_of_a_name_is_enough():
    found = Parameters(TEMPLATE, {"variance": 1e-2}).floors
    np.testing.assert_array_equal(found, [1e-6, 1e-6, 1e-2, 1e-6, 1e-2, 1e-6, 1e-6, -np.inf])


def test_fixed_parameters_keep_the_templates_value():
    parameters = Parameters(TEMPLATE, fixed=("noise", "kernel.right"))
    assert parameters.names == (*NAMES[:4], "mean")
    assert parameters.floors.shape == (5,)
    other = jax.tree.map(lambda leaf: leaf + 1.0, TEMPLATE)
    found = parameters.unflatten(parameters.flatten(other))
    assert found.noise == TEMPLATE.noise
    assert_same(found.kernel.right, TEMPLATE.kernel.right, rtol=0)
    assert_same(found.kernel.left, other.kernel.left, rtol=1e-13)


def test_everything_may_be_fixed():
    parameters = Parameters(TEMPLATE, fixed=("kernel", "noise", "mean"))
    assert parameters.names == ()
    assert parameters.floors.shape == parameters.natural(TEMPLATE).shape == (0,)
    assert_same(parameters.unflatten(parameters.flatten(TEMPLATE)), TEMPLATE, rtol=0)


@transforms
@pytest.mark.parametrize("noise", [1e-4, 9e-5, 1e-9])
def test_a_value_at_or_below_the_floor_is_put_just_above_it(noise, transform):
    gp = gp_of([1.0, 1.0], 1.0, noise, 0.0)
    parameters = Parameters(gp, floor=1e-4, transform=transform)
    found = parameters.unflatten(parameters.flatten(gp))
    assert 1e-4 <= found.noise <= 1e-4 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("transform", "derivative"), [(SOFTPLUS, lambda t: 1.0 / (1.0 + np.exp(-t))), (LOG, np.exp)]
)
def test_the_gradient_in_the_free_vector_is_that_of_the_transform(transform, derivative):
    parameters = Parameters(TEMPLATE, transform=transform)
    free = np.array([-40.0, -3.0, 0.0, 2.0, 5.0, 40.0, -1.0, 7.0])
    with cglb.float64():
        slope = jax.jit(jax.grad(lambda f: jnp.sum(parameters.natural(parameters.unflatten(f)))))(free)
    wanted = derivative(free)
    wanted[-1] = 1.0
    np.testing.assert_allclose(slope, wanted, rtol=1e-12)


# ---- kernels that hold several kernels ----


class Mixture(cglb.Kernel):
    """A sum of any number of kernels, with weights, an offset of either sign and kernels by name."""

    parts: tuple[cglb.Kernel, ...]
    weights: list
    named: dict
    offset: Any = cglb.core.parameters.parameter(0.0, real=True)

    def between(self, X1, X2):
        weighted = zip(self.weights, self.parts, strict=True)
        total = sum(weight * part(X1, X2) for weight, part in weighted)
        return total + sum(part(X1, X2) for part in self.named.values()) + self.offset**2

    def diag(self, X):
        weighted = zip(self.weights, self.parts, strict=True)
        total = sum(weight * part.diag(X) for weight, part in weighted)
        return total + sum(part.diag(X) for part in self.named.values()) + self.offset**2


MIXTURE = Mixture(
    (cglb.RBF([1.0, 2.0], 1.5), 0.7 * cglb.Linear()),
    [np.array(0.4), np.array(0.6)],
    {"rough": cglb.Matern12(0.8)},
    -0.3,
)
MIXTURE_NAMES = (
    "kernel.parts[0].lengthscale[0]",
    "kernel.parts[0].lengthscale[1]",
    "kernel.parts[0].variance",
    "kernel.parts[1].kernel.variance",
    "kernel.parts[1].factor",
    "kernel.weights[0]",
    "kernel.weights[1]",
    "kernel.named[rough].lengthscale",
    "kernel.named[rough].variance",
    "kernel.offset",
    "noise",
    "mean",
)


def test_parts_in_tuples_lists_and_dictionaries_have_names():
    gp = cglb.GP(MIXTURE, 0.2, 0.1)
    parameters = Parameters(gp)
    assert parameters.names == MIXTURE_NAMES
    assert_same(parameters.unflatten(parameters.flatten(gp)), gp, rtol=1e-13)
    assert np.isinf(parameters.floors).nonzero()[0].tolist() == [9, 11]  # the marks of real parameters


@pytest.mark.parametrize(
    ("name", "matched"),
    [
        ("kernel.parts", MIXTURE_NAMES[:5]),
        ("kernel.parts[0]", MIXTURE_NAMES[:3]),
        ("kernel.parts[0].lengthscale", MIXTURE_NAMES[:2]),
        ("parts[1].factor", MIXTURE_NAMES[4:5]),
        ("weights", MIXTURE_NAMES[5:7]),
        ("weights[1]", MIXTURE_NAMES[6:7]),
        ("kernel.named[rough]", MIXTURE_NAMES[7:9]),
    ],
)
def test_parts_can_be_fixed_by_name(name, matched):
    parameters = Parameters(cglb.GP(MIXTURE), fixed=(name,))
    assert parameters.names == tuple(n for n in MIXTURE_NAMES if n not in matched)


def test_a_model_of_such_a_kernel_is_trained():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=30)
    fit = cglb.train(cglb.GP(MIXTURE, 0.2), X, y, cglb.Exact(), max_steps=3)
    assert fit.history[-1]["bound"] > cglb.bounds.exact(cglb.GP(MIXTURE, 0.2), X, y).value
    assert set(fit.history[-1]["parameters"]) == set(MIXTURE_NAMES)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"floor": -1e-6}, "floor must be finite and at least 0, found -1e-06"),
        ({"floor": np.nan}, "floor must be finite"),
        ({"floor": {"noise": np.inf}}, "floor must be finite"),
        ({"floor": {"nois": 1e-4}}, "called 'nois'. There are: .*kernel.right.factor, noise, mean"),
        ({"fixed": ("lengthscales",)}, "called 'lengthscales'"),
        ({"fixed": ("kernel.left.lengthscale[0]",)}, r"called 'kernel.left.lengthscale\[0\]'"),
    ],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        Parameters(TEMPLATE, **settings)


@pytest.mark.parametrize("size", [1, 7, 9])
def test_a_free_vector_of_another_length_is_refused(size):
    with pytest.raises(ValueError, match=f"free must have 8 entries, found {size}"):
        Parameters(TEMPLATE).unflatten(np.zeros(size))


@pytest.mark.parametrize(
    "other",
    [cglb.GP(cglb.RBF([1.0, 2.0, 3.0])), cglb.GP(cglb.RBF(1.0)), cglb.GP(cglb.Matern32([1.0, 2.0]))],
)
def test_a_model_of_another_structure_is_refused(other):
    parameters = Parameters(cglb.GP(cglb.RBF([1.0, 2.0])))
    with pytest.raises(ValueError, match="gp must be built like the template"):
        parameters.flatten(other)
    with pytest.raises(ValueError, match="gp must be built like the template"):
        parameters.natural(other)
