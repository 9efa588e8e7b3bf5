"""Leave-one-out predictions in closed form, and remarks about odd data."""

import numpy as np
import problems
import pytest

import cglb
from cglb.data.remarks import remarks

X, Y, _ = problems.data()


@pytest.mark.parametrize("method", ["exact", "cglb"])
def test_leave_one_out_is_what_a_model_without_the_row_predicts(method):
    model = cglb.GPRegressor(method, num_inducing=8, max_steps=2, schedule="direct").fit(
        X, 50.0 + 9.0 * Y
    )
    mean, std = model.leave_one_out()
    y = (50.0 + 9.0 * Y - model.y_shift_) / model.y_scale_
    inputs = (X - model.X_shift_) / model.X_scale_
    for row in (0, 17):
        others = np.arange(len(X)) != row
        without = cglb.posteriors.exact(model.gp_, inputs[others], y[others])
        at = inputs[row : row + 1]
        variance = without.variance(at)[0] + float(model.gp_.noise)
        assert mean[row] == pytest.approx(
            without.mean(at)[0] * model.y_scale_ + model.y_shift_, rel=1e-9
        )
        assert std[row] == pytest.approx(np.sqrt(variance) * model.y_scale_, rel=1e-9)


def test_odd_data_are_remarked_on_in_the_report():
    odd = np.column_stack([X, np.full(len(X), 1e6) + 1e-3 * X[:, 0]])
    odd[3, 0] = 1e6
    odd[5] = odd[4]
    model = cglb.GPRegressor(num_inducing=8, max_steps=1).fit(odd, Y)
    text = str(model.fit_report_)
    assert "Extreme outliers in x0" in text
    assert "Nearly constant: x2" in text
    assert "1 inputs occur more than once with different targets" in text
    assert len(model.fit_report_.remarks) == 3


def test_sane_data_need_no_remark():
    assert remarks(X, Y, ["a", "b"]) == ()
    heavy = np.random.default_rng(0).standard_t(2, size=(2000, 3))
    assert remarks(heavy, heavy[:, 0], ["a", "b", "c"]) == ()
