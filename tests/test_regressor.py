"""GPRegressor: scikit-learn's conventions, the user's units, and no option without an effect."""

import copy
import functools
import inspect
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import problems
import pytest
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import cglb
from cglb import GPRegressor, posteriors
from cglb.bounds.interval import Evidence
from cglb.core.errors import StoreError
from cglb.regressor import FitReport, predictions
from cglb.training.problem import Problem

# units of the user's: far from standardised
STANDARD, Y, _ = problems.data(n=40, d=2, m=8)
X = STANDARD * [30.0, 0.02] + [500.0, -1.0]
Y = 250.0 * Y + 1e4
NEW = X[:7] + np.array([7.0, 0.005])
METHODS = ("cglb", "sgpr", "exact")


def make(method="cglb", **settings):
    return GPRegressor(method, **{"num_inducing": 8, "max_steps": 4, "schedule": "direct", **settings})


@functools.cache
def fitted(method="cglb"):
    return make(method).fit(X, Y)


def prior(model, X):
    """Mean [n] and covariance [n, n] of observations at X, in the user's units."""
    inside = (X - model.X_shift_) / model.X_scale_
    mean = np.full(len(X), float(model.gp_.mean)) * model.y_scale_ + model.y_shift_
    return mean, problems.dense(model.gp_, inside) * model.y_scale_**2


# ---- scikit-learn ----


def not_repetitions(estimator):
    """A weight divides the noise of a row. Copies of a row would also say that its noise is small."""
    return {"check_sample_weight_equivalence_on_dense_data": not_repetitions.__doc__}


@parametrize_with_checks(
    [GPRegressor("exact", max_steps=1, schedule="direct")], expected_failed_checks=not_repetitions
)
def test_scikit_learns_own_checks(estimator, check, monkeypatch):
    # the tests' import hook enforces annotations, but scikit-learn wants a constructor that takes all
    monkeypatch.setattr(GPRegressor, "__init__", inspect.unwrap(GPRegressor.__init__))
    check(estimator)


def test_a_row_is_predicted_alike_alone_and_among_others():
    estimator_checks.check_methods_subset_invariance("GPRegressor", make(max_steps=1))


def test_a_clone_has_the_settings_and_not_the_fit():
    model = fitted()
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(NEW)


@pytest.mark.parametrize("ask", ["predict", "predict_f", "predict_interval", "sample_y", "update"])
def test_nothing_can_be_asked_of_a_model_that_is_not_fitted(ask):
    arguments = (X, Y) if ask == "update" else (X,)
    with pytest.raises(NotFittedError):
        getattr(GPRegressor(), ask)(*arguments)
    with pytest.raises(NotFittedError):
        GPRegressor().evidence()


def test_in_a_pipeline_a_scaler_changes_nothing():
    plain = fitted("exact").predict(NEW, return_std=True)
    piped = make_pipeline(StandardScaler(), make("exact")).fit(X, Y).predict(NEW, return_std=True)
    np.testing.assert_allclose(piped[0], plain[0], rtol=1e-8)
    np.testing.assert_allclose(piped[1], plain[1], rtol=1e-6)


def test_a_grid_search_finds_the_kernel_that_made_the_data():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 10.0, size=40))[:, None]
    y = 3.0 * x[:, 0] + 0.01 * rng.normal(size=40)
    kernels = {"kernel": [cglb.Linear(1.0) + cglb.Constant(1.0), cglb.Matern12(0.05)]}
    search = GridSearchCV(make("exact", max_steps=2), kernels, cv=2).fit(x, y)
    assert search.best_params_["kernel"] is kernels["kernel"][0]
    assert search.best_score_ > 0.99
    np.testing.assert_allclose(search.predict(x), y, atol=0.1)


# ---- tables ----

FRAMES = {"pandas": pd.DataFrame, "polars": pl.DataFrame}


