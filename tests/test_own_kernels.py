"""Kernels defined outside the package: found by name, measured for relevance, used by every bound."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import cglb
from cglb import kernels
from cglb.bounds.logdet.chain import Chain
from cglb.core.parameters import parameter
from cglb.kernels.base import find_origin, origin
from cglb.kernels.probe import probe_relevance
from cglb.linalg.blocks import find_blocks
from cglb.posteriors import variance

D = 3
LENGTHSCALE = np.array([0.3, 2.0, 0.9])


class Bell(cglb.Kernel):
    """The RBF kernel, written as a user would: by differences."""

    width: Any = parameter(1.0)

    def between(self, X1, X2):
        scaled = (X1[:, None, :] - X2[None, :, :]) / self.width[None, None, :]
        return jnp.exp(-0.5 * jnp.sum(scaled**2, axis=2))

    def diag(self, X):
        return jnp.ones(X.shape[0], dtype=X.dtype)


class Exponential(Bell):
    """Matérn-1/2, whose slope at 0 does not exist."""

    def between(self, X1, X2):
        scaled = (X1[:, None, :] - X2[None, :, :]) / self.width[None, None, :]
        return jnp.exp(-jnp.sqrt(jnp.sum(scaled**2, axis=2)))


class Warped(cglb.Kernel):
    """Not stationary, with a variance that grows, and blind to all columns but the first and last."""

    width: Any = parameter(0.7)

    def features(self, X, origin):
        return jnp.stack([jnp.tanh(X[:, 0]) / self.width, X[:, -1]], axis=1), 1.0 + X[:, 0] ** 2

    def between(self, F1, F2):
        r2 = jnp.sum((F1[0][:, None, :] - F2[0][None, :, :]) ** 2, axis=2)
        return F1[1][:, None] * F2[1][None, :] * jnp.exp(-0.5 * r2)

    def diag(self, X):
        return (1.0 + X[:, 0] ** 2) ** 2


# ---- the registry ----


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rbf", cglb.RBF),
        ("RBF", cglb.RBF),
        ("matern32", cglb.Matern32),
        ("Matern32", cglb.Matern32),
        ("matern_32", cglb.Matern32),
        ("rational_quadratic", cglb.RationalQuadratic),
        ("RationalQuadratic", cglb.RationalQuadratic),
        ("warped", Warped),
    ],
)
def test_a_name_is_found_in_any_case_and_with_or_without_underscores(name, kind):
    assert kernels.find(name) is kind


def test_a_listed_name_stands_for_a_kernel_and_a_combination_is_not_listed():
    for name in kernels.names():
        assert isinstance(kernels.find(name).default(3), cglb.Kernel)
    assert {"Warped", "RBF"} <= set(kernels.names())
    assert not {"Sum", "Product", "Scaled", "Power", "Columns"} & set(kernels.names())


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=r"no kernel called 'rfb'\. There are: .*Matern12.*RBF.*Warped"):
        kernels.find("rfb")
    with pytest.raises(ValueError, match="no kernel called 'stationary'"):  # abstract
        kernels.find("stationary")


def define(module, name="Redefined", **options):
    """A class as if it were defined in a module of that name."""
    return types.new_class(
        name,
        (Bell,),
        options,
        lambda body: body.update({"__module__": module, "__qualname__": name}),
    )


def test_a_class_defined_again_takes_the_place_of_the_old_one():
    first, second = define("notebook"), define("notebook")
    assert kernels.find("redefined") is second is not first
    assert find_origin(*origin(second)) is second


def test_two_kernels_of_one_name_are_an_error_only_when_the_name_is_asked_for():
    one, other = define("here", "Twice"), define("there", "Twice")
    assert find_origin("here", "Twice") is one
    assert find_origin("there", "Twice") is other
    with pytest.raises(ValueError, match=r"'twice' means more than one.*here\.Twice, there\.Twice"):
        kernels.find("twice")
    third = define("elsewhere", "Twice", known_as="thrice")
    assert kernels.find("thrice") is third


def test_a_name_alone_makes_a_kernel_for_the_columns():
    for kind in (cglb.RBF, cglb.Matern12, cglb.RationalQuadratic, cglb.Periodic):
        made = kind.default(D)
        assert type(made) is kind
        assert made.lengthscale.shape == (D,)
    assert cglb.Linear.default(D).variance.shape == (D,)
    assert cglb.Constant.default(D).variance.shape == ()
    assert type(Warped.default(D)) is Warped  # its fields all have defaults


@pytest.mark.parametrize("name", ["sum", "product", "scaled", "columns", "power"])
def test_a_combination_has_no_default_and_says_so(name):
    with pytest.raises(ValueError, match=r"cannot be made from its name alone.*pass that kernel"):
        kernels.find(name).default(D)


@pytest.mark.parametrize("name", ["warped", "linear", "RBF"])
def test_the_regressor_takes_a_kernel_by_name(name):
    X, y, _ = problems.data(n=30, d=2)
    model = cglb.GPRegressor("exact", name, max_steps=1).fit(X, y)
    assert type(model.gp_.kernel) is kernels.find(name)


# ---- relevance ----


def test_kernels_know_their_relevance():
    by_column = cglb.RBF(LENGTHSCALE)
    np.testing.assert_allclose(by_column.relevance(D), 1.0 / LENGTHSCALE)
    np.testing.assert_allclose(cglb.Matern12(0.5).relevance(D), [2.0] * D)
    np.testing.assert_allclose(cglb.Linear([1.0, 4.0, 9.0]).relevance(D), [1.0, 2.0, 3.0])
    np.testing.assert_allclose(cglb.Periodic([1.0, 2.0, 4.0]).relevance(D), [1.0, 0.5, 0.25])
    np.testing.assert_allclose(cglb.RBF(0.5).on([2, 0]).relevance(D), [2.0, 0.0, 2.0])
    np.testing.assert_allclose((3.0 * by_column**2 + 1.0).relevance(D), 1.0 / LENGTHSCALE)
    product = cglb.RBF(0.5).on([0]) * cglb.RBF(1.0)
    np.testing.assert_allclose(product.relevance(D), [2.0, 1.0, 1.0])


def test_scaled_relevance_has_its_largest_entry_at_1_among_columns_that_vary():
    found = kernels.relevance(cglb.RBF([0.1, 0.5, 1.0]), np.array([False, True, True]))
    np.testing.assert_allclose(found, [0.0, 1.0, 0.5])
    np.testing.assert_array_equal(kernels.relevance(cglb.Constant(), np.ones(2, dtype=bool)), [0.0, 0.0])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_a_copy_of_a_stationary_kernel_has_its_relevance(scale):
    """Exactly that of an RBF; for another function of the distance the same multiple in each column."""
    np.testing.assert_allclose(
        Bell(scale * LENGTHSCALE).relevance(D), 1.0 / (scale * LENGTHSCALE), rtol=1e-9
    )
    ratio = Exponential(scale * LENGTHSCALE).relevance(D) * (scale * LENGTHSCALE)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-9)
    assert ratio[0] > 1.0  # it moves faster at small distances


PROBED = [
    cglb.Matern32(LENGTHSCALE, 1e-3),
    cglb.Linear([1.0, 4.0, 9.0]),
    cglb.RBF(0.7).on([1]),
    cglb.Constant(),
]


@pytest.mark.parametrize("kernel", PROBED, ids=lambda kernel: type(kernel).__name__)
def test_the_probe_agrees_with_cglbs_own_kernels_up_to_a_factor(kernel):
    found, stated = probe_relevance(kernel, D), kernel.relevance(D)
    np.testing.assert_array_equal(found == 0.0, stated == 0.0)
    np.testing.assert_allclose(found * stated.max(), stated * found.max(), rtol=1e-9)


def test_a_column_that_is_ignored_has_relevance_0_and_every_other_more():
    found = Warped().relevance(4)
    np.testing.assert_array_equal(found == 0.0, [False, True, True, False])
    assert np.isfinite(found).all()
    assert Warped(0.1).relevance(4)[0] > 2.0 * found[0]


def test_a_column_with_a_weak_part_in_a_sum_still_counts():
    class Weak(Bell):
        def between(self, X1, X2):
            first, second = (super(Weak, self).between(X1[:, [j]], X2[:, [j]]) for j in (0, 1))
            return first + 1e-3 * second

        def diag(self, X):
            return 1.001 * jnp.ones(X.shape[0], dtype=X.dtype)

    strong, weak = Weak([1.0]).relevance(2)
    assert 0.0 < weak < strong


def test_where_nothing_can_be_measured_all_columns_count_the_same():
    class Nowhere(Bell):
        def diag(self, X):
            return jnp.full(X.shape[:1], jnp.nan, dtype=X.dtype)

    np.testing.assert_array_equal(Nowhere(LENGTHSCALE).relevance(D), np.ones(D))


# ---- bounds and variances of kernels of one's own ----


@pytest.fixture(scope="module")
def data():
    """Columns of very different lengthscales: neighbours in the wrong scaling would be others."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, D))
    y = np.sin(X[:, 0] / LENGTHSCALE[0]) + 0.1 * rng.normal(size=150)
    return X, y, X[::10] + 0.01


