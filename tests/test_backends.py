"""The two ways to compute agree: XLA alone (any device, any trace), and threads with BLAS on a CPU."""

import subprocess
import sys
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import cglb
from cglb import bounds
from cglb.bounds.logdet.chain import Chain
from cglb.compute import assemble, products
from cglb.compute.backend import backend_of, using
from cglb.compute.cpu.backend import CPU
from cglb.compute.parallel import Serial, Threads
from cglb.compute.tiling import Blocking
from cglb.compute.xla import XLA
from cglb.linalg import dense, dense_few, nystrom
from cglb.linalg.blocks import find_blocks
from cglb.linalg.operator import STORE_AFTER, KernelOperator, StoredOnUse
from cglb.linalg.vecchia import inverse_factors

N, D, M = 40, 2, 8
GP = cglb.GP(cglb.Matern32([0.7, 1.6], 1.3) + cglb.Linear(0.3).on([1]), 0.05, 0.2)
WAYS = {"XLA": XLA(tile_rows=17, chunk_rows=9), "CPU": CPU(tile_rows=17, chunk_rows=9, width=3)}


@pytest.fixture(autouse=True)
def scope():
    with cglb.float64():
        yield


def data():
    X, y, Z = problems.data(n=N, d=D, m=M)
    return jax.tree.map(jnp.asarray, (GP, X, y, Z))


def products_and_gradients():
    gp, X, y, _ = data()
    operator, V = KernelOperator.of(gp, X), jnp.stack([y, jnp.cos(y)], axis=1)
    return operator @ y, operator @ V, operator.cross(X[:7], V), operator.bilinear_gradient(V, V, True)


def stored_products():
    gp, X, y, _ = data()
    stored = StoredOnUse(KernelOperator.of(gp, X))
    return [stored @ y for _ in range(STORE_AFTER + 1)][-1]


def nystrom_factors():
    gp, X, _, Z = data()
    return nystrom.factor(gp, X, Z)


def value_and_gradient(bound):
    gp, X, y, Z = data()
    return jax.value_and_grad(lambda gp, Z: bound(gp, X, y, Z).value, argnums=(0, 1))(gp, Z)


def nystrom_bound():
    return value_and_gradient(lambda *args: bounds.sgpr(*args, logdet="hadamard"))


def cglb_bound():
    return value_and_gradient(lambda gp, X, y, Z: bounds.cglb(gp, X, y, Z, 0.1 * y))


def chain_bound():
    return value_and_gradient(lambda *args: bounds.sgpr(*args, logdet=Chain(7, 5)))


def chain_inverse():
    """Σ UᵀU as a matrix, since the order of the blocks is immaterial."""
    gp, X, *_ = data()
    blocks = find_blocks(gp.kernel, X, 7, 5)
    found = inverse_factors(gp.kernel, gp.noise, nystrom_factors().At, X, blocks)
    U, _, index, valid = map(np.asarray, found)
    out = np.zeros((N, N))
    for block, rows, real in zip(U, index, valid, strict=True):
        out[np.ix_(rows[real], rows[real])] += block[:, real].T @ block[:, real]
    return out


def exact_value():
    gp, X, y, _ = data()
    return jax.value_and_grad(lambda gp, X: bounds.exact(gp, X, y).value, argnums=(0, 1))(gp, X)


def exact_for_training():
    gp, X, y, _ = data()
    return dense.value_and_gradient(gp, X, y)


def exact_factor():
    gp, X, y, _ = data()
    found = dense.factor(gp, X, y)
    half = np.asarray(found.factor.half_solve(np.asarray(X)))
    return np.tril(found.factor.L), np.asarray(found.alpha), half


def moments():
    gp, X, _, _ = data()
    factors = nystrom_factors()
    return KernelOperator.of(gp, X).trace_of_square(factors.At, factors.At)


@pytest.mark.parametrize(
    "compute",
    [
        products_and_gradients,
        stored_products,
        nystrom_factors,
        nystrom_bound,
        cglb_bound,
        chain_bound,
        chain_inverse,
        exact_value,
        exact_for_training,
        exact_factor,
        moments,
    ],
)
def test_threads_and_blas_change_nothing_but_rounding(compute):
    found = {}
    for name, backend in WAYS.items():
        with using(backend):
            found[name] = jax.tree.leaves(compute())
    for a, b in zip(found["XLA"], found["CPU"], strict=True):
        scale = max(np.abs(np.asarray(b)).max(), 1.0)
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * scale)


