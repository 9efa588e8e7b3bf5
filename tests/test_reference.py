"""Agreement with other libraries: GPflow by stored numbers, scikit-learn by calling it.

reference/make_gpflow.py says what the stored numbers are.
"""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as peers

import cglb
from cglb import bounds
from cglb import posteriors as posterior

REFERENCE = json.loads((Path(__file__).parent / "reference" / "gpflow.json").read_text())
CASES = {f"{case['kernel']}-{case['dataset']}": case for case in REFERENCE["cases"]}
KERNELS = {
    "SquaredExponential": cglb.RBF,
    "Matern12": cglb.Matern12,
    "Matern32": cglb.Matern32,
    "Matern52": cglb.Matern52,
    "RationalQuadratic": cglb.RationalQuadratic,
}
EVERY_CASE = pytest.mark.parametrize("name", CASES)
DATA = ("X", "y", "Z", "Xs", "v")
D = 3  # columns of the wider data set
VECTORS = ("zero", "random", "cg")
QUANTITIES = ("exact", "sgpr", *(f"cglb.{v}" for v in VECTORS))


def model_of(case):
    hyper = REFERENCE["datasets"][case["dataset"]]["hyperparameters"]
    lengthscale = np.append(hyper["lengthscale"], np.ones(D - len(hyper["lengthscale"])))
    alpha = () if case["alpha"] is None else (case["alpha"],)
    kernel = KERNELS[case["kernel"]](lengthscale, hyper["variance"], *alpha)
    return cglb.GP(kernel, hyper["noise"], hyper["mean"])


def data_of(case):
    """X, y, Z, Xs and v. Columns of zeros up to D change nothing, and spare a compilation for each d."""
    data = {key: np.array(REFERENCE["datasets"][case["dataset"]][key]) for key in DATA}
    return [np.pad(a, ((0, 0), (0, D - a.shape[1]))) if a.ndim == 2 else a for a in data.values()]


@jax.jit
def evaluate(gp, X, y, Z, Xs, V):
    """Everything about one case in one compilation; V [3, n] holds CGLB's vectors."""

    def with_gradient(bound, *arguments):
        def value(*arguments):
            terms = bound(*arguments)
            return terms.value, terms

        everything = tuple(range(len(arguments)))
        (value, terms), gradient = jax.value_and_grad(value, everything, has_aux=True)(*arguments)
        return {"value": value, "terms": vars(terms), "gradient": gradient}

    def prediction(found):
        return {"mean": found.mean(Xs), "var": found.variance(Xs)}

    def cglb_at(v):
        return {
            **with_gradient(lambda gp, Z: bounds.cglb(gp, X, y, Z, v), gp, Z),
            "predict": prediction(posterior.cglb(gp, X, y, Z, v)),
        }

    exact, sgpr = posterior.exact(gp, X, y), posterior.sgpr(gp, X, y, Z)
    return {
        "exact": {
            **with_gradient(lambda gp: bounds.exact(gp, X, y), gp),
            "predict": prediction(exact) | {"cov": exact.covariance(Xs)},
        },
        "sgpr": {
            **with_gradient(lambda gp, Z: bounds.sgpr(gp, X, y, Z), gp, Z),
            "predict": prediction(sgpr) | {"cov": sgpr.covariance(Xs)},
        },
        "cglb": jax.lax.map(cglb_at, V),
    }


@functools.cache
def found(name):
    """The package's numbers for a case, laid out like the stored ones."""
    case = CASES[name]
    *data, v = data_of(case)
    V = np.stack([np.zeros_like(v), v, case["cglb"]["cg"]["v"]])
    with cglb.float64():
        arguments = jax.tree.map(jnp.asarray, (model_of(case), *data, V))
        result = jax.tree.map(np.asarray, evaluate(*arguments))
    by_vector = [jax.tree.map(lambda leaf, i=i: leaf[i], result["cglb"]) for i in range(3)]
    return {**result, "cglb": dict(zip(VECTORS, by_vector, strict=True))}


def both(name, what):
    """(found, stored) for "exact", "sgpr" or "cglb.<vector>"."""
    keys = what.split(".")
    return functools.reduce(lambda tree, key: tree[key], keys, found(name)), functools.reduce(
        lambda tree, key: tree[key], keys, CASES[name]
    )


@EVERY_CASE
def test_values_gradients_and_predictions_agree_with_gpflow(name):
    for what in QUANTITIES:
        ours, theirs = both(name, what)
        assert ours["value"] == pytest.approx(theirs["value"], rel=1e-9), what
        for term, value in theirs.get("terms", {}).items():
            assert ours["terms"][term] == pytest.approx(value, rel=1e-9), (what, term)
        assert_gradients_agree(what, ours["gradient"], theirs["gradient"])
        for key, value in theirs["predict"].items():
            np.testing.assert_allclose(
                ours["predict"][key], value, rtol=1e-8, atol=1e-9, err_msg=f"{what}: {key}"
            )
    assert_in_the_order_of_the_theory(CASES[name], float(found(name)["exact"]["value"]))


def assert_gradients_agree(what, ours, theirs):
    gp_bar, *Z_bar = ours
    gradient = {"noise": gp_bar.noise, "mean": gp_bar.mean} | vars(gp_bar.kernel)
    if Z_bar:
        gradient["Z"] = Z_bar[0]
    wanted = {key: np.array(value) for key, value in theirs.items() if key != "v"}  # v is data here
    assert gradient.keys() == wanted.keys(), what
    for key, value in wanted.items():
        slope = gradient[key]
        if key in ("lengthscale", "Z"):
            columns = value.shape[-1]
            assert not slope[..., columns:].any(), (what, key)
            slope = slope[..., :columns]
        room = 1e-8 * np.abs(value).max()
        np.testing.assert_allclose(slope, value, rtol=1e-8, atol=room, err_msg=f"{what}: {key}")


def assert_in_the_order_of_the_theory(theirs, exact):
    """Titsias' upper bound of 2014 is not the package's, but must lie above the exact value too."""
    lower = theirs["sgpr"]["value"], theirs["cglb"]["zero"]["value"], theirs["cglb"]["cg"]["value"]
    assert lower[0] <= lower[1] <= lower[2] <= exact <= theirs["sgpr"]["upper_bound"]


PEERS = {"Matern12": 0.5, "Matern32": 1.5, "Matern52": 2.5, "SquaredExponential": np.inf}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["kernel"] in PEERS])
def test_exact_value_and_gradient_agree_with_scikit_learn(name):
    """Its parameters are logarithms: d/d log θ = θ d/dθ."""
    X, y, *_ = data_of(CASES[name])
    gp = model_of(CASES[name])
    variance, lengthscale, noise = gp.kernel.variance, gp.kernel.lengthscale, gp.noise
    kernel = peers.ConstantKernel(variance) * peers.Matern(lengthscale, nu=PEERS[CASES[name]["kernel"]])
    kernel += peers.WhiteKernel(noise)
    peer = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, y - gp.mean)
    value, slope = peer.log_marginal_likelihood(peer.kernel_.theta, eval_gradient=True)

    ours = found(name)["exact"]
    (bar,) = ours["gradient"]
    assert ours["value"] == pytest.approx(value, rel=1e-10)
    logarithmic = np.array(
        [bar.kernel.variance * variance, *(bar.kernel.lengthscale * lengthscale), bar.noise * noise]
    )
    np.testing.assert_allclose(logarithmic, slope, rtol=1e-8, atol=1e-10)
