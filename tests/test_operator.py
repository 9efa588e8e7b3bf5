"""The tiled operator against dense arrays: ragged tiles, gradients, precision, lanes, budgets."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import cglb
from cglb import plan, tiles
from cglb.operator import STORE_AFTER, StoredOnUse

N, D, T, S = 23, 2, 3, 11
TILES = [1, 7, N, 50]  # one row; ragged; exactly n; more than n
GP = cglb.GP(cglb.Matern32([0.7, 1.6], 1.3), 0.2)
# every way a kernel can reach its inputs: distances, columns, a diagonal that depends on x
COMPOSITE = cglb.GP(
    0.5 * cglb.RBF([0.8, 1.1])
    + cglb.Linear([0.5, 1.0]) * cglb.Matern12(1.2).on([1])
    + cglb.Constant(0.3),
    0.2,
)


def arrays(seed=0):
    """X with a row twice in one tile of 7 and once more in another, V, X_star."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D))
    X[3] = X[1]
    X[18] = X[1]
    return X, rng.normal(size=(N, T)), rng.normal(size=(S, D))


@pytest.fixture(autouse=True)
def scope():
    with cglb.float64():
        yield


def dense(gp, X):
    """K̂ with an exact diagonal, differentiable."""
    eye = jnp.eye(X.shape[0])
    K = jnp.where(eye > 0, gp.kernel.diag(X)[:, None], gp.kernel(X, X))
    return K + gp.noise * eye


@jax.jit
def dense_bilinear_gradient(gp, X, A, B):
    """Gradient of Σ AᵀK̂B in (gp, X) by plain autodiff."""
    return jax.grad(lambda gp, X: jnp.sum(A * (dense(gp, X) @ B)), argnums=(0, 1))(gp, X)


@pytest.mark.parametrize("tile", TILES)
def test_products_are_those_of_the_matrix_for_any_tile(tile):
    X, V, X_star = arrays()
    K_hat = problems.dense(GP, X)
    operator = cglb.kernel_operator(GP, X, tile=tile)
    assert operator.n == N
    np.testing.assert_allclose(operator @ jnp.asarray(V), K_hat @ V, atol=1e-12)
    # X_star beside X in one dense matrix
    K_star = problems.dense(GP, np.concatenate([X_star, X]))[:S, S:]
    found = operator.cross(jnp.asarray(X_star), jnp.asarray(V))
    np.testing.assert_allclose(found, K_star @ V, atol=1e-12)


def test_one_vector_is_a_column():
    X, V, X_star = arrays()
    V, X_star = jnp.asarray(V), jnp.asarray(X_star)
    operator = cglb.kernel_operator(GP, X, tile=7)
    found, wanted = operator @ V[:, 0], (operator @ V)[:, 0]
    assert found.shape == (N,)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    found, wanted = operator.cross(X_star, V[:, 0]), operator.cross(X_star, V)[:, 0]
    assert found.shape == (S,)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    assert_bilinear_gradient(operator, GP, X, V[:, 0], V[:, 1])


@pytest.mark.parametrize("tile", TILES)
def test_bilinear_gradients_are_those_of_the_matrix_for_any_tile(tile):
    X, V, _ = arrays()
    V = jnp.asarray(V)
    assert_bilinear_gradient(cglb.kernel_operator(GP, X, tile=tile), GP, X, V, V[::-1])


def assert_bilinear_gradient(operator, gp, X, A, B, **room):
    kernel_bar, noise_bar, X_bar = operator.bilinear_gradient(A, B)
    columns = (A, B) if A.ndim == 2 else (A[:, None], B[:, None])
    gp_ref, X_ref = dense_bilinear_gradient(jax.tree.map(jnp.asarray, gp), jnp.asarray(X), *columns)
    room = {"rtol": 1e-9, "atol": 1e-9} | room
    found, wanted = (kernel_bar, noise_bar, X_bar), (gp_ref.kernel, gp_ref.noise, X_ref)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **room), found, wanted)