def test_the_exact_gradient_is_that_of_the_dense_formula():
    gp, X, y, _ = data()

    def plain(gp, X):
        eye = jnp.eye(N)
        K_hat = jnp.where(eye > 0, gp.kernel.diag(X)[:, None], gp.kernel(X, X)) + gp.noise * eye
        return jax.scipy.stats.multivariate_normal.logpdf(y, jnp.full(N, gp.mean), K_hat)

    value, slopes = exact_value()
    wanted, wanted_slopes = jax.value_and_grad(plain, argnums=(0, 1))(gp, X)
    assert float(value) == pytest.approx(float(wanted), rel=1e-10)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8), slopes, wanted_slopes
    )


@pytest.mark.parametrize("backend", WAYS.values(), ids=WAYS)
def test_a_matrix_without_a_factor_is_an_error_and_nan_in_a_trace(backend):
    gp = jax.tree.map(jnp.asarray, cglb.GP(cglb.RBF(1.0), 1e-300))
    X, y = jnp.zeros((4, 1)), jnp.ones(4)
    with using(backend):
        for function in (bounds.exact, dense.factor):
            with pytest.raises(np.linalg.LinAlgError, match=r"not positive definite .* raise the noise"):
                function(gp, X, y)
        traced = jax.jit(lambda gp: bounds.exact(gp, X, y).value)
        assert np.isnan(float(traced(gp)))


# ---- which way is taken ----
@pytest.mark.one_cpu
def test_the_way_depends_on_where_the_arrays_are():
    gp, X, *_ = data()
    assert isinstance(backend_of(gp, X), CPU)
    assert isinstance(backend_of(np.zeros(3)), CPU)  # NumPy goes where JAX puts new arrays
    assert isinstance(backend_of(X).parallel, Threads)

    def ask(x):
        seen.append(backend_of(x, X))
        return x

    for transform in (jax.jit, jax.vmap, jax.grad):
        seen = []
        transform(ask)(jnp.zeros(() if transform is jax.grad else 3))
        assert [type(backend) for backend in seen] == [XLA]
        assert isinstance(seen[0].parallel, Serial)