@pytest.mark.parametrize("library", FRAMES)
def test_tables_give_names_and_the_same_fit(library):
    table = FRAMES[library]({"speed": X[:, 0], "width": X[:, 1]})
    target = {"pandas": pd.Series, "polars": pl.Series}[library](Y)
    model = make("exact").fit(table, target)
    assert list(model.feature_names_in_) == ["speed", "width"]
    assert list(model.relevance_) == ["speed", "width"]
    np.testing.assert_array_equal(model.predict(table), fitted("exact").predict(X))
    swapped = table[["width", "speed"]]
    with pytest.raises(ValueError, match="order"):
        model.predict(swapped)
    with pytest.raises(ValueError, match="order"):
        model.update(swapped, target)


def test_relevance_is_one_for_the_input_that_matters_most():
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(40, 2))
    model = make("exact", max_steps=20).fit(inputs, np.sin(3.0 * inputs[:, 1]))
    assert model.relevance_["x1"] == 1.0
    assert model.relevance_["x0"] < 0.2


# ---- predictions ----


@pytest.mark.parametrize("method", METHODS)
def test_predictions_agree_with_each_other(method):
    model = fitted(method)
    mean, std = model.predict(NEW, return_std=True, variance="sgpr")
    also, covariance = model.predict(NEW, return_cov=True)
    latent_mean, latent_std = model.predict_f(NEW, return_std=True, variance="sgpr")
    _, latent_covariance = model.predict_f(NEW, return_cov=True)
    for other in (model.predict(NEW), also, latent_mean, model.predict_f(NEW)):
        np.testing.assert_array_equal(other, mean)
    noise = float(model.gp_.noise) * model.y_scale_**2
    np.testing.assert_allclose(np.diag(covariance), std**2, rtol=1e-6)
    np.testing.assert_allclose(std**2 - latent_std**2, noise, rtol=1e-6)
    np.testing.assert_allclose(covariance - latent_covariance, noise * np.eye(7), atol=1e-9 * noise)
    np.testing.assert_allclose(covariance, covariance.T, rtol=1e-12)
    assert np.linalg.eigvalsh(covariance).min() > 0.0


def test_exact_predictions_are_the_conditional_distribution_in_the_users_units():
    model = fitted("exact")
    mean, covariance = prior(model, np.concatenate([X, NEW]))
    weights = np.linalg.solve(covariance[:40, :40], covariance[:40, 40:]).T
    expected = mean[40:] + weights @ (Y - mean[:40])
    found, found_covariance = model.predict(NEW, return_cov=True)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(
        found_covariance, covariance[40:, 40:] - weights @ covariance[:40, 40:], rtol=1e-6, atol=1e-6
    )


def test_std_and_covariance_cannot_both_be_asked_for():
    with pytest.raises(ValueError, match=r"return_std.*return_cov"):
        fitted().predict(NEW, return_std=True, return_cov=True)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_intervals_hold_a_new_observation_with_their_probability(level):
    mean, std = fitted().predict(NEW, return_std=True)
    low, high = fitted().predict_interval(NEW, level)
    inside = norm.cdf(high, mean, std) - norm.cdf(low, mean, std)
    np.testing.assert_allclose(inside, level, rtol=1e-9)
    np.testing.assert_allclose((low + high) / 2.0, mean)


def test_samples_have_the_predictive_mean_and_covariance():
    model, count = fitted(), 20_000
    mean, covariance = model.predict(NEW, return_cov=True)
    draws = model.sample_y(NEW, count, random_state=0)
    assert draws.shape == (7, count)
    variance = np.diag(covariance)
    assert (np.abs(draws.mean(axis=1) - mean) < 4.5 * np.sqrt(variance / count)).all()
    scale = np.sqrt(np.outer(variance, variance))
    assert (np.abs(np.cov(draws) - covariance) < 4.5 * scale * np.sqrt(2.0 / count)).all()


def test_samples_follow_their_seed():
    model = fitted()
    np.testing.assert_array_equal(model.sample_y(NEW, 2, random_state=1), model.sample_y(NEW, 2, 1))
    assert not np.array_equal(model.sample_y(NEW, 2, random_state=1), model.sample_y(NEW, 2, 2))


