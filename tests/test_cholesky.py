"""Factors by blocks against SciPy's, at sizes where every branch is taken."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from cglb.compute.cpu import cholesky
from cglb.compute.parallel import Threads

RNG = np.random.default_rng(0)
SIZES = st.integers(1, 130)


@pytest.fixture(params=[True, False], ids=["threads", "one thread"], autouse=True)
def small_blocks(request, monkeypatch):
    for name in ("BLOCK", "LEAF", "PART"):
        monkeypatch.setattr(cholesky, name, 7)
    if request.param:
        monkeypatch.setattr(cholesky, "ALONE", 0)


def positive(n: int) -> np.ndarray:
    """A positive definite matrix, with nonsense above the diagonal."""
    G = RNG.standard_normal((n, n))
    A = np.asfortranarray(G @ G.T + np.eye(n))
    A[np.triu_indices(n, 1)] = np.nan
    return A


def whole(A: np.ndarray) -> np.ndarray:
    return np.tril(A) + np.tril(A, -1).T


@settings(max_examples=30)
@given(n=SIZES)
def test_the_factor_and_the_inverse_are_scipys(n):
    A = positive(n)
    full = whole(A)
    assert cholesky.cholesky(A, Threads(2)) == 0
    expected = scipy.linalg.cholesky(full, lower=True)
    np.testing.assert_allclose(np.tril(A), expected, rtol=1e-9, atol=1e-12)
    cholesky.inverse(A, Threads(2))
    np.testing.assert_allclose(whole(A), scipy.linalg.inv(full), rtol=1e-8, atol=1e-11)


@settings(max_examples=30)
@given(n=SIZES, columns=st.integers(1, 9))
def test_solves_are_scipys_and_leave_their_arguments_alone(n, columns):
    L = np.asfortranarray(np.tril(RNG.standard_normal((n, n)), -1) / n + np.eye(n))
    B = RNG.standard_normal((n, columns))
    before = B.copy()
    for found, trans in ((cholesky.solve_lower(L, B), 0), (cholesky.solve_upper(L, B), 1)):
        expected = scipy.linalg.solve_triangular(L, B, lower=True, trans=trans)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(B, before)


@pytest.mark.parametrize("pivot", [1, 7, 8, 20])
def test_a_bad_pivot_is_named(pivot):
    A = np.asfortranarray(np.eye(20))
    A[pivot - 1, pivot - 1] = -1.0
    assert cholesky.cholesky(A, Threads(2)) == pivot


@pytest.mark.parametrize("replace", [cholesky.cholesky, cholesky.inverse])
def test_only_a_column_major_writeable_matrix_is_replaced(replace):
    fixed = positive(5)
    fixed.flags.writeable = False
    for A in (np.ascontiguousarray(positive(5)), fixed):
        with pytest.raises(ValueError, match="column-major and writeable"):
            replace(A, Threads(1))
