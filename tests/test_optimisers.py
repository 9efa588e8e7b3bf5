"""Optimisers: as good as SciPy's, and resumed from their arrays to the bit."""

from dataclasses import replace

import jax
import numpy as np
import problems
import pytest
from scipy.optimize import minimize, rosen, rosen_der

import cglb
from cglb import Exact
from cglb.optimisers.adam import Adam
from cglb.optimisers.base import Ending, Point
from cglb.optimisers.lbfgs import LBFGS
from cglb.training.free import Parameters


class Function:
    """A function to maximise, from one to minimise; it counts its evaluations."""

    def __init__(self, value_and_gradient):
        self.function = value_and_gradient
        self.places = []

    def __call__(self, x, draw=0):
        self.places.append(x.copy())
        value, gradient = self.function(x)
        return Point(x, -value, -gradient) if np.isfinite(value) else None


def maximise(function, x, optimiser=LBFGS(), limit=10_000, before=None):  # noqa: B008
    """(last state, why it ended)."""
    state = optimiser.begin(function(x), before)
    for _ in range(limit):
        found = optimiser.step(state, function)
        if isinstance(found, Ending):
            return state, found
        state = found
    return state, Ending.STEP_LIMIT


def scipys(value_and_gradient, x):
    options = {"maxcor": 50, "maxls": 30, "maxfun": 10**5, "maxiter": 10**4}
    return minimize(value_and_gradient, x, jac=True, method="L-BFGS-B", options=options)


def rosenbrock(x):
    return rosen(x), rosen_der(x)


@pytest.mark.parametrize("p", [2, 5, 10, 30])
def test_lbfgs_is_as_good_as_scipys_on_rosenbrocks_function(p):
    x = np.tile([-1.2, 1.0], p)[:p]
    function, other = Function(rosenbrock), scipys(rosenbrock, x)
    state, ending = maximise(function, x)
    assert ending is Ending.CONVERGED
    assert -state.point.value < 1e-8
    np.testing.assert_allclose(state.point.x, 1.0, atol=1e-3)
    assert len(function.places) <= 1.15 * other.nfev + 5


def test_lbfgs_is_as_good_as_scipys_on_an_exact_gp():
    X, y, _ = problems.data(n=40, d=2)
    start = cglb.GP(cglb.Matern32(np.ones(2)))
    parameters = Parameters(start)

    def loss(free):
        return -cglb.bounds.exact(parameters.unflatten(free), X, y).value

    def value_and_gradient(free):
        with cglb.float64():
            value, slope = jax.value_and_grad(loss)(free)
        return float(value), np.array(slope)

    found = cglb.train(start, X, y, Exact(), max_steps=500, schedule="direct")
    other = scipys(value_and_gradient, np.asarray(parameters.flatten(start)))
    assert found.stop is Ending.CONVERGED
    assert found.bound >= -other.fun - 1e-5
    assert found.evaluations <= 1.2 * other.nfev + 3


def test_every_accepted_point_is_an_evaluated_one_and_higher_than_the_last():
    function = Function(rosenbrock)
    optimiser = LBFGS()
    state = optimiser.begin(function(np.array([-1.2, 1.0, -0.5])))
    while not isinstance(found := optimiser.step(state, function), Ending):
        assert any(np.array_equal(found.point.x, place) for place in function.places)
        assert -found.point.value == rosen(found.point.x)
        assert found.point.value > state.point.value
        state = found
    places = [place.tobytes() for place in function.places]
    assert len(places) == len(set(places))  # and none is evaluated twice


@pytest.mark.parametrize("optimiser", [LBFGS(), LBFGS(memory=3), Adam(0.01)])
def test_a_run_resumed_from_its_arrays_takes_the_same_steps(optimiser):
    x = np.array([-1.2, 1.0, 0.3, 0.7])
    whole, _ = maximise(Function(rosenbrock), x, optimiser, limit=12)
    state, _ = maximise(Function(rosenbrock), x, optimiser, limit=5)
    for _ in range(7):
        state = optimiser.restore({name: a.copy() for name, a in state.arrays().items()})
        state = optimiser.step(state, Function(rosenbrock))
    assert state.point.x.tobytes() == whole.point.x.tobytes()
    for name, array in state.arrays().items():
        assert array.tobytes() == whole.arrays()[name].tobytes()


def quadratic(A):
    return lambda x: (0.5 * x @ A @ x, A @ x)


def test_curvature_is_handed_on_to_a_run_on_a_similar_function():
    """Pairs of one quadratic make the first step on another of the same curvature a Newton step."""
    A = np.diag([1e4, 30.0, 1.0, 0.1])
    before, _ = maximise(Function(quadratic(A)), np.ones(4))
    cold, warm = Function(quadratic(A)), Function(quadratic(A))
    start = np.array([0.1, -0.2, 0.3, 0.4])
    maximise(cold, start)
    state, ending = maximise(warm, start, before=before)
    assert ending is Ending.CONVERGED
    assert state.point.value > -1e-8
    assert len(warm.places) < 0.5 * len(cold.places)


