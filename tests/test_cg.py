"""Conjugate gradients: the certificate is true, and stopping is never silent."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import problem, slack_for

import cglb
from cglb import bounds
from cglb.linalg import nystrom
from cglb.linalg.cg import Limits, Stop, conjugate_gradients
from cglb.linalg.krylov import TURN, Preconditioner
from cglb.linalg.preconditioners import OnDemand
from cglb.linalg.system import Solver, System


@given(problem(), st.floats(-4.0, 1.0))
def test_tolerance_means_slack_in_nats(case, log_tolerance):
    gp, X, y, Z, _ = case
    tolerance = 10.0**log_tolerance
    solution = cglb.solve(gp, X, y, Z, tolerance=tolerance)
    best = np.linalg.solve(problems.dense(gp, X), y - float(gp.mean))
    value = bounds.cglb(gp, X, y, Z, solution.v).value
    ideal = bounds.cglb(gp, X, y, Z, best).value
    room = slack_for(ideal, value)
    assert ideal - value <= float(solution.slack) + room
    if solution.stop is Stop.TOLERANCE:
        assert solution.slack <= tolerance
    else:
        assert solution.slack > tolerance


@given(problem())
def test_any_start_is_at_least_as_good_as_sgpr(case):
    gp, X, y, Z, v = case
    solution = cglb.solve(gp, X, y, Z, v0=1e6 * v, max_steps=0)
    assert solution.steps == 0
    sgpr = bounds.sgpr(gp, X, y, Z, logdet="amgm").value
    value = bounds.cglb(gp, X, y, Z, solution.v).value
    assert value >= sgpr - slack_for(sgpr)


def start_from(gp, X, y, Z, columns):
    """Where CG starts, given the solutions of other problems."""
    with cglb.float64():
        gp, X, Z = jax.tree.map(jnp.asarray, (gp, X, Z))
        e = jnp.asarray(y) - gp.mean
        return System(gp, X, Z).solve(e, jnp.asarray(columns), Limits(max_steps=0))


def test_several_starts_are_combined_as_well_as_can_be():
    """The residual of the best combination is orthogonal to each of them, and it is a true residual."""
    gp, X, y, Z = hard_problem()
    e, K_hat = y - float(gp.mean), problems.dense(gp, X)
    nearby = [cglb.GP(gp.kernel, float(gp.noise) * f, gp.mean) for f in (1.5, 1.6, 1.8)]
    columns = np.stack([np.linalg.solve(problems.dense(other, X), e) for other in nearby], axis=1)
    found = start_from(gp, X, y, Z, columns)
    residual = e - K_hat @ np.asarray(found.v)
    np.testing.assert_allclose(K_hat @ np.asarray(found.v), found.K_hat_v, atol=1e-9)
    assert (np.abs(columns.T @ residual) <= 1e-6 * np.abs(columns.T @ e)).all()
    alone = [float(start_from(gp, X, y, Z, column).slack) for column in columns.T]
    assert float(found.slack) < 0.05 * min(alone)  # three points of a smooth path extrapolate it


def test_starts_that_say_nothing_new_do_no_harm():
    gp, X, y, Z = hard_problem()
    v = np.linalg.solve(problems.dense(gp, X), y - float(gp.mean))
    for columns in ([v, 0 * v, 0 * v], [v, v, v], [0 * v, 0 * v, 0 * v], [v, 1e-3 * v, np.cos(v)]):
        found = start_from(gp, X, y, Z, np.stack(columns, axis=1))
        if columns[0].any():
            np.testing.assert_allclose(found.v, v, rtol=1e-6, atol=1e-8 * np.abs(v).max())
        else:
            assert not np.asarray(found.v).any()


def hard_problem():
    """Low noise and few inducing points: many steps."""
    X, y, _ = problems.data(n=200)
    gp = cglb.GP(cglb.Matern32([0.8, 1.1]), 1e-4, 0.1)
    return gp, X, y, X[:10]


def test_step_limit_is_reported_and_the_bound_stays_valid():
    gp, X, y, Z = hard_problem()
    # the chain's blocks would see all of so few rows, and need one step
    solution = cglb.solve(gp, X, y, Z, tolerance=1e-6, max_steps=3, precondition="nystrom")
    assert solution.stop is Stop.STEP_LIMIT
    assert solution.steps == 3
    assert solution.slack > 1e-6
    assert "max_steps" in solution.stop.message
    assert bounds.cglb(gp, X, y, Z, solution.v).value <= bounds.exact(gp, X, y).value


def test_more_turns_never_give_a_looser_bound():
    """The slack of CG rises and falls; the best turn so far is what it returns."""
    X, y, Z = problems.data(n=200, m=10)
    gp = cglb.GP(cglb.Matern32([1.0, 1.0]), 1e-5)
    uppers = []
    for turns in range(9):
        found = cglb.solve(gp, X, y, Z, tolerance=1e-9, max_steps=turns * TURN, precondition="nystrom")
        v = np.asarray(found.v)
        uppers.append(2.0 * float(found.slack) + 2.0 * y @ v - v @ np.asarray(found.K_hat_v))
    assert all(b <= a * (1.0 + 1e-9) for a, b in itertools.pairwise(uppers))
    assert uppers[-1] < 0.1 * uppers[0]


def test_a_warm_start_at_the_solution_takes_no_step():
    gp, X, y, Z = hard_problem()
    first = cglb.solve(gp, X, y, Z, tolerance=0.1, precondition="nystrom")
    again = cglb.solve(gp, X, y, Z, v0=first.v, tolerance=0.1)
    assert first.stop is Stop.TOLERANCE
    assert first.steps > 5
    assert again.steps == 0
    np.testing.assert_array_equal(first.v, again.v)


def test_an_impossible_tolerance_ends_in_breakdown_not_in_a_loop():
    gp, X, y, Z = hard_problem()
    solution = cglb.solve(gp, X, y, Z, tolerance=0.0, max_steps=100_000)
    assert solution.stop is Stop.BREAKDOWN
    assert solution.slack < 1e-8


def test_float32_products_with_a_float64_certificate():
    gp, X, y, Z = hard_problem()
    solution = cglb.solve(gp, X, y, Z, tolerance=1e-3, products="float32", max_steps=5000)
    assert solution.stop is Stop.TOLERANCE
    r = y - float(gp.mean) - problems.dense(gp, X) @ solution.v
    with cglb.float64():
        factors = nystrom.factor(gp, jnp.asarray(X), jnp.asarray(Z))
        slack = 0.5 * r @ np.asarray(factors.solve(jnp.asarray(r)))
    assert slack == pytest.approx(float(solution.slack), rel=1e-4)
    assert slack <= 1e-3


def test_where_float32_makes_no_progress_float64_takes_over():
    """Inputs far from 0 lose their digits in float32, so that K̂ is another matrix there."""
    gp, X, y, Z = hard_problem()
    limits = Limits(0.1, 1000)
    with cglb.float64():
        held = jax.tree.map(jnp.asarray, (gp, X + 1e5, Z + 1e5))
        system = System(*held, Solver(precondition="nystrom"))
        e = system.residual(jnp.asarray(y))

        def solve(*inside):
            return conjugate_gradients(system.operator, e, system.nystrom, limits=limits, inside=inside)

        rounded, both, exact = solve(system.rounded), solve(system.rounded, system.fast), solve()
        assert both.stop is exact.stop is Stop.TOLERANCE
        assert both.steps <= exact.steps + TURN < rounded.steps
        np.testing.assert_allclose(system.operator @ both.v, both.K_hat_v, rtol=1e-12)


def test_the_precision_of_products_is_checked():
    with pytest.raises(ValueError, match="products must be one of auto, float64, float32"):
        Solver(products="float16")


def test_columns_are_solved_together_as_if_alone():
    gp, X, _, Z = hard_problem()
    rng = np.random.default_rng(0)
    E = rng.normal(size=(200, 3)) * np.array([1.0, 100.0, 0.0])
    with cglb.float64():
        gp, x, Z = jax.tree.map(jnp.asarray, (gp, X, Z))
        system = System(gp, x, Z, Solver(precondition="nystrom"))
        solution = system.solve(jnp.asarray(E), limits=Limits(1e-9))
        assert solution.stop is Stop.TOLERANCE
        assert solution.slack.shape == (3,)
        expected = np.linalg.solve(problems.dense(gp, X), E)
        np.testing.assert_allclose(solution.v, expected, atol=1e-4)
        assert not np.any(solution.v[:, 2])


class Inverse(Preconditioner):
    K_hat_inverse: jax.Array

    def __call__(self, R):
        return self.K_hat_inverse @ R


def test_another_preconditioner_changes_the_path_not_the_certificate():
    gp, X, y, Z = hard_problem()
    with cglb.float64():
        inverse = Inverse(jnp.asarray(np.linalg.inv(problems.dense(gp, X))))
        gp, X, Z = jax.tree.map(jnp.asarray, (gp, X, Z))
        system, e = System(gp, X, Z), jnp.asarray(y) - gp.mean
        solution = conjugate_gradients(
            system.operator, e, system.nystrom, preconditioner=OnDemand(lambda: inverse)
        )
        assert solution.stop is Stop.TOLERANCE
        assert solution.steps == 1


@pytest.mark.parametrize(("name", "value"), [("tolerance", -1.0), ("max_steps", -1)])
def test_impossible_settings_are_named(name, value):
    gp, X, y, Z = hard_problem()
    with pytest.raises(ValueError, match=name):
        cglb.solve(gp, X, y, Z, **{name: value})