def test_score_is_the_explained_share_of_the_variance():
    assert fitted().score(X, Y) == r2_score(Y, fitted().predict(X))
    assert fitted().score(X, Y) > 0.8


@pytest.mark.parametrize("method", METHODS)
def test_an_update_conditions_on_all_rows(method):
    model = make(method).fit(X, Y)
    before = model.predict(NEW)
    target = Y[:7] + 300.0
    assert model.update(NEW, target) is model
    rows, targets = np.concatenate([X, NEW]), np.concatenate([Y, target])
    inside = (rows - model.X_shift_) / model.X_scale_
    e = (targets - model.y_shift_) / model.y_scale_
    if method == "exact":
        fresh = posteriors.exact(model.gp_, inside, e)
    elif method == "sgpr":
        fresh = posteriors.sgpr(model.gp_, inside, e, model._Z)
    else:
        v = np.linalg.solve(problems.dense(model.gp_, inside), e - float(model.gp_.mean))
        fresh = posteriors.cglb(model.gp_, inside, e, model._Z, v)
    where = (X[:10] - model.X_shift_) / model.X_scale_
    expected = fresh.mean(where) * model.y_scale_ + model.y_shift_
    np.testing.assert_allclose(model.predict(X[:10]), expected, atol=0.01 * model.y_scale_)
    spread = np.sqrt(fresh.variance(where) + float(model.gp_.noise)) * model.y_scale_
    np.testing.assert_allclose(
        model.predict(X[:10], return_std=True, variance="sgpr")[1], spread, rtol=1e-6
    )
    assert np.abs(model.predict(NEW) - before).max() > 10.0
    assert str(model.gp_) == str(fitted(method).gp_)
    assert float(model.gp_.noise) == float(fitted(method).gp_.noise)  # hyperparameters stay


# ---- what was learned ----


@pytest.mark.parametrize("method", METHODS)
def test_the_evidence_interval_contains_the_exact_value_in_the_users_units(method):
    model = fitted(method)
    exact = multivariate_normal(*prior(model, X)).logpdf(Y)
    found = model.evidence()
    room = problems.slack_for(exact)
    assert found.lower - room <= exact <= found.upper + room
    assert found.width >= 0.0
    assert model.fit_report_.bound <= exact + room
    if method == "exact":
        assert found.width < 1e-6


@pytest.mark.parametrize("how", ["local", "cg"])
def test_certified_variances_are_never_below_the_exact_one(how):
    model = fitted("cglb")
    rows = X[:7] + 0.1
    mean, std = model.predict(rows, return_std=True, variance=how)
    _, latent = model.predict_f(rows, return_std=True, variance=how)
    noise = float(model.gp_.noise) * model.y_scale_**2
    _, K = prior(model, np.concatenate([X, rows]))
    exact = np.diag(K[40:, 40:] - K[40:, :40] @ np.linalg.solve(K[:40, :40], K[:40, 40:])) - noise
    np.testing.assert_array_equal(mean, model.predict(rows))
    assert (latent**2 >= exact * (1 - 1e-6)).all()
    np.testing.assert_allclose(std**2, latent**2 + noise)
    low, high = model.predict_interval(rows, variance=how)
    assert ((low < mean) & (mean < high)).all()
    if how == "cg":
        assert (latent**2 <= 1.011 * exact).all()


@pytest.mark.parametrize("how", ["local", "cg"])
@pytest.mark.parametrize("method", ["cglb", "exact"])
def test_many_rows_are_predicted_in_parts_and_progress_is_shown(method, how, monkeypatch, capsys):
    model = copy.deepcopy(fitted(method)).set_params(progress=True)
    rows = np.concatenate([X + 0.1, X[:3]])
    whole = model.predict(rows, return_std=True, variance=how)
    assert "rows" not in capsys.readouterr().err
    monkeypatch.setattr(predictions, "ROWS", 16)
    monkeypatch.setattr(predictions, "CG_ROWS", 16)
    parts = model.predict(rows, return_std=True, variance=how)
    assert "rows 43/43" in capsys.readouterr().err
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-9)
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-9 if how == "local" else 1e-2)


