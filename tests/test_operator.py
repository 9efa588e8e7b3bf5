"""The tiled operator against dense arrays: ragged tiles, gradients, precision, parts, storage."""

import mmap
import resource
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import problems
import pytest

import cglb
from cglb.compute import tiling
from cglb.compute.backend import backend_of, using
from cglb.compute.cpu.backend import CPU
from cglb.compute.cpu.blas import SymmetricHalf, empty_in_small_pages
from cglb.compute.xla import XLA
from cglb.linalg.operator import STORE_AFTER, KernelOperator, StoredOnUse

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


def operator_of(gp, X, **settings):
    return KernelOperator.of(gp, jnp.asarray(X), **settings)


@pytest.mark.parametrize("tile", TILES)
def test_products_are_those_of_the_matrix_for_any_tile(tile):
    X, V, X_star = arrays()
    K_hat = problems.dense(GP, X)
    operator = operator_of(GP, X)
    assert operator.n == N
    # X_star next to X in one dense matrix
    K_star = problems.dense(GP, np.concatenate([X_star, X]))[:S, S:]
    with using(CPU(tile_rows=tile)):
        found = operator @ jnp.asarray(V)
        cross = operator.cross(jnp.asarray(X_star), jnp.asarray(V))
    np.testing.assert_allclose(found, K_hat @ V, atol=1e-12)
    np.testing.assert_allclose(cross, K_star @ V, atol=1e-12)


def test_one_vector_is_a_column():
    X, V, X_star = arrays()
    V, X_star = jnp.asarray(V), jnp.asarray(X_star)
    operator = operator_of(GP, X)
    with using(CPU(tile_rows=7)):
        found, wanted = operator @ V[:, 0], (operator @ V)[:, 0]
        assert found.shape == (N,)
        np.testing.assert_allclose(found, wanted, atol=1e-12)
        found, wanted = operator.cross(X_star, V[:, 0]), operator.cross(X_star, V)[:, 0]
        assert found.shape == (S,)
        np.testing.assert_allclose(found, wanted, atol=1e-12)
        assert_bilinear_gradient(operator, GP, X, V[:, 0], V[:, 1])


def test_methods_take_keywords():
    X, V, X_star = arrays()
    V, X_star = jnp.asarray(V), jnp.asarray(X_star)
    operator = KernelOperator.of(gp=GP, X=jnp.asarray(X), dtype=jnp.float64)
    assert operator.astype(dtype=jnp.float32).X.dtype == np.float32
    np.testing.assert_array_equal(operator.cross(X_star=X_star, V=V), operator.cross(X_star, V))
    one, other = (
        operator.bilinear_gradient(a=V, b=V, inputs=True),
        operator.bilinear_gradient(V, V, True),
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("tile", TILES)
def test_bilinear_gradients_are_those_of_the_matrix_for_any_tile(tile):
    X, V, _ = arrays()
    V = jnp.asarray(V)
    with using(CPU(tile_rows=tile)):
        assert_bilinear_gradient(operator_of(GP, X), GP, X, V, V[::-1])


def assert_bilinear_gradient(operator, gp, X, A, B, **room):
    found = operator.bilinear_gradient(A, B, inputs=True)
    columns = (A, B) if A.ndim == 2 else (A[:, None], B[:, None])
    gp_ref, X_ref = dense_bilinear_gradient(jax.tree.map(jnp.asarray, gp), jnp.asarray(X), *columns)
    room = {"rtol": 1e-9, "atol": 1e-9} | room
    found, wanted = (found.kernel, found.noise, found.X), (gp_ref.kernel, gp_ref.noise, X_ref)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **room), found, wanted)


def test_without_inputs_the_gradient_in_the_hyperparameters_is_the_same():
    X, V, _ = arrays()
    V = jnp.asarray(V)
    operator = operator_of(GP, X)
    few, all_of_it = (operator.bilinear_gradient(V, V[::-1], inputs) for inputs in (False, True))
    assert few.X is None
    for a, b in zip(
        jax.tree.leaves(few), jax.tree.leaves((all_of_it.kernel, all_of_it.noise)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_a_known_product_has_the_value_given_and_the_gradient_of_the_product():
    X, V, _ = arrays()
    X, v, w = jnp.asarray(X), jnp.asarray(V[:, 0]), jnp.asarray(V[:, 1])
    gp = jax.tree.map(jnp.asarray, GP)
    K_hat_v = KernelOperator.of(gp, X) @ v
    known = jax.value_and_grad(lambda gp: w @ KernelOperator.of(gp, X).known_product(v, K_hat_v))
    plain = jax.grad(lambda gp: w @ (dense(gp, X) @ v))
    value, slopes = known(gp)
    assert float(value) == float(w @ K_hat_v)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), slopes, plain(gp))


