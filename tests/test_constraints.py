"""Natural and free parameters: round trips, floors, names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import cglb

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


@given(first=powers, second=powers, variance=powers, noise=powers, mean=st.floats(-1e6, 1e6))
def test_natural_to_free_and_back_over_orders_of_magnitude(first, second, variance, noise, mean):
    gp = gp_of([first, second], variance, noise, mean)
    parameters = cglb.Parameters(gp_of([1.0, 1.0], 1.0, 1.0, 0.0))
    assert_same(parameters.unflatten(parameters.flatten(gp)), gp, rtol=1e-13)


@given(arrays(float, 8, elements=st.floats(-10.0, 1e3)))
def test_free_to_natural_and_back(free):
    parameters = cglb.Parameters(TEMPLATE)
    np.testing.assert_allclose(parameters.flatten(parameters.unflatten(free)), free, atol=1e-9)


@given(arrays(float, 8, elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_no_free_vector_goes_below_a_floor(free):
    parameters = cglb.Parameters(TEMPLATE, floor={"noise": 1e-4, "kernel": 1e-6})
    natural = parameters.natural(parameters.unflatten(free))
    assert np.isfinite(natural).all()
    assert (natural >= parameters.floors).all()
    assert natural[-1] == free[-1]  # the mean is free as it is


def test_names_are_in_the_order_of_the_values():
    parameters = cglb.Parameters(TEMPLATE)
    assert parameters.names == NAMES
    np.testing.assert_array_equal(parameters.natural(TEMPLATE), NATURAL)
    for number, name in enumerate(NAMES):
        free = np.array(parameters.flatten(TEMPLATE))
        free[number] += 0.1
        changed = parameters.natural(parameters.unflatten(free)) - NATURAL
        assert np.flatnonzero(np.abs(changed) > 1e-6).tolist() == [number], name


def test_one_floor_holds_for_every_positive_parameter():
    np.testing.assert_array_equal(cglb.Parameters(TEMPLATE, 1e-3).floors, [1e-3] * 7 + [-np.inf])
    np.testing.assert_array_equal(cglb.Parameters(TEMPLATE).floors, [1e-6] * 7 + [-np.inf])


def test_the_longest_name_sets_the_floor():
    floor = {"kernel": 1e-2, "kernel.left.lengthscale": 1e-3, "noise": 1e-4}
    found = cglb.Parameters(TEMPLATE, floor).floors
    np.testing.assert_array_equal(found, [1e-3, 1e-3, 1e-2, 1e-2, 1e-2, 1e-2, 1e-4, -np.inf])


def test_the_last_part_of_a_name_is_enough():
    found = cglb.Parameters(TEMPLATE, {"variance": 1e-2}).floors
    np.testing.assert_array_equal(found, [1e-6, 1e-6, 1e-2, 1e-6, 1e-2, 1e-6, 1e-6, -np.inf])


def test_fixed_parameters_keep_the_templates_value():
    parameters = cglb.Parameters(TEMPLATE, fixed=("noise", "kernel.right"))
    assert parameters.names == (*NAMES[:4], "mean")
    assert parameters.floors.shape == (5,)
    other = jax.tree.map(lambda leaf: leaf + 1.0, TEMPLATE)
    found = parameters.unflatten(parameters.flatten(other))
    assert found.noise == TEMPLATE.noise
    assert_same(found.kernel.right, TEMPLATE.kernel.right, rtol=0)
    assert_same(found.kernel.left, other.kernel.left, rtol=1e-13)


def test_everything_may_be_fixed():
    parameters = cglb.Parameters(TEMPLATE, fixed=("kernel", "noise", "mean"))
    assert parameters.names == ()
    assert parameters.floors.shape == parameters.natural(TEMPLATE).shape == (0,)
    assert_same(parameters.unflatten(parameters.flatten(TEMPLATE)), TEMPLATE, rtol=0)


@pytest.mark.parametrize("noise", [1e-4, 9e-5, 1e-9])
def test_a_value_at_or_below_the_floor_is_put_just_above_it(noise):
    gp = gp_of([1.0, 1.0], 1.0, noise, 0.0)
    parameters = cglb.Parameters(gp, floor=1e-4)
    found = parameters.unflatten(parameters.flatten(gp))
    assert 1e-4 <= found.noise <= 1e-4 * (1 + 1e-9)


def test_the_gradient_in_the_free_vector_is_the_logistic_function():
    parameters = cglb.Parameters(TEMPLATE)
    free = np.array([-40.0, -3.0, 0.0, 2.0, 5.0, 40.0, -1.0, 7.0])
    with cglb.float64():
        slope = jax.jit(jax.grad(lambda f: jnp.sum(parameters.natural(parameters.unflatten(f)))))(free)
    wanted = 1.0 / (1.0 + np.exp(-free))
    wanted[-1] = 1.0
    np.testing.assert_allclose(slope, wanted, rtol=1e-12)


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
        cglb.Parameters(TEMPLATE, **settings)


@pytest.mark.parametrize("size", [1, 7, 9])
def test_a_free_vector_of_another_length_is_refused(size):
    with pytest.raises(ValueError, match=f"free must have 8 entries, found {size}"):
        cglb.Parameters(TEMPLATE).unflatten(np.zeros(size))


@pytest.mark.parametrize(
    "other",
    [cglb.GP(cglb.RBF([1.0, 2.0, 3.0])), cglb.GP(cglb.RBF(1.0)), cglb.GP(cglb.Matern32([1.0, 2.0]))],
)
def test_a_model_of_another_structure_is_refused(other):
    parameters = cglb.Parameters(cglb.GP(cglb.RBF([1.0, 2.0])))
    with pytest.raises(ValueError, match="gp must be built like the template"):
        parameters.flatten(other)
    with pytest.raises(ValueError, match="gp must be built like the template"):
        parameters.natural(other)