def test_a_kernel_of_every_kind_in_ragged_tiles_with_coincident_rows():
    X, V, _ = arrays()
    K_hat = problems.dense(COMPOSITE, X)
    operator = cglb.kernel_operator(COMPOSITE, X, tile=7)
    V = jnp.asarray(V)
    # Matérn-1/2 feels the root of the rounding of r² where rows coincide
    np.testing.assert_allclose(operator @ V, K_hat @ np.asarray(V), atol=1e-6)
    np.testing.assert_allclose(operator.diagonal(), np.diag(K_hat), rtol=1e-14)
    np.testing.assert_allclose(operator.dense(), K_hat, atol=1e-6)
    assert_bilinear_gradient(operator, COMPOSITE, X, V, V[::-1], rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def reverse():
    """Gradients of a curved function of K̂V and of K(X_star, X)V: the package's and the dense one."""
    X, V, X_star = arrays()

    def tiled(gp, X, V, X_star):
        operator = cglb.kernel_operator(gp, X, tile=7)
        return jnp.sum(jnp.sin(operator @ V)) + jnp.sum(jnp.cos(operator.cross(X_star, V)))

    def plain(gp, X, V, X_star):
        cross = gp.kernel(X_star, X) @ V
        return jnp.sum(jnp.sin(dense(gp, X) @ V)) + jnp.sum(jnp.cos(cross))

    with cglb.float64():
        arguments = jax.tree.map(jnp.asarray, (GP, X, V, X_star))
        everything = (0, 1, 2, 3)
        eager = jax.grad(tiled, argnums=everything)(*arguments)
        traced = jax.jit(jax.grad(tiled, argnums=everything))(*arguments)
        wanted = jax.jit(jax.grad(plain, argnums=everything))(*arguments)
        return eager, traced, wanted


@pytest.mark.parametrize("number", range(4), ids=["gp", "X", "V", "X_star"])
def test_reverse_mode_through_products_agrees_with_dense_autodiff(reverse, number):
    eager, traced, wanted = (gradients[number] for gradients in reverse)
    for found in (eager, traced):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10), found, wanted)


@pytest.mark.parametrize(("lanes", "part"), [(1, 4096), (4, 4096), (2, 1)])
def test_lanes_and_parts_do_not_show(monkeypatch, lanes, part):
    """Six pairs of blocks: with four lanes two visit the empty block; two lanes with parts of one tile
    take three turns each."""
    X, V, _ = arrays()
    V = jnp.asarray(V)
    monkeypatch.setattr(tiles, "lane_count", lambda *_: lanes)
    monkeypatch.setattr(plan, "TILES_A_PART", part)
    operator = cglb.kernel_operator(GP, X, tile=7)
    np.testing.assert_allclose(operator @ V, problems.dense(GP, X) @ np.asarray(V), atol=1e-12)
    assert_bilinear_gradient(operator, GP, X, V, V[::-1])