SEVERAL_DEVICES = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
jax.config.update("jax_num_cpu_devices", 4)
from cglb.compute.backend import backend_of
from cglb.compute.cpu.backend import CPU
from cglb.compute.xla import XLA
mesh = jax.make_mesh((4,), ("rows",))
spread = jax.device_put(np.zeros((8, 2), np.float32), NamedSharding(mesh, P("rows")))
alone = jax.device_put(np.zeros(3, np.float32), jax.devices()[2])
assert type(backend_of(spread)) is XLA, backend_of(spread)
assert type(backend_of(alone)) is CPU, backend_of(alone)
assert type(backend_of(alone, spread)) is XLA
"""


def test_arrays_spread_over_several_devices_stay_with_xla():
    command = [sys.executable, "-c", SEVERAL_DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.one_cpu
def test_an_override_ends_with_its_scope_and_is_not_seen_by_other_threads():
    seen = []
    with using(XLA(tile_rows=5)):
        assert backend_of(jnp.zeros(3)) == XLA(tile_rows=5)
        thread = threading.Thread(target=lambda: seen.append(backend_of(np.zeros(3))))
        thread.start()
        thread.join()
        with using(CPU(width=2)):
            assert backend_of(jnp.zeros(3)) == CPU(width=2)
        assert backend_of(jnp.zeros(3)) == XLA(tile_rows=5)
    assert seen == [CPU()]
    assert backend_of(jnp.zeros(3)) == CPU()


# ---- equal parts ----


@pytest.mark.parametrize(
    "parallel", [Serial(), Threads(1), Threads(3), Threads(2, one_blas_thread=True)]
)
def test_parts_are_mapped_in_order_and_summed_in_order(parallel):
    shared = (jnp.asarray(2.0),)
    parts = (np.arange(5.0), np.arange(10.0).reshape(5, 2))

    def fn(scale, x, row):
        return {"x": jnp.asarray(scale * x), "row": jnp.asarray(row)}

    mapped = parallel.map(fn, shared, parts)
    assert isinstance(mapped, list)
    assert [float(one["x"]) for one in mapped] == [0.0, 2.0, 4.0, 6.0, 8.0]
    total = parallel.sum(fn, shared, parts)
    assert float(total["x"]) == 20.0
    np.testing.assert_array_equal(total["row"], parts[1].sum(axis=0))


def test_threads_compute_in_float64():
    found = Threads(2).map(lambda x: jnp.asarray(x) + 1e-12, (), (np.ones(4),))
    assert {one.dtype for one in found} == {np.dtype(np.float64)}


def test_an_error_in_a_part_reaches_the_caller():
    def fail(i):
        raise RuntimeError(f"part {i}")

    with pytest.raises(RuntimeError, match="part 0"):
        Threads(2).for_each(fail, [(i,) for i in range(4)])


# ---- K with an exact diagonal, and what it costs ----


class Counting(cglb.RBF):
    """Writes down the shape of every matrix of covariances that is compiled."""

    shapes: list = eqx.field(static=True, default=None)

    def profile(self, r2):
        self.shapes.append(r2.shape)
        return jnp.exp(-0.5 * r2)


@pytest.mark.one_cpu
@pytest.mark.parametrize(("n", "tile"), [(40, 56), (57, 120), (300, 248)])
def test_the_cost_of_the_exact_path_is_proportional_to_few_rows(n, tile):
    X, y, _ = problems.data(n=n, d=D, m=1)
    shapes = []
    gp = cglb.GP(Counting(1.0, 1.0, shapes), 0.1)
    dense.value_and_gradient(*jax.tree.map(jnp.asarray, (gp, X, y)))
    assert set(shapes) == {(tile, tile)}


@pytest.mark.parametrize("n", [1, 7, 8, 120, 121, 999, 1000, 1001, 12_345])
def test_blocks_cover_the_rows_with_little_padding_and_few_sizes(n):
    blocking = Blocking.of(n, assemble.SIZES)
    rows = [row for block in range(blocking.count) for row in range(n)[blocking.rows(block)]]
    assert rows == list(range(n))
    assert blocking.size in assemble.SIZES
    assert blocking.count * blocking.size - n < assemble.SIZES[-1]
    assert n > assemble.SIZES[0] or blocking.size == assemble.SIZES[0]


class OwnDiagonal(cglb.RBF):
    """The diagonal is more than the profile at distance 0, so that it shows who sets it."""

    def diag(self, X):
        return 1.5 + 0.0 * X[:, 0]


@pytest.mark.parametrize("n", [40, 1001])
def test_every_way_to_make_the_matrix_gives_the_same(n):
    X, _, _ = problems.data(n=n, d=D, m=1)
    X[1] = X[0]
    model = cglb.GP(OwnDiagonal([0.7, 1.6]), 0.05)
    K_hat = problems.dense(model, X)
    assert K_hat[0, 1] == 1.0
    gp, X = jax.tree.map(jnp.asarray, (model, X))
    upper = assemble.upper_triangle(Threads(2), gp.kernel, gp.noise, X)
    found = {
        "dense": assemble.dense(gp.kernel, gp.noise, X),
        "whole": assemble.whole(gp.kernel, gp.noise, X),
        "upper": np.triu(upper) + np.triu(upper, 1).T,
        "covariance": assemble.covariance(gp.kernel, X) + gp.noise * jnp.eye(n),
        "with its gradient": assemble.covariance_and_pull(gp.kernel, X)[0] + gp.noise * jnp.eye(n),
    }
    for name, matrix in found.items():
        np.testing.assert_allclose(matrix, K_hat, rtol=1e-12, atol=1e-12, err_msg=name)
        np.testing.assert_array_equal(np.diag(matrix), 1.55, err_msg=name)


@pytest.mark.parametrize("columns", [(), (1,), (3,), (4,), (9,)])
def test_transposed_products_are_products(columns):
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(11, 4)), rng.normal(size=(11, *columns))
    found = jax.jit(products.transposed_product)(jnp.asarray(A), jnp.asarray(B))
    np.testing.assert_allclose(found, A.T @ B, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1, 56, 57, dense_few.MOST_ROWS, dense_few.MOST_ROWS + 1])
@pytest.mark.one_cpu
def test_the_exact_likelihood_of_few_rows_is_that_of_any_number(n, monkeypatch):
    X, y, _ = problems.data(n=n, d=D)
    gp, X, y = jax.tree.map(jnp.asarray, (GP, X, y))
    calls, program = [], dense_few.value_and_slopes
    monkeypatch.setattr(dense_few, "value_and_slopes", lambda *a: calls.append(1) or program(*a))
    found = dense.value_and_gradient(gp, X, y)
    assert len(calls) == (n <= dense_few.MOST_ROWS)
    with using(XLA()):
        wanted = dense.value_and_gradient(gp, X, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), found, wanted)


def test_few_rows_whose_matrix_is_not_positive_definite_are_refused():
    X, y = np.zeros((5, D)), np.zeros(5)
    gp, X, y = jax.tree.map(jnp.asarray, (cglb.GP(cglb.RBF(1.0), 1e-300, 0.0), X, y))
    with pytest.raises(np.linalg.LinAlgError, match="5 x 5"):
        dense.value_and_gradient(gp, X, y)