def test_blocks_and_neighbours_are_those_of_cglbs_kernel(data):
    X, _, _ = data
    with cglb.float64():
        found, wanted = (
            jax.tree.map(np.asarray, find_blocks(kernel, jnp.asarray(X), 16, 12))
            for kernel in (Bell(LENGTHSCALE), cglb.RBF(LENGTHSCALE))
        )
    np.testing.assert_array_equal(found.rows, wanted.rows)
    for mine, its in zip(found.neighbours, wanted.neighbours, strict=True):
        assert set(mine) == set(its)


def test_local_variance_and_the_chain_are_those_of_cglbs_kernel(data):
    X, y, Z = data
    own, its = cglb.GP(Bell(LENGTHSCALE), 0.01), cglb.GP(cglb.RBF(LENGTHSCALE), 0.01)
    rows = np.random.default_rng(1).normal(size=(20, D))
    local = [variance.local(gp, X, rows, neighbours=8) for gp in (own, its)]
    np.testing.assert_allclose(*local, rtol=1e-8)
    chain = Chain(16, 12)
    found, wanted = (cglb.bounds.sgpr(gp, X, y, Z, logdet=chain) for gp in (own, its))
    np.testing.assert_allclose(found.logdet, wanted.logdet, rtol=1e-9)


def test_neighbours_do_not_depend_on_a_column_that_the_kernel_ignores(data):
    X, y, _ = data
    moved = X.copy()
    moved[:, 1] = 100.0 * np.random.default_rng(2).normal(size=len(X))
    gp = cglb.GP(Warped(), 0.01)
    rows = np.random.default_rng(1).normal(size=(20, D))
    one, other = (variance.local(gp, inputs, rows, neighbours=8) for inputs in (X, moved))
    np.testing.assert_allclose(one, other, rtol=1e-12)
    # and they are near: 8 of 150 rows explain nearly all that is known, 8 rows at random do not
    exact = cglb.posteriors.exact(gp, X, y).variance(rows)
    prior = (1.0 + rows[:, 0] ** 2) ** 2
    at_random = cglb.posteriors.exact(gp, X[:8], y[:8]).variance(rows)
    assert np.median((one - exact) / prior) < 0.1 * np.median((at_random - exact) / prior)


def test_the_chain_of_a_kernel_of_ones_own_is_a_bound_and_far_tighter_than_none(data):
    X, y, Z = data
    gp = cglb.GP(Warped(), 0.01)
    exact = float(cglb.bounds.exact(gp, X, y).logdet)
    chain, trace = (
        exact - float(cglb.bounds.sgpr(gp, X, y, Z, logdet=logdet).logdet)
        for logdet in (Chain(16, 12), "trace")
    )
    assert 0.0 <= chain < 0.5 * trace
