"""What a user may leave open or say beforehand: the kernel, the inducing points, priors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import norm

import cglb
from cglb import CGLB, Exact, GPRegressor
from cglb.core.errors import StoreError
from cglb.linalg.inducing import greedy_rows
from cglb.methods.stages import STARTS
from cglb.training.free import Parameters
from cglb.training.kernel_choice import FAMILIES, choose_kernel
from cglb.training.options import ENOUGH
from cglb.training.priors import Priors, as_priors
from cglb.training.problem import random_rows


def smooth(n=40, slope=0.0, noise=0.1):
    """A smooth function of two columns, with a slope in the first."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] ** 2 + slope * X[:, 0] + noise * rng.normal(size=n)
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()


def start():
    return cglb.GP(cglb.Matern32(np.ones(2)))


# ---- the kernel ----


@pytest.fixture(scope="module")
def chosen():
    return choose_kernel(*smooth())


def test_kernels_are_ranked_by_the_exact_evidence_of_the_best(chosen):
    X, y = smooth()
    [(rows, ranking)] = chosen.rounds
    names, values = zip(*ranking, strict=True)
    assert list(values) == sorted(values, reverse=True)
    assert set(FAMILIES) < set(names)
    assert sum(name.endswith("+ linear") for name in names) == 1
    assert values[0] == pytest.approx(float(cglb.posteriors.exact(chosen.gp, X, y).lml), abs=1e-6)
    assert rows == 40
    assert chosen.name == names[0]


def test_on_more_rows_the_first_family_and_the_best_other_are_compared_again():
    X, y = smooth(60)
    found = choose_kernel(X, y, families=("matern32", "rbf"), starts=STARTS[:1], parts=(20, 40))
    (few, first), (more, second) = found.rounds
    assert (few, more) == (20, 40)
    others = [name for name, _ in first if name != "matern32"]
    assert {name for name, _ in second} == {"matern32", others[0]}
    assert found.name == second[0][0]
    part = random_rows(60, 40, 0)
    exact = float(cglb.posteriors.exact(found.gp, X[part], y[part]).lml)
    assert second[0][1] == pytest.approx(exact, abs=1e-6)
    # the same kernel, before the second round
    assert type(found.begin.kernel) is type(found.gp.kernel)
    assert float(cglb.posteriors.exact(found.begin, X[part], y[part]).lml) < exact


def test_every_family_is_at_least_as_good_as_where_it_began(chosen):
    X, y = smooth()
    by_name = dict(chosen.rounds[0][1])
    for name in ("rbf", "matern52"):
        gp = cglb.GP(cglb.kernels.find(name).default(2))
        assert by_name[name] > float(cglb.posteriors.exact(gp, X, y).lml)


def test_the_regressor_trains_the_best_kernel_and_keeps_the_ranking_in_a_file(tmp_path):
    X, y = smooth()
    model = GPRegressor(kernel="auto", priors={"noise": (0.01, 1.0)}, max_steps=3)
    with pytest.warns(UserWarning, match="step limit"):
        model.fit(X, y)
    [(rows, ranking)] = model.fit_report_.rankings
    assert rows == 40
    best, *_ = ranking
    assert best.split(" + ")[0].replace("_", "") in type(model.gp_.kernel).__name__.lower() + (
        "" if "linear" not in best else type(model.gp_.kernel.left).__name__.lower()
    )
    assert "Kernels by log p(y) of 40 rows" in str(model.fit_report_)
    model.save(tmp_path / "auto.model")
    loaded = GPRegressor.load(tmp_path / "auto.model")
    assert loaded.fit_report_ == model.fit_report_
    assert loaded.priors == {"noise": (0.01, 1.0)}
    assert loaded.kernel == "auto"
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_a_kernel_that_is_still_to_be_chosen_cannot_be_held_fixed():
    with pytest.raises(ValueError, match="name the kernel"):
        GPRegressor(kernel="auto", fixed=("kernel.lengthscale",)).fit(*smooth())


# ---- priors ----


def test_log_prior_is_a_normal_density_of_logarithms_and_its_gradient_is_right():
    given = as_priors({"noise": (0.1, 0.5), "lengthscale": (2.0, 1.5)}, 2)
    gp = cglb.GP(cglb.Matern32(np.array([0.7, 3.0])), np.asarray(0.02))
    priors = Priors.of(given, Parameters(gp))
    value, slope = priors(gp)
    expected = norm.logpdf(np.log(0.02), np.log(0.1), 0.5)
    expected += norm.logpdf(np.log([0.7, 3.0]), np.log(2.0), 1.5).sum()
    assert value == pytest.approx(expected, rel=1e-12)
    leaves, structure = jax.tree.flatten(gp)
    sizes = np.cumsum([0, *(np.size(leaf) for leaf in leaves)])

    def at(flat):
        parts = [flat[a:b].reshape(np.shape(leaf)) for a, b, leaf in zip(sizes, sizes[1:], leaves)]  # noqa: B905
        return priors(jax.tree.unflatten(structure, parts))[0]

    flat = np.concatenate([np.ravel(leaf) for leaf in leaves])
    numeric = approx_fprime(flat, at, 1e-7)
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(slope)])
    np.testing.assert_allclose(found, numeric, rtol=1e-4, atol=1e-4)