def test_a_wall_shortens_the_step_and_the_best_point_before_it_is_found():
    """−x on x < 1, not finite beyond: the supremum lies at the wall."""
    walled = Function(lambda x: (float(-x[0]), -np.ones(1)) if x[0] < 1.0 else (np.inf, None))
    state, ending = maximise(walled, np.zeros(1))
    assert ending in (Ending.NO_IMPROVEMENT, Ending.CONVERGED)
    assert 0.999 < state.point.x[0] < 1.0


def test_a_gradient_that_leads_nowhere_is_no_convergence():
    """A gradient of the wrong sign promises what no step keeps."""
    wrong = Function(lambda x: (float(x @ x), -2.0 * x))
    state, ending = maximise(wrong, np.ones(2))
    assert ending is Ending.NO_IMPROVEMENT
    np.testing.assert_array_equal(state.point.x, np.ones(2))
    assert len(wrong.places) <= 1 + LBFGS().trials


def test_a_search_ends_where_time_is_up_and_leaves_the_state_alone():
    function = Function(rosenbrock)
    state = LBFGS().begin(function(np.array([-1.2, 1.0])))
    assert LBFGS().step(state, function, lambda: len(function.places) >= 2) is Ending.TIME_LIMIT
    assert len(function.places) == 2


def test_nothing_to_optimise_has_converged():
    state = LBFGS().begin(Point(np.zeros(0), 1.0, np.zeros(0)))
    assert LBFGS().step(state, Function(rosenbrock)) is Ending.CONVERGED


def test_adam_takes_steps_of_its_rate_and_stops_where_values_are_not_finite():
    function = Function(lambda x: (float(3.0 * x[0]), np.array([3.0])))
    state, _ = maximise(function, np.zeros(1), Adam(0.1), limit=5)
    np.testing.assert_allclose(np.concatenate(function.places), -0.1 * np.arange(6), atol=1e-8)
    broken = Function(lambda x: (np.nan, x))
    assert Adam().step(state, broken) is Ending.NOT_FINITE
    with pytest.raises(ValueError, match="learning rate must be positive"):
        Adam(0.0)


def test_curvature_of_a_function_serves_for_a_multiple_of_it():
    A = np.diag([1.0, 10.0, 100.0])

    def times(factor):
        def evaluate(x, _draw):
            return Point(x, -0.5 * factor * float(x @ A @ x), -factor * A @ x)

        return evaluate

    optimiser = LBFGS()
    state = optimiser.begin(times(1.0)(np.ones(3), 0))
    for _ in range(4):
        state = optimiser.step(state, times(1.0))
    x = np.array([0.3, -0.2, 0.1])
    same = optimiser.step(optimiser.begin(times(1.0)(x, 0), state), times(1.0))
    scaled = optimiser.begin(times(7.0)(x, 0), optimiser.scaled(state, 7.0, np.ones(3, dtype=bool)))
    np.testing.assert_allclose(optimiser.step(scaled, times(7.0)).point.x, same.point.x, rtol=1e-9)


def test_nothing_is_remembered_of_entries_that_mean_something_else():
    """Pairs keep their other entries, and those without curvature there are dropped."""
    S, Y = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([[2.0, 0.0], [0.0, 3.0], [2.0, 3.0]])
    state = replace(LBFGS().begin(Point(np.zeros(2), 0.0, np.ones(2))), S=S, Y=Y)
    kept = LBFGS().scaled(state, 10.0, np.array([True, False]))
    np.testing.assert_array_equal(kept.S, [[1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(kept.Y, [[20.0, 0.0], [20.0, 0.0]])


def test_a_step_that_promises_too_little_is_not_taken():
    """−½xᵀAx gains ½gᵀA⁻¹g at most: what is left at the end is less than `worth`, and 0 evaluations are
    spent on finding out."""
    A = np.diag([1.0, 10.0, 100.0])
    calls = []

    def evaluate(x, _draw):
        calls.append(x)
        return Point(x, -0.5 * float(x @ A @ x), -A @ x)

    optimiser = LBFGS(worth=0.01)
    state = optimiser.begin(evaluate(np.ones(3), 0))
    for _ in range(50):
        before, found = len(calls), optimiser.step(state, evaluate)
        if isinstance(found, Ending):
            break
        state = found
    assert found is Ending.CONVERGED
    assert len(calls) == before
    assert -0.1 < state.point.value < -1e-12


def test_a_promise_is_what_a_quadratic_still_gains_and_is_weighed_by_its_cost():
    """After p steps along all directions the pairs know A, so ½gᵀHg is what is left to gain."""
    A = np.diag([1.0, 10.0, 100.0])

    def evaluate(x, _draw):
        return Point(x, -0.5 * float(x @ A @ x), -A @ x)

    pairs = np.eye(3)
    here = evaluate(np.array([0.3, 0.2, -0.1]), 0)
    known = LBFGS().restore({**LBFGS().begin(here).arrays(), "S": pairs, "Y": pairs @ A})
    left = -here.value
    for effort in (1.0, 4.0):
        assert LBFGS(worth=1.01 * left / effort).at_cost(effort).promises_little(known)
        assert not LBFGS(worth=0.99 * left / effort).at_cost(effort).promises_little(known)
    assert not LBFGS(worth=np.inf).promises_little(LBFGS().begin(here))  # nothing is known yet
