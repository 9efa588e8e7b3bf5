"""The reference of the soak against 50 digits, and its counts."""

import sys
from pathlib import Path

import numpy as np
import precise
import pytest

import cglb

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "soak"))
import quadruple
from tally import Tally, Violation

KERNELS = {
    "rbf": cglb.RBF([0.7, 1.1], 2.0),
    "matern12": cglb.Matern12([0.7, 1.1], 2.0),
    "matern32": cglb.Matern32([0.7, 1.1], 2.0),
    "matern52": cglb.Matern52(0.7, 2.0),
    "linear": cglb.Linear([2.0, 0.5]),
    "sum": cglb.RBF([0.7, 1.1], 2.0) + cglb.Linear(0.3),
    "product": cglb.Matern12(0.5, 3.0) * cglb.RBF([0.7, 1.1], 2.0),
}


@pytest.mark.skipif(quadruple.compiled() is None, reason="no gcc with libquadmath")
@pytest.mark.parametrize("name", KERNELS)
def test_the_compiled_reference_is_that_of_50_digits(name):
    """At a noise where float64 would lose all digits of the variances."""
    rng = np.random.default_rng(0)
    X, y = 1.0 + rng.normal(size=(7, 2)), rng.normal(size=7)
    gp = cglb.GP(KERNELS[name], 1e-9, 0.4)
    X_star = np.concatenate([X[:1], X[:2] + 0.1])
    found = quadruple.truth(gp, X, y, X_star)
    expected = quadruple._by_digits(gp, X, y, X_star)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-15)
    constant = 7 * np.log(2.0 * np.pi)
    value = -0.5 * (constant + found.logdet + found.quadratic)
    assert value == pytest.approx(precise.log_likelihood(gp, X, y), rel=1e-14)


def test_a_tally_counts_margins_and_stops_at_what_exceeds_them():
    tally = Tally()
    tally.check("sane", "bound", "again", [-1.0, 0.5, 3.0], [0.1, 1.0, np.inf])
    known = tally.kinds["sane"]["bound"]
    assert (known.count, known.useful, known.needed, known.largest) == (3, 2, 2, 1.0)
    assert known.used == 0.5
    for off, margin in ((0.2, 0.1), (np.nan, 1.0), (1.0, np.nan)):
        with pytest.raises(Violation, match="make it so"):
            tally.check("sane", "bound", "make it so", off, margin)
    assert Tally.from_json(tally.to_json()) == tally
