"""Bad input is refused by name; other number types convert; precision is nobody else's business.

`cglb.core.validation.boundary` does this for every public function that takes data. It is tested by
itself, once for every kind of argument; then, that the public functions have it.
"""

import inspect
import subprocess
import sys
from types import ModuleType

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import problems
import pytest

import cglb
from cglb import bounds
from cglb import posteriors as posterior
from cglb.core import validation
from cglb.linalg import inducing

GP = cglb.GP(cglb.Matern32(0.9, 1.3), 0.1, 0.2)
X, Y, Z = problems.data()
V = 0.1 * Y
X_STAR = X[:4] + 0.1
GOOD = {"X": X, "y": Y, "Z": Z, "v": V, "v0": V, "X_star": X_STAR}

# public functions of data, with as little work as possible
FUNCTIONS = {
    "exact": lambda a: bounds.exact(GP, a["X"], a["y"]).value,
    "sgpr": lambda a: bounds.sgpr(GP, a["X"], a["y"], a["Z"]).value,
    "cglb": lambda a: bounds.cglb(GP, a["X"], a["y"], a["Z"], a["v"]).value,
    "upper": lambda a: bounds.upper(GP, a["X"], a["y"], a["Z"], a["v"]).value,
    "quadratic_interval": lambda a: bounds.quadratic_interval(GP, a["X"], a["y"], a["Z"], a["v"]).upper,
    "solve": lambda a: cglb.solve(GP, a["X"], a["y"], a["Z"], v0=a["v0"]).v,
    "greedy": lambda a: inducing.greedy(GP.kernel, a["X"], 8),
    "uniform": lambda a: inducing.uniform(a["X"], 8),
    "kmeans": lambda a: inducing.kmeans(a["X"], 8),
    "posterior.exact": lambda a: posterior.exact(GP, a["X"], a["y"]).alpha,
    "posterior.cglb": lambda a: posterior.cglb(GP, a["X"], a["y"], a["Z"], a["v"]).weights,
    "posterior.sgpr": lambda a: posterior.sgpr(GP, a["X"], a["y"], a["Z"]).weights,
    "posterior mean": lambda a: posterior.exact(GP, X, Y).mean(a["X_star"]),
    "posterior variance": lambda a: posterior.sgpr(GP, X, Y, Z).variance(a["X_star"]),
    "posterior covariance": lambda a: posterior.sgpr(GP, X, Y, Z).covariance(a["X_star"]),
}


def call(function, **changes):
    return FUNCTIONS[function](GOOD | changes)


# ---- the boundary ----


@validation.boundary
def received(X=None, y=None, Z=None, v=None, v0=None, X_star=None):
    """What arrives inside."""
    return {"X": X, "y": y, "Z": Z, "v": v, "v0": v0, "X_star": X_star}


def spoiled(array, value):
    """Two entries replaced, both in the last column."""
    array = array.copy()
    array.reshape(len(array), -1)[[1, 3], -1] = value
    return array


EVERY_ARGUMENT = pytest.mark.parametrize("argument", GOOD)


def test_every_argument_with_a_known_shape_is_tested_here():
    assert {*GOOD, "free"} == set(validation.SHAPES)  # "free" belongs to test_constraints.py


@EVERY_ARGUMENT
def test_nan_and_infinity_are_counted_and_placed(argument):
    array = GOOD[argument]
    where = r"in column\(s\) 1" if array.ndim == 2 else "first at row 1"
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=rf"^{argument} has 2 entries that are NaN or inf.*{where}"):
            received(**{argument: spoiled(array, value)})


@EVERY_ARGUMENT
def test_a_wrong_number_of_axes_is_named_with_a_remedy(argument):
    array = GOOD[argument]
    wrong, remedy = (array[:, 0], "None") if array.ndim == 2 else (array[:, None], "0")
    with pytest.raises(
        ValueError, match=rf"^{argument} must have . axes.*pass {argument}\[:, {remedy}\]"
    ):
        received(**{argument: wrong})
    with pytest.raises(ValueError, match=rf"^{argument} must have . axes.*found shape \(\)"):
        received(**{argument: 1.0})


@EVERY_ARGUMENT
def test_empty_data_is_refused(argument):
    with pytest.raises(ValueError, match=rf"^{argument} is empty: found shape \(0,"):
        received(**{argument: GOOD[argument][:0]})