def test_eager_traced_and_mapped_products_agree():
    X, V, _ = arrays()
    V = jnp.asarray(V)
    operator = cglb.kernel_operator(GP, X, tile=7)
    eager = operator @ V
    traced = jax.jit(lambda operator, V: operator @ V)(operator, V)
    mapped = jax.vmap(lambda v: operator @ v, in_axes=1, out_axes=1)(V)
    np.testing.assert_allclose(traced, eager, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(mapped, eager, rtol=1e-13, atol=1e-13)


def test_evaluating_twice_gives_the_same_bits():
    X, V, _ = arrays()
    operator = cglb.kernel_operator(GP, X, tile=7)
    np.testing.assert_array_equal(operator @ jnp.asarray(V), operator @ jnp.asarray(V))


# ---- float32 ----


def test_float32_on_request_answers_in_the_callers_dtype():
    X, V, X_star = arrays()
    V = jnp.asarray(V)
    exact = cglb.kernel_operator(GP, X)
    fast = exact.astype(jnp.float32)
    assert {leaf.dtype for leaf in jax.tree.leaves(fast)} == {np.dtype(np.float32)}
    found = fast @ V
    assert found.dtype == np.float64
    error = np.abs(found - exact @ V).max() / np.abs(exact @ V).max()
    assert 1e-9 < error < 1e-5  # rounded, but only so far
    cross = fast.cross(jnp.asarray(X_star), V)
    assert cross.dtype == np.float64
    np.testing.assert_allclose(cross, exact.cross(jnp.asarray(X_star), V), atol=2e-5)
    assert_bilinear_gradient(fast, GP, X, V, V[::-1], rtol=1e-4, atol=1e-4)


def test_a_float32_operator_and_float32_vectors():
    X, V, _ = arrays()
    operator = cglb.kernel_operator(GP, X, dtype=jnp.float32)
    found = operator @ jnp.asarray(V, dtype=jnp.float32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, problems.dense(GP, X) @ V, atol=3e-5)
    assert operator.diagonal().dtype == np.float32


# ---- the stored operator ----


@pytest.mark.parametrize("columns", [(), (1,), (3,)])
def test_an_operator_that_stores_after_some_products_answers_the_same_before_and_after(columns):
    X = np.random.default_rng(1).normal(size=(N, 2))
    V = np.random.default_rng(2).normal(size=(N, *columns))
    with cglb.float64():
        tiled = cglb.kernel_operator(GP, X)
        stored, never = StoredOnUse(tiled), StoredOnUse(tiled, memory_gb=1e-9)
        expected = np.asarray(tiled @ jnp.asarray(V))
        for _ in range(2 * STORE_AFTER):
            np.testing.assert_allclose(stored @ jnp.asarray(V), expected, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(never @ jnp.asarray(V), expected, rtol=1e-12)
        one = len(columns) == 0 or columns == (1,)
        assert [stored._half is not None, stored._whole is not None] == [one, not one]
        assert never._half is never._whole is None


def test_a_stored_operator_answers_like_the_tiled_one():
    X, V, X_star = arrays()
    X_star, V = jnp.asarray(X_star), jnp.asarray(V)
    tiled, stored = cglb.kernel_operator(GP, X), cglb.kernel_operator(GP, X, store=True)
    assert isinstance(tiled, cglb.KernelOperator)
    assert isinstance(stored, cglb.DenseOperator)
    assert stored.n == N
    answers = [
        (op @ V, op @ V[:, 0], op.cross(X_star, V), op.diagonal(), op.dense()) for op in (tiled, stored)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), *answers)
    assert_bilinear_gradient(stored, GP, X, V, V[::-1])
    fast = stored.astype(jnp.float32)
    assert fast.K_hat.dtype == np.float32
    assert (fast @ V).dtype == np.float64
    np.testing.assert_allclose(fast @ V, tiled @ V, atol=3e-5)


# ---- tile sizes and budgets ----


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("memory_gb", [1e-5, 1e-4, 1e-3, 1e-2, 10.0])
def test_tiles_shrink_to_the_budget(dtype, memory_gb):
    tile = plan.tile_size(dtype, memory_gb)
    a_few_tiles_a_core = 6 * tiles.lane_count() * tile**2 * jnp.dtype(dtype).itemsize
    assert tile == 16 or a_few_tiles_a_core <= memory_gb * 2**30
    assert 16 <= tile <= plan.tile_size(dtype)
    assert plan.tile_size(dtype, 10.0) == plan.tile_size(dtype)


def test_operators_keep_the_tile_that_was_asked_for():
    X = np.random.default_rng(0).normal(size=(400, D))
    assert cglb.kernel_operator(GP, X).tile == plan.tile_size(jnp.float64)
    assert cglb.kernel_operator(GP, X[:50]).tile == 50  # no padding beyond n
    small = cglb.kernel_operator(GP, X, memory_gb=1e-5)
    assert small.tile == plan.tile_size(jnp.float64, 1e-5) < plan.tile_size(jnp.float64)
    # a cheaper dtype stays within the budget too; without one it takes its own best tile
    assert small.astype(jnp.float32).tile == small.tile
    default = cglb.kernel_operator(GP, X).astype(jnp.float32)
    assert default.tile == plan.tile_size(jnp.float32)
    assert cglb.kernel_operator(GP, X[:50]).astype(jnp.float32).tile == 50


# ---- errors ----


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tile": 0}, "tile must be at least 1, found 0"),
        ({"memory_gb": 0.0}, "memory_gb must be positive, found 0.0"),
        ({"memory_gb": -1.0}, "memory_gb must be positive, found -1.0"),
        ({"dtype": jnp.float16}, "dtype must be float32 or float64, found float16"),
    ],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises(ValueError, match=words):
        cglb.kernel_operator(GP, arrays()[0], **settings)


def test_vectors_of_another_length_are_refused():
    """Padding to whole tiles would take them for vectors that end in zeros."""
    X, V, X_star = arrays()
    short, X_star = jnp.asarray(V[:-1]), jnp.asarray(X_star)
    operator = cglb.kernel_operator(GP, X, tile=7)
    with pytest.raises(ValueError, match="V has 22 rows, but the operator has 23"):
        operator @ short
    with pytest.raises(ValueError, match="V has 22 rows, but the operator has 23"):
        operator.cross(X_star, short)
    with pytest.raises(ValueError, match="a has 22 rows, but the operator has 23"):
        operator.bilinear_gradient(short, short)
    with pytest.raises(ValueError, match="X_star has 1 columns, but the operator's X has 2"):
        operator.cross(X_star[:, :1], jnp.asarray(V))
