"""One `System` per model, data and inducing points: everything is made once and shared."""

import gc
import weakref
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import cglb
from cglb.compute import backend
from cglb.compute.backend import using
from cglb.compute.xla import XLA
from cglb.linalg import blocks, nystrom
from cglb.linalg.cg import Limits, conjugate_gradients
from cglb.linalg.system import Solver, System

X, Y, Z = problems.data(n=40, d=2, m=8)


@pytest.fixture
def factorisations(monkeypatch):
    """How often Q̂ was factored, by model, rows and inducing points."""
    count = Counter()
    factor = nystrom.factor

    def counted(gp, X, Z, jitter=nystrom.DEFAULT_JITTER):
        model = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(gp))
        count[model, np.asarray(X).tobytes(), np.asarray(Z).tobytes()] += 1
        return factor(gp, X, Z, jitter)

    monkeypatch.setattr(nystrom, "factor", counted)
    return count


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"logdet": "chain"},
        {"logdet": "auto"},
        {"method": "sgpr"},
        {"method": "iterative", "max_steps": 22},
        {"optimize_inducing": True},
    ],
    ids=str,
)
def test_no_model_is_factored_twice_from_fit_to_evidence(factorisations, settings):
    model = cglb.GPRegressor(**{"method": "cglb", "num_inducing": 8, "max_steps": 9, **settings}).fit(
        X, Y
    )
    during_fit = sum(factorisations.values())
    for variance in ("sgpr", "local", "cg"):
        model.predict(X[:3], return_std=True, variance=variance)
    model.variance_bracket(X[:3])
    model.evidence()
    assert set(factorisations.values()) == {1}
    assert sum(factorisations.values()) == during_fit  # and after the fit nothing at all


def test_neighbours_are_searched_for_once(monkeypatch):
    searches = []
    find = blocks.find_blocks
    monkeypatch.setattr(blocks, "find_blocks", lambda *a, **k: searches.append(1) or find(*a, **k))
    with cglb.float64():
        gp, x, z = jax.tree.map(jnp.asarray, (cglb.GP(cglb.Matern32(1.0), 1e-3), X, Z))
        one = System(gp, x, z, Solver(precondition="chain"))
        one.solve(jnp.asarray(Y))
        cglb.bounds.logdet.Chain().prepare(one)
        cglb.bounds.logdet.Auto().prepare(one)
    assert len(searches) == 1


def test_the_view_is_what_the_factors_say():
    gp = cglb.GP(cglb.Matern32([0.8, 1.3]), 0.05)
    Q_hat, K_hat = problems.dense_Q_hat(gp, X, Z), problems.dense(gp, X)
    with cglb.float64():
        view = System(*jax.tree.map(jnp.asarray, (gp, X, Z))).view
        assert float(view.logdet_Q) == pytest.approx(np.linalg.slogdet(Q_hat)[1], rel=1e-9)
        np.testing.assert_allclose(view.residual_diag, np.diag(K_hat - Q_hat), atol=1e-9)
        assert float(view.residual_trace) == pytest.approx(np.trace(K_hat - Q_hat), rel=1e-9)
        np.testing.assert_allclose(view.eigenvalues, np.linalg.eigvalsh(Q_hat)[-8:], rtol=1e-9)


def test_a_turn_in_one_program_goes_the_same_way_as_one_by_the_host():
    """CG as one compiled loop (an accelerator's way) and step by step (a CPU's) agree."""
    gp = cglb.GP(cglb.Matern32([0.8, 1.1]), 1e-3, 0.1)
    solver = Solver(tolerance=1e-6, precondition="nystrom")
    with cglb.float64():
        arrays = jax.tree.map(jnp.asarray, (gp, X, Z))
        e = jnp.asarray(Y) - 0.1
        few, by_host = (solve_plainly(System(*arrays, solver), e, steps) for steps in (5, 1000))
        with using(XLA()):
            few_compiled, compiled = (
                solve_plainly(System(*arrays, solver), e, steps) for steps in (5, 1000)
            )
    np.testing.assert_allclose(few.v, few_compiled.v, rtol=1e-9, atol=1e-9)
    assert few.steps == few_compiled.steps == 5
    # later steps amplify rounding, which differs between processors: only the end compares
    assert min(by_host.steps, compiled.steps) > 5
    assert abs(by_host.steps - compiled.steps) <= 2
    exact = np.linalg.solve(problems.dense(gp, X), Y - 0.1)
    np.testing.assert_allclose(compiled.v, exact, rtol=1e-3, atol=1e-4)


def solve_plainly(one, e, steps):
    """With nothing stored, so that products are part of the program where they can be."""
    return conjugate_gradients(one.operator, e, one.nystrom, limits=Limits(1e-6, steps))


def test_what_needs_inducing_points_says_so():
    with cglb.float64():
        gp, x = jax.tree.map(jnp.asarray, (cglb.GP(cglb.RBF()), X))
        with pytest.raises(ValueError, match="no inducing points"):
            System(gp, x, None).nystrom  # noqa: B018


def test_a_system_and_the_matrix_it_stores_are_freed_at_once(monkeypatch):
    monkeypatch.setattr(backend, "FEW_ROWS", 0)  # K̂ is stored, and the chain is built
    model = cglb.GP(cglb.Matern32([0.7, 1.6], 1.3), 0.05, 0.2)
    gc.disable()
    try:
        with cglb.float64():
            gp, rows, points, y = jax.tree.map(jnp.asarray, (model, X, Z, Y))
            system = System(gp, rows, points, Solver(precondition="chain"))
            system.solve(y)
            system.preconditioner.next(1.0)
        left = weakref.ref(system), weakref.ref(system.fast)
        del system
        assert [one() for one in left] == [None, None]
    finally:
        gc.enable()