def test_dimension_asks_for_longer_lengthscales_with_more_columns():
    (name, (few, _)), (_, (many, _)) = as_priors("dimension", 4)[0], as_priors("dimension", 16)[0]
    assert name == "lengthscale"
    assert many == 2.0 * few == 4.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("wide", "priors must be 'dimension'"),
        ({"noise": 3.0}, "pair of positive numbers"),
        ({"noise": (0.1, -1.0)}, "pair of positive numbers"),
        ({"mean": (1.0, 1.0)}, "No positive parameter is called 'mean'"),
        ({"period": (1.0, 1.0)}, "No positive parameter is called 'period'"),
    ],
)
def test_priors_that_make_no_sense_are_named(given, words):
    with pytest.raises(ValueError, match=words):
        cglb.train(start(), *smooth(), Exact(), schedule="direct", priors=given, max_steps=1)


def test_a_narrow_prior_decides_and_the_bound_is_without_it():
    X, y = smooth()
    fit = cglb.train(
        start(), X, y, Exact(), schedule="direct", priors={"noise": (0.5, 0.001)}, max_steps=30
    )
    assert float(fit.gp.noise) == pytest.approx(0.5, rel=0.01)
    assert fit.bound == pytest.approx(float(cglb.posteriors.exact(fit.gp, X, y).lml), abs=1e-6)
    last = fit.history[-1]
    assert last["bound"] == pytest.approx(fit.bound, abs=1e-9)
    z = norm.logpdf(np.log(last["parameters"]["noise"]), np.log(0.5), 0.001)
    assert last["log_prior"] == pytest.approx(z, rel=1e-9)
    totals = [row["bound"] + row["log_prior"] for row in fit.history]
    assert totals == sorted(totals)


@pytest.mark.filterwarnings("ignore:Training has not converged")
def test_a_fit_with_a_chosen_kernel_and_priors_resumes_to_the_same_bits(tmp_path):
    X, y = smooth()
    settings = {"kernel": "auto", "priors": "dimension"}
    GPRegressor(max_steps=2, checkpoint=tmp_path / "fit", **settings).fit(X, y)
    resumed = GPRegressor(max_steps=4, checkpoint=tmp_path / "fit", **settings).fit(X, y)
    whole = GPRegressor(max_steps=4, **settings).fit(X, y)
    assert [row["bound"] for row in resumed.history_] == [row["bound"] for row in whole.history_]
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))
    with pytest.raises(StoreError, match="another fit"):
        GPRegressor(max_steps=4, checkpoint=tmp_path / "fit", kernel="auto").fit(X, y)


# ---- inducing points ----


def test_greedy_points_stop_where_the_rest_is_explained():
    X, _ = smooth(200)
    kernel = cglb.RBF(np.full(2, 3.0))
    with cglb.float64():
        inputs = jnp.asarray(X)
        rows = greedy_rows(kernel, inputs, 128, seed=0, enough=1e-3)
        all_rows = greedy_rows(kernel, inputs, 128, seed=0)
    assert len(rows) < 128
    assert len(rows) & (len(rows) - 1) == 0  # a power of two
    np.testing.assert_array_equal(rows, all_rows[: len(rows)])

    def unexplained(rows):
        with cglb.float64():
            K, Ku = np.asarray(kernel(inputs, inputs)), np.asarray(kernel(inputs, inputs[rows]))
        return np.trace(K - Ku @ np.linalg.solve(Ku[rows] + 1e-12 * np.eye(len(rows)), Ku.T))

    assert unexplained(rows) <= 1e-3
    assert unexplained(rows[: len(rows) // 2]) > 1e-3 / 200


def test_auto_takes_few_points_where_more_cannot_matter_and_says_so():
    X, y = smooth(80)
    settings = {"method": CGLB(), "kernel": cglb.RBF(np.full(2, 3.0)), "noise": 0.5, "max_steps": 2}
    settings |= {"schedule": "direct", "fixed": ("kernel.lengthscale",)}
    with pytest.warns(UserWarning, match="step limit"):
        few = GPRegressor(**settings).fit(X, y)
    with pytest.warns(UserWarning, match="step limit"):
        many = GPRegressor(num_inducing=80, **settings).fit(X, y)
    assert few.fit_report_.points < 80
    assert f"more could raise the bound by at most {ENOUGH} nats" in str(few.fit_report_)
    assert many.fit_report_.points_reason == ""
    assert few.fit_report_.bound == pytest.approx(many.fit_report_.bound, abs=5 * ENOUGH)


def test_a_joint_stage_polishes_inducing_points_after_the_others():
    X, y = smooth(60)
    fit = cglb.train(
        start(), X, y, CGLB("amgm"), parts=(20,), num_inducing=6, optimize_inducing=True, max_steps=60
    )
    stages = {row["stage"] for row in fit.history}
    last = max(stages)
    polished = [row["bound"] for row in fit.history if row["stage"] == last]
    whole = [row["bound"] for row in fit.history if row["stage"] == last - 1]
    assert polished[-1] > whole[-1]
    distances = np.abs(fit.Z[:, None, :] - X[None, :, :]).max(-1).min(-1)
    assert distances.max() > 1e-6  # no longer rows of X
