"""Cases that once went wrong, each in a few lines and with names that have always been public.

`python benchmarks/cases.py` runs this file with the code of an earlier commit too, where every case
fails. Other files test the same promises in more detail.
"""

import os
import signal
import warnings

import numpy as np
import precise
import pytest

import cglb
from cglb import GP, GPRegressor, Linear, Matern12, Matern32, bounds

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.1 * RNG.normal(size=40)
MODEL = GP(Matern32(1.0), 0.01)


def fitted(**settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GPRegressor("cglb", num_inducing=8, max_steps=3, **settings).fit(X, Y)


def contains(evidence, truth):
    return evidence.lower <= truth <= evidence.upper


# ---- distances ----


def outlier(value):
    x = X.copy()
    x[0] = value
    return x, precise.log_likelihood(MODEL, x, Y)


def test_an_outlier_in_the_first_row_leaves_the_exact_value_right():
    x, truth = outlier(1e8)
    assert float(bounds.exact(MODEL, x, Y).value) == pytest.approx(truth, abs=1e-6)


def test_an_outlier_in_the_first_row_leaves_the_interval_around_the_truth():
    x, truth = outlier(1e6)
    found = cglb.certify(MODEL, x, Y)
    assert contains(found, truth)
    assert np.isfinite(found.width)


def test_close_pairs_far_apart_leave_the_interval_around_the_truth():
    rng = np.random.default_rng(1)
    x = np.repeat(1e6 * rng.normal(size=(20, 2)), 2, axis=0)
    x[1::2] += rng.normal(size=(20, 2))
    gp = GP(Matern12(1.0), 1e-3)
    assert contains(cglb.certify(gp, x, Y, exact=True), precise.log_likelihood(gp, x, Y))


def test_a_linear_kernel_far_from_the_origin_keeps_a_bound_a_bound():
    gp, x = GP(Linear(1.0), 0.01), 1e6 + X
    truth = precise.log_likelihood(gp, x, Y)
    for seed in range(8):
        found = bounds.cglb(gp, x, Y, x[:8], np.random.default_rng(seed).normal(size=40))
        # `lower` is the value less what rounding may have added
        assert getattr(found, "lower", found.value) <= truth


# ---- rounding ----


def noiseless(kernel):
    gp = GP(kernel, 1e-6)
    y = X @ np.array([1.0, -0.5])
    return gp, y, precise.log_likelihood(gp, X, y)


def test_an_exact_certificate_of_noiseless_data_contains_the_truth():
    gp, y, truth = noiseless(cglb.RBF(6.0, 1e6))
    assert contains(cglb.certify(gp, X, y, exact=True), truth)


def test_no_certificate_of_noiseless_data_has_its_ends_in_the_wrong_order():
    for variance in (1.0, 5181.0, 1e8):
        gp, y, truth = noiseless(Matern32(6.0, variance))
        found = cglb.certify(gp, X, y)
        assert found.lower <= found.upper
        assert contains(found, truth)


def test_no_model_is_proven_better_than_itself():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(40, 2))
        y = np.sin(2.0 * x[:, 0]) + 0.1 * rng.normal(size=40)
        assert "proven better" not in str(cglb.compare({"one": MODEL, "same": MODEL}, x, y))


# ---- whole or unchanged ----


def test_a_refit_that_is_interrupted_leaves_the_model_as_it_was():
    model = fitted()
    expected = model.predict(X)
    if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        pytest.skip("somebody else uses the alarm")

    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            model.set_params(max_steps=10_000, num_inducing=30).fit(1000.0 * X + 5.0, 300.0 * Y - 7.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    model.set_params(max_steps=3, num_inducing=8)
    np.testing.assert_array_equal(model.predict(X), expected)


def test_settings_changed_without_a_refit_are_noticed_and_change_nothing():
    model = fitted()
    expected = model.predict(X, return_std=True)[1]
    model.set_params(method="exact")
    with pytest.warns(UserWarning, match="changed after fit"):
        found = model.predict(X, return_std=True)[1]
    np.testing.assert_array_equal(found, expected)


def test_a_matrix_without_a_factor_is_a_named_error():
    x = np.repeat(np.linspace(0.0, 1.0, 12)[:, None], 2, axis=0)
    with pytest.raises(np.linalg.LinAlgError):
        bounds.exact(GP(cglb.RBF(1.0, 1e12), 1e-8), x, np.sin(x[:, 0]))


# ---- processes and files ----


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_ends():
    """It computes, or says what to do instead: it does not hang."""
    x = RNG.normal(size=(1500, 2))
    call = [MODEL, x, x[:, 0], x[:8], np.zeros(1500)]
    bounds.cglb(*call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends the child if it hangs
        try:
            bounds.cglb(*call)
        except Exception:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, 1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_time_budget_is_positive(seconds):
    with pytest.raises(ValueError, match="max_seconds"):
        cglb.certify(MODEL, X, Y, max_seconds=seconds)


def test_a_model_saved_over_a_link_leaves_the_link(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    fitted().save(link)
    assert link.is_symlink()


def test_a_file_with_other_contents_and_a_valid_checksum_is_one_documented_error(tmp_path):
    fitted().save(tmp_path / "model")
    try:
        from cglb.core.errors import StoreError
        from cglb.io.tensorfile import read, write
        from cglb.regressor.file import KIND, VERSION
    except ImportError:  # an earlier commit
        from cglb.model_file import KIND, VERSION
        from cglb.store import StoreError, read, write
    document, arrays = read(tmp_path / "model", KIND, VERSION)
    weights = arrays["posterior.weights"]
    for spoilt in (weights[:1], weights[:, None], np.full_like(weights, np.nan)):
        write(tmp_path / "bad", KIND, VERSION, document, {**arrays, "posterior.weights": spoilt})
        with pytest.raises(StoreError):
            GPRegressor.load(tmp_path / "bad").predict(X)


# ---- odd data ----


def test_an_outlier_in_the_inputs_is_remarked_on():
    x = X.copy()
    x[3, 1] = 1e6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GPRegressor("cglb", num_inducing=8, max_steps=3).fit(x, Y)
    assert "outlier" in str(model.fit_report_)