@pytest.mark.parametrize("method", ["cglb", "exact"])
def test_another_number_of_rows_in_the_same_bucket_compiles_nothing(method, monkeypatch):
    model = fitted(method)
    monkeypatch.setattr(predictions, "ROWS", 160)
    rows = np.random.default_rng(0).normal(size=(400, 2))
    for s in (1, 8, 9, 100, 160, 400):
        model.predict(rows[:s], return_std=True)
    with problems.counted() as programs:
        for s in (2, 7, 99, 150, 161, 333):
            model.predict(rows[:s], return_std=True)
    assert not programs


def test_a_bracket_of_an_exact_model_is_a_point():
    found = fitted("exact").variance_bracket(X[:3])
    np.testing.assert_array_equal(found.lower, found.upper)


def test_a_way_to_a_variance_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="variance must be one of auto, sgpr, local, cg, found 'love'"):
        fitted("cglb").predict(X[:3], variance="love")
    with pytest.raises(ValueError, match="variances, not covariances"):
        fitted("cglb").predict(X[:3], return_cov=True, variance="cg")


def test_evidence_reads_as_a_sentence():
    assert str(Evidence(-3.0, 2.5)) == "log p(y) is between -3.00 and 2.50"
    assert Evidence(-3.0, 2.5).width == 5.5


@pytest.mark.parametrize("method", METHODS)
def test_history_and_report_tell_how_it_went(method):
    model = fitted(method)
    assert model.n_iter_ == len(model.history_) == model.fit_report_.steps == 4
    said = str(model.fit_report_)
    assert "after 4 steps" in said
    assert said.count("Stopped at the step limit") == 1
    what = "log marginal likelihood" if method == "exact" else "bound on the log marginal likelihood"
    assert f"The {what} is {model.fit_report_.bound:.2f} nats" in said
    assert ("onjugate gradients" in said) == (method == "cglb")


REPORT = FitReport(
    stop="converged",
    message="The gradient is zero.",
    steps=3,
    evaluations=5,
    seconds=1.0,
    bound=-10.0,
    products=20,
    slack=0.001,
    cg_trouble=0,
    jitter=1e-12,
    at_floor=(),
    rows=40,
    prediction_stop="tolerance",
)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"cg_trouble": 2}, "In 2 steps conjugate gradients stopped before their tolerance"),
        ({"prediction_stop": "breakdown"}, "stopped at: breakdown"),
        ({"at_floor": ("noise",)}, "At the lower limit: noise"),
        ({"jitter": 1e-5}, "Jitter of up to 1e-05"),
    ],
)
def test_trouble_is_reported_and_its_absence_is_not(trouble, words):
    assert words in str(replace(REPORT, **trouble))
    assert words not in str(REPORT)
    assert "converged. The gradient is zero." in str(REPORT)


# ---- what stays as it was ----


def test_a_fit_that_fails_leaves_the_estimator_as_it_was(tmp_path):
    model = make("exact").fit(pd.DataFrame(X, columns=["speed", "width"]), Y)
    before, mean = dict(vars(model)), model.predict(pd.DataFrame(X, columns=["speed", "width"]))
    model.set_params(checkpoint=tmp_path)  # a folder cannot be read as a file
    with pytest.raises(StoreError, match="not a regular file"):
        model.fit(X[:, :1], Y)
    model.set_params(checkpoint=None, noise_floor=-1.0)
    with pytest.raises(ValueError, match="floor"):
        model.fit(X, Y)
    model.set_params(noise_floor=None)
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())
    np.testing.assert_array_equal(model.predict(pd.DataFrame(X, columns=["speed", "width"])), mean)


def test_settings_changed_after_a_fit_do_not_change_what_it_predicts():
    model = make().fit(X, Y)
    evidence = model.evidence()
    model.set_params(method="exact", kernel="rbf", logdet="trace", cg_tolerance=1e4, num_inducing=3)
    np.testing.assert_array_equal(model.predict(NEW), fitted().predict(NEW))
    assert model.evidence() == evidence
    assert model.variance_bracket(NEW).products > 0
    assert type(model.method_) is cglb.CGLB
    target = Y[:7] + 300.0
    again = make().fit(X, Y).update(NEW, target)
    np.testing.assert_array_equal(model.update(NEW, target).predict(X), again.predict(X))