def test_the_trace_of_a_square_is_that_of_the_matrix():
    X, V, _ = arrays()
    K = problems.dense(GP, X) - 0.2 * np.eye(N)
    T = K / 0.2 - V @ V[::-1].T
    with using(CPU(tile_rows=7)):
        found = operator_of(GP, X).trace_of_square(jnp.asarray(V), jnp.asarray(V[::-1]))
    assert float(found) == pytest.approx(np.trace(T @ T) - np.diag(T) @ np.diag(T), rel=1e-10)


def test_a_kernel_of_every_kind_in_ragged_tiles_with_coincident_rows():
    X, V, _ = arrays()
    K_hat = problems.dense(COMPOSITE, X)
    operator = operator_of(COMPOSITE, X)
    V = jnp.asarray(V)
    with using(CPU(tile_rows=7)):
        # Matérn-1/2 feels the root of the rounding of r² where rows coincide
        np.testing.assert_allclose(operator @ V, K_hat @ np.asarray(V), atol=1e-6)
        assert_bilinear_gradient(operator, COMPOSITE, X, V, V[::-1], rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def reverse():
    """Gradients of a curved function of K̂V and of K(X_star, X)V: the package's and the dense one."""
    X, V, X_star = arrays()

    def tiled(gp, X, V, X_star):
        operator = KernelOperator.of(gp, X)
        return jnp.sum(jnp.sin(operator @ V)) + jnp.sum(jnp.cos(operator.cross(X_star, V)))

    def plain(gp, X, V, X_star):
        cross = gp.kernel(X_star, X) @ V
        return jnp.sum(jnp.sin(dense(gp, X) @ V)) + jnp.sum(jnp.cos(cross))

    with cglb.float64(), using(CPU(tile_rows=7)):
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


@pytest.mark.parametrize(("width", "part"), [(1, 4096), (1, 1), (4, 4096), (2, 1)])
def test_threads_and_parts_do_not_show(width, part):
    """Six pairs of blocks: with four threads two visit the empty block; two threads with parts of one
    tile take three turns each."""
    X, V, _ = arrays()
    V = jnp.asarray(V)
    operator = operator_of(GP, X)
    with using(CPU(tile_rows=7, width=width, tiles_per_part=part)):
        np.testing.assert_allclose(operator @ V, problems.dense(GP, X) @ np.asarray(V), atol=1e-12)
        assert_bilinear_gradient(operator, GP, X, V, V[::-1])


def test_eager_traced_and_mapped_products_agree():
    X, V, _ = arrays()
    V = jnp.asarray(V)
    operator = operator_of(GP, X)
    with using(CPU(tile_rows=7)):
        eager = operator @ V
        traced = jax.jit(lambda operator, V: operator @ V)(operator, V)
        mapped = jax.vmap(lambda v: operator @ v, in_axes=1, out_axes=1)(V)
    np.testing.assert_allclose(traced, eager, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(mapped, eager, rtol=1e-13, atol=1e-13)


def test_evaluating_twice_gives_the_same_bits():
    X, V, _ = arrays()
    operator = operator_of(GP, X)
    with using(CPU(tile_rows=7, width=3)):
        np.testing.assert_array_equal(operator @ jnp.asarray(V), operator @ jnp.asarray(V))


# ---- float32 ----


def test_float32_on_request_answers_in_the_callers_dtype():
    X, V, X_star = arrays()
    V = jnp.asarray(V)
    exact = operator_of(GP, X)
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
    operator = operator_of(GP, X, dtype=jnp.float32)
    found = operator @ jnp.asarray(V, dtype=jnp.float32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, problems.dense(GP, X) @ V, atol=3e-5)


# ---- the stored operator ----


@pytest.mark.one_cpu
@pytest.mark.parametrize("columns", [(), (1,), (3,)])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_an_operator_that_stores_after_some_products_answers_the_same_before_and_after(columns, dtype):
    X = np.random.default_rng(1).normal(size=(N, 2))
    V = jnp.asarray(np.random.default_rng(2).normal(size=(N, *columns)))
    tiled = operator_of(GP, X, dtype=dtype)
    room = {"rtol": 1e-10, "atol": 1e-12} if dtype == jnp.float64 else {"atol": 3e-5}
    stored, never = StoredOnUse(tiled), StoredOnUse(tiled, memory_gb=1e-9)
    expected = np.asarray(tiled @ V)
    for _ in range(2 * STORE_AFTER):
        found = stored @ V
        assert found.dtype == np.float64
        assert found.shape == V.shape
        np.testing.assert_allclose(found, expected, **room)
        np.testing.assert_array_equal(never @ V, expected)
    (matrix,) = stored._stored
    assert isinstance(matrix, SymmetricHalf) == (columns != (3,))  # half is enough for one vector
    assert not never._stored


def test_what_is_stored_for_several_columns_serves_one_too():
    X, V, _ = arrays()
    V = jnp.asarray(V)
    stored = StoredOnUse(operator_of(GP, X))
    for _ in range(STORE_AFTER + 1):
        stored @ V
    (matrix,) = stored._stored
    np.testing.assert_allclose(stored @ V[:, 0], problems.dense(GP, X) @ np.asarray(V[:, 0]), atol=1e-12)
    assert stored._stored == [matrix]


def test_half_of_the_matrix_holds_more_rows_in_the_same_memory():
    X, V, _ = arrays()
    operator = operator_of(GP, X)
    budget = 0.75 * 8 * N**2 / 2**30  # between half and all of K̂
    stored = backend_of(operator.X).store(operator.kernel, operator.noise, operator.X, 1, budget)
    np.testing.assert_allclose(
        stored @ jnp.asarray(V[:, 0]), problems.dense(GP, X) @ V[:, 0], atol=1e-12
    )
    assert XLA().store(operator.kernel, operator.noise, operator.X, 1, budget) is None


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="only Linux has pages to choose")
def test_half_of_the_matrix_takes_half_of_its_memory():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    n = 8000  # rows of 16 pages
    before = resident()
    upper = empty_in_small_pages((n, n), np.float64)
    for i in range(n):
        upper[i, i:] = 1.0
    assert resident() - before < 0.6 * 8 * n**2
    assert upper[0, -1] == 1.0


# ---- tiles ----


def test_few_rows_are_one_tile_and_others_take_the_tile_of_the_dtype():
    X = jnp.asarray(np.random.default_rng(0).normal(size=(400, D)))
    backend = CPU()
    assert backend.plan(X, True).tile == backend.tile(jnp.float64) < 400
    assert backend.plan(X.astype(jnp.float32), True).tile == backend.tile(jnp.float32)
    assert backend.plan(X[:50], True).tile == 50  # no padding beyond n
    assert XLA("gpu").tile(jnp.float64) > backend.tile(jnp.float64)
    with pytest.raises(ValueError, match="dtype must be one of float64, float32, found float16"):
        backend.tile(jnp.float16)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("width", "part"), [(1, None), (3, None), (2, 2)])