@EVERY_ARGUMENT
def test_what_is_not_a_real_number_is_refused(argument):
    array = GOOD[argument]
    for bad, found in (
        (array.astype(complex), "complex128"),
        (array.astype(str), "<U"),
        (np.full(array.shape, "2020-01-01", dtype="datetime64[D]"), "datetime64"),
        (np.full(array.shape, {}, dtype=object), "object"),
    ):
        with pytest.raises(
            ValueError, match=rf"^{argument} must hold real numbers, found dtype {found}"
        ):
            received(**{argument: bad})


def test_ragged_lists_and_masked_arrays_are_refused():
    with pytest.raises(ValueError, match=r"X is not an array of numbers: .*inhomogeneous"):
        received(X=[[1.0, 2.0], [3.0]])
    with pytest.raises(ValueError, match="y has 2 masked entries"):
        received(y=np.ma.masked_array(Y, mask=np.arange(40) < 2))


ROUNDED = {name: np.round(4.0 * array) for name, array in GOOD.items()}  # exact in every type below


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble, np.int8, np.int64, object])
def test_other_number_types_arrive_as_the_same_float64_numbers(dtype):
    found = received(**{name: array.astype(dtype) for name, array in ROUNDED.items()})
    for name, array in ROUNDED.items():
        assert found[name].dtype == np.float64
        np.testing.assert_array_equal(found[name], array)


def test_results_leave_as_numpy_outside_the_scope_and_stay_in_jax_inside():
    assert all(isinstance(array, np.ndarray) for array in received(**GOOD).values())
    with cglb.float64():
        assert all(isinstance(array, jax.Array) for array in received(**GOOD).values())


# ---- the public functions have it ----


# Parts of the methods, which get their data from functions with a boundary; and `compare`, which takes
# fitted models too and converts by itself.
INNER = {"compare", "inducing.greedy_rows", "inducing.pivot_rows", "inducing.pivots"}


def public_functions():
    """All functions that `cglb` exports, by itself or in its modules, and the methods of posteriors."""
    for name in cglb.__all__:
        found = getattr(cglb, name)
        if not isinstance(found, ModuleType):
            yield name, found
            continue
        for inner in getattr(found, "__all__", ()):
            yield f"{name}.{inner}", getattr(found, inner)
            if inner.endswith("Posterior"):
                for method, function in vars(getattr(found, inner)).items():
                    yield f"{name}.{inner}.{method}", function


def refuses(function, argument):
    """Whether text is refused in the boundary's words, before anything is computed."""
    required = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
    ]
    try:
        function(**(dict.fromkeys(required) | {argument: np.full(GOOD[argument].shape, "text")}))
    except (ValueError, TypeError, AttributeError) as error:
        return str(error).startswith(f"{argument} must hold real numbers, found dtype <U4")
    return False


def test_every_public_function_that_takes_data_has_a_boundary():
    takes_data = {
        name: (function, inspect.signature(function).parameters.keys() & GOOD.keys())
        for name, function in public_functions()
        if inspect.isfunction(function) and not name.rsplit(".", 1)[-1].startswith("_")
    }
    pairs = [(name, argument) for name, (_, arguments) in takes_data.items() for argument in arguments]
    assert len(pairs) > 40
    without = {name for name, argument in pairs if not refuses(takes_data[name][0], argument)}
    assert without <= INNER


@pytest.mark.parametrize(
    ("function", "changes", "words"),
    [
        ("exact", {"X": spoiled(X, np.nan)}, r"X has 2 entries that are NaN"),
        ("exact", {"y": Y[:-1]}, r"y and X disagree on n \(training rows\): y has 39, X has 40"),
        ("cglb", {"v": V[:-2]}, r"v and X disagree on n \(training rows\): v has 38, X has 40"),
        ("solve", {"v0": V[:1]}, r"v0 and X disagree on n .*: v0 has 1, X has 40"),
        ("sgpr", {"Z": Z[:, :1]}, r"Z and X disagree on d \(inputs \(columns\)\): Z has 1, X has 2"),
        ("posterior mean", {"X_star": X_STAR[:, :1]}, "X and X_star disagree on d .*X_star has 1"),
        ("posterior variance", {"X_star": np.ones((4, 3))}, "Z and X_star disagree on d .*X_star has 3"),
        ("sgpr", {"Z": np.concatenate([X, Z])}, "Z has 48 inducing points, more than the 40 training"),
    ],
)
def test_sizes_that_disagree_are_named(function, changes, words):
    with pytest.raises(ValueError, match=words):
        call(function, **changes)