def test_a_method_can_be_given_as_an_object():
    model = make(cglb.CGLB("hadamard", precondition="nystrom")).fit(X, Y)
    named = make(logdet="hadamard", precondition="nystrom").fit(X, Y)
    np.testing.assert_array_equal(model.predict(NEW), named.predict(NEW))
    assert model.method_ == named.method_
    assert clone(model).method == model.method


# ---- options ----


# option -> another value than the base's, and what has to differ in the fitted model
OPTIONS = {
    "method": ("exact", lambda model: model.history_[0]["cg_stop"]),
    "kernel": ("rbf", lambda model: type(model.gp_.kernel)),
    "num_inducing": (40, lambda model: model.evidence().width),
    "logdet": ("trace", lambda model: model.history_[-1]["bound"]),
    "precondition": ("nystrom", lambda model: model.fit_report_.products),
    "cg_tolerance": (1e4, lambda model: max(row["slack"] for row in model.history_) > 1.0),
    "optimize_inducing": (True, lambda model: float(model.gp_.noise)),
    "max_steps": (2, lambda model: model.n_iter_),
    "noise_floor": (0.5, lambda model: float(model.gp_.noise) >= 0.5),
    "random_state": (1, lambda model: model.evidence().width),
    "schedule": ("progressive", lambda model: model.n_iter_),
    "max_seconds": (1e-9, lambda model: model.n_iter_),
    "noise": (1e6, lambda model: float(model.gp_.noise)),
    "priors": ({"noise": (0.5, 0.01)}, lambda model: float(model.gp_.noise)),
    "fixed": (("kernel.variance",), lambda model: float(model.gp_.kernel.variance) == 1.0),
}
# these have tests of their own below, in test_hard_data.py, test_tables.py and test_kernel_choice.py
ELSEWHERE = {
    *("drop_missing", "impute", "kernel_units", "memory_gb", "progress", "checkpoint", "warm_start"),
}


def test_every_option_is_tested():
    assert OPTIONS.keys() | ELSEWHERE == GPRegressor().get_params().keys()


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_changes_the_fit(option):
    value, observe = OPTIONS[option]
    assert observe(make(**{option: value}).fit(X, Y)) != observe(fitted())


def test_a_warm_start_goes_on_from_the_last_model():
    model = make("exact", warm_start=True, max_steps=3).fit(X, Y)
    first = model.fit_report_.bound
    assert model.fit(X, Y).history_[0]["bound"] > first
    assert make("exact", max_steps=3).fit(X, Y).fit(X, Y).fit_report_.bound == first


def test_a_fixed_noise_in_the_users_units_stays():
    known = 0.01 * np.var(Y)
    model = make("exact", noise=known, fixed=("noise",)).fit(X, Y)
    assert float(model.gp_.noise) * model.y_scale_**2 == pytest.approx(known, rel=1e-12)


def test_what_a_user_should_know_is_a_warning():
    with pytest.warns(ConvergenceWarning, match="step limit"):
        make("exact", max_steps=1).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        found = GPRegressor().fit(X, Y)
    assert found.fit_report_.stop == "converged"
    assert found.fit_report_.concerns == ()


def test_the_method_is_chosen_by_the_rows_and_the_report_says_why(monkeypatch):
    assert "Method: exact (up to 4000 rows" in str(GPRegressor().fit(X, Y).fit_report_)
    monkeypatch.setattr("cglb.methods.choice.EXACT_ROWS", 39)
    model = GPRegressor(num_inducing=8, max_steps=2).fit(X, Y)
    assert "Method: cglb (above 39 rows" in str(model.fit_report_)
    assert model.method_.logdet == "auto"
    np.testing.assert_array_equal(
        model.predict(NEW, return_std=True)[1], model.predict(NEW, return_std=True, variance="local")[1]
    )