def test_a_walk_visits_every_tile_once_in_parts_of_equal_length(symmetric, width, part):
    walk = tiling.walk(tiling.Plan(7, symmetric), N, N if symmetric else S, width, part)
    I, J, D = walk.parts
    assert len(I) % width == 0
    if part is not None:
        assert I.shape[1] <= part
    rows, columns = walk.rows - 1, walk.columns - 1  # the last block is padding
    found = sorted((i, j) for i, j in zip(I.ravel(), J.ravel(), strict=True) if i < rows)
    below = [(i, j) for i in range(rows) for j in range(columns) if not symmetric or i < j]
    assert found == below
    assert sorted(D[rows > D]) == (list(range(rows)) if symmetric else [])


def test_vectors_of_another_length_are_refused():
    """Padding to whole tiles would take them for vectors that end in zeros."""
    X, V, X_star = arrays()
    short, X_star = jnp.asarray(V[:-1]), jnp.asarray(X_star)
    operator = operator_of(GP, X)
    words = "The vectors have 22 rows, but the operator has 23"
    jaxtyping.config.update("jaxtyping_disable", True)  # as for a user: shapes are not checked
    try:
        with pytest.raises(ValueError, match=words):
            operator @ short
        with pytest.raises(ValueError, match=words):
            operator.cross(X_star, short)
        with pytest.raises(ValueError, match=words):
            operator.bilinear_gradient(short, short)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