@pytest.mark.parametrize("name", ["amgn", "", "nystrom"])  # the last is a lower bound of log|K̂|
def test_an_unknown_log_det_bound_is_answered_with_the_known_ones(name):
    with pytest.raises(ValueError, match=f"logdet must be one of amgm, hadamard, .*found '{name}'"):
        bounds.sgpr(GP, X, Y, Z, logdet=name)
    with pytest.raises(ValueError, match=r"logdet must be one of nystrom, spectral, .*found 'amgm'\."):
        bounds.upper(GP, X, Y, Z, V, logdet="amgm")


@pytest.mark.parametrize("noise", [0.0, -0.1, np.nan, np.inf])
def test_a_noise_that_is_not_positive_is_refused(noise):
    with pytest.raises(ValueError, match="GP: noise must be positive and finite, found"):
        cglb.GP(cglb.RBF(), noise)


# ---- conversions ----


@pytest.mark.parametrize("function", ["sgpr", "cglb", "posterior mean"])
def test_other_number_types_give_the_same_result(function):
    wanted = call(function, **ROUNDED)
    for dtype in (np.float16, np.int8, object):
        converted = {name: array.astype(dtype) for name, array in ROUNDED.items()}
        np.testing.assert_array_equal(call(function, **converted), wanted)


def test_bool_bfloat16_lists_and_jax_arrays_give_the_same_result():
    flags = X > 0.0
    wanted = call("exact", X=flags.astype(float))
    assert call("exact", X=flags) == wanted
    assert call("exact", X=flags.astype(int).tolist()) == wanted
    assert call("exact", X=jnp.asarray(flags, dtype=jnp.bfloat16)) == wanted
    assert call("exact", X=jnp.asarray(flags, dtype=jnp.float32), y=Y.tolist()) == wanted
    assert call("exact", X=np.asfortranarray(flags.astype(float))) == wanted
    assert call("exact", X=flags.astype(float)[::-1][::-1]) == wanted


def test_half_precision_is_converted_before_any_arithmetic():
    """1000.5 has no neighbour at distance 0.1 in float16, and its square is infinite there."""
    half = np.float16(1000.5) + 20.0 * X.astype(np.float16)
    assert call("exact", X=half) == call("exact", X=half.astype(np.float64))


def test_float32_hyperparameters_do_not_make_a_float32_bound():
    """0.1 rounds differently in float32: the same rounded value in float64 is the reference."""
    value = np.float32(0.1)
    short = cglb.GP(cglb.RBF(jnp.asarray(value)), jnp.asarray(value), jnp.asarray(value))
    assert short.noise.dtype == np.float32
    long = cglb.GP(cglb.RBF(float(value)), float(value), float(value))
    assert bounds.sgpr(short, X, Y, Z).value == bounds.sgpr(long, X, Y, Z).value


# ---- precision ----


def test_results_are_numpy_float64_and_nothing_is_written_to():
    before = {name: array.copy() for name, array in GOOD.items()}
    leaves = [leaf.copy() for leaf in jax.tree.leaves(GP)]
    for function in FUNCTIONS:
        assert not jax.config.jax_enable_x64
        result = call(function)
        assert isinstance(result, np.ndarray | np.float64), function
        assert result.dtype == np.float64, function
    assert not jax.config.jax_enable_x64
    jax.tree.map(np.testing.assert_array_equal, before, GOOD)
    jax.tree.map(np.testing.assert_array_equal, leaves, jax.tree.leaves(GP))


def test_results_inside_the_scope_stay_in_jax():
    with cglb.float64():
        result = call("exact")
    assert isinstance(result, jax.Array)
    assert result.dtype == np.float64


def test_the_global_float64_switch_is_never_touched():
    """In a new process: neither by the import nor by a call, and a user's own choice stands."""
    script = (
        "import jax, numpy as np, cglb\n"
        "X = np.arange(6.0)[:, None]\n"
        "for wanted in (jax.config.jax_enable_x64, True):\n"
        "    jax.config.update('jax_enable_x64', wanted)\n"
        "    value = cglb.bounds.exact(cglb.GP(cglb.RBF()), X, X[:, 0]).value\n"
        "    print(value.dtype, jax.config.jax_enable_x64, jax.numpy.ones(1).dtype)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["float64 False float32", "float64 True float64"]


@pytest.fixture(autouse=True)
def without_type_checks():
    """As for a user: no beartype in front of the package's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