def test_the_floor_of_the_noise_is_reported_when_reached():
    assert fitted().fit_report_.at_floor == ()
    assert make(noise_floor=0.5).fit(X, Y).fit_report_.at_floor == ("noise",)


def test_a_kernel_object_is_the_start_and_is_not_changed():
    kernel = cglb.RBF([2.0, 3.0], 0.7)
    model = make("exact", kernel=kernel, max_steps=1).fit(X, Y)
    assert model.kernel is kernel
    np.testing.assert_array_equal(kernel.lengthscale, [2.0, 3.0])
    other = make("exact", kernel="rbf", max_steps=1).fit(X, Y)
    assert not np.allclose(model.gp_.kernel.lengthscale, other.gp_.kernel.lengthscale)


@pytest.mark.parametrize("seed", [0, np.random.RandomState(3)])
def test_the_same_seed_gives_the_same_predictions(seed):
    one, other = (make(random_state=s).fit(X, Y) for s in (seed, clone_seed(seed)))
    np.testing.assert_array_equal(one.predict(NEW), other.predict(NEW))


def clone_seed(seed):
    return seed if isinstance(seed, int) else np.random.RandomState(3)


def test_without_a_seed_a_fit_repeats_itself_and_leaves_the_global_generator_alone():
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    again = make().fit(X, Y)
    np.testing.assert_array_equal(again.predict(NEW), fitted().predict(NEW))
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_auto_takes_every_row_while_there_are_few():
    model = GPRegressor("cglb", max_steps=1).fit(X, Y)
    assert len(model._Z) == 40
    assert model.evidence().width < 0.1


def test_a_memory_budget_limits_auto_and_refuses_what_does_not_fit():
    eight = 8.5 * 4 * 8 * 40 / 2**30  # room for eight inducing points at 40 rows
    assert len(GPRegressor(memory_gb=eight, max_steps=1).fit(X, Y)._Z) == 8
    with pytest.raises(ValueError, match=r"memory_gb.*At most 8 inducing points"):
        make(num_inducing=9, memory_gb=eight).fit(X, Y)
    with pytest.raises(ValueError, match=r"exact.*memory_gb.*cglb"):
        make("exact", memory_gb=1e-6).fit(X, Y)


def test_progress_is_shown_only_on_request(capsys):
    make("exact", max_steps=2).fit(X, Y)
    assert capsys.readouterr().err == ""
    make("exact", max_steps=2, progress=True).fit(X, Y)
    assert "2/2" in capsys.readouterr().err


def test_a_checkpoint_makes_a_second_fit_free(tmp_path, monkeypatch):
    settings = {"method": "exact", "checkpoint": tmp_path / "fit"}
    first = make(**settings).fit(X, Y)

    def no_work(*args):
        raise AssertionError("All of it is in the checkpoint.")

    monkeypatch.setattr(Problem, "evaluate", no_work)
    second = make(**settings).fit(X, Y)
    np.testing.assert_array_equal(second.predict(NEW), first.predict(NEW))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "magic"}, "method must be one of auto, cglb, exact, iterative, sgpr"),
        ({"kernel": "magic"}, "no kernel called .magic.. There are: .*RBF"),
        ({"kernel": cglb.RBF(np.ones(3))}, "3 lengthscales, but the data has 2 columns"),
        ({"logdet": "magic"}, "logdet must be one of"),
        ({"cg_tolerance": -1.0}, "cg_tolerance must be positive"),
        ({"precondition": "magic"}, "precondition must be one of"),
        ({"num_inducing": 0}, "num_inducing must be a positive integer or 'auto'"),
        ({"num_inducing": "many"}, "num_inducing must be a positive integer or 'auto'"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"noise_floor": -1.0}, "floor must be finite and at least 0"),
    ],
)
def test_an_option_that_makes_no_sense_is_named_with_what_would(settings, words):
    with pytest.raises(ValueError, match=words):
        make(**settings).fit(X, Y)
