"""The chain bound: no setting crosses the exact value, its corners are known bounds, and its
preconditioner changes CG's path but not its certificate."""

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
from cglb.bounds.logdet import Chain
from cglb.linalg import preconditioners
from cglb.linalg.blocks import Blocks, Neighbours, find_blocks
from cglb.linalg.cg import Limits, Stop
from cglb.linalg.preconditioners import NEAR, AutoPreconditioning
from cglb.linalg.system import Solver, System
from cglb.linalg.vecchia import chain_logdet


def logdet_gap(gp, X, y, Z, logdet):
    """How far an upper bound on ½log|K̂| lies above the exact value."""
    return float(bounds.exact(gp, X, y).logdet - bounds.sgpr(gp, X, y, Z, logdet=logdet).logdet)


settings = st.tuples(
    st.sampled_from([(1, 0), (1, 5), (4, 0), (4, 4), (7, 10), (40, 8)]),
    st.sampled_from([None, 0, 3]),
    st.sampled_from(["random", "tree"]),
)


@given(problem(), settings, st.integers(0, 100))
def test_no_setting_crosses_the_exact_value(case, setting, seed):
    gp, X, y, Z, _ = case
    (block, neighbours), inner, order = setting
    chain = Chain(block, neighbours, inner=inner, order=order, seed=seed)
    exact = bounds.exact(gp, X, y)
    assert logdet_gap(gp, X, y, Z, chain) >= -slack_for(exact.logdet, exact.quadratic)


@given(problem(), st.integers(0, 2**31 - 1))
def test_any_earlier_rows_as_neighbours_give_a_bound(case, seed):
    """Not only the nearest: neighbour sets drawn at random from the earlier blocks."""
    gp, X, _, _, _ = case
    rng = np.random.default_rng(seed)
    order = rng.permutation(40)
    neighbours = np.zeros((8, 4), dtype=np.int32)
    valid = np.zeros((8, 4), dtype=bool)
    for b in range(1, 8):
        chosen = rng.choice(order[: 5 * b], size=rng.integers(0, 5), replace=False)
        neighbours[b, : len(chosen)], valid[b, : len(chosen)] = chosen, True
    with cglb.float64():
        blocks = Blocks(
            jnp.asarray(order.reshape(8, 5), dtype=jnp.int32),
            jnp.ones((8, 5), dtype=bool),
            jnp.asarray(neighbours),
            jnp.asarray(valid),
            jnp.arange(8, dtype=jnp.int32),
        )
        model = jax.tree.map(jnp.asarray, gp)
        value = chain_logdet(model.kernel, model.noise, jnp.zeros((40, 1)), jnp.asarray(X), blocks)
    exact = np.linalg.slogdet(problems.dense(gp, X) / float(gp.noise))[1]
    assert float(value) >= exact - slack_for(exact)


@pytest.fixture(scope="module")
def setting():
    X, y, _ = problems.data(n=120, d=2, seed=3)
    gp = cglb.GP(cglb.Matern32([0.6, 0.9], 1.2), 0.01, 0.1)
    return gp, X, y, cglb.inducing.greedy(gp.kernel, X, 12)


def test_single_rows_without_neighbours_are_hadamard(setting):
    hadamard = bounds.sgpr(*setting, logdet="hadamard").value
    assert bounds.sgpr(*setting, logdet=Chain(1, 0)).value == pytest.approx(hadamard, rel=1e-12)


def test_blocks_without_neighbours_are_fischer(setting):
    gp, X, y, Z = setting
    residual = problems.dense(gp, X) - problems.dense_Q_hat(gp, X, Z)
    R = np.eye(120) + residual / 0.01
    rows = np.asarray(blocks_of(gp.kernel, X, 30, 0).rows)
    fischer = sum(np.linalg.slogdet(R[np.ix_(block, block)])[1] for block in rows)
    bound = np.linalg.slogdet(problems.dense_Q_hat(gp, X, Z))[1] + fischer
    found = -2 * bounds.sgpr(gp, X, y, Z, logdet=Chain(30, 0)).logdet
    assert found == pytest.approx(bound, abs=1e-5)


def test_without_inner_points_it_is_vecchia_and_ignores_them(setting):
    gp, X, y, Z = setting
    few = bounds.sgpr(gp, X, y, Z[:3], logdet=Chain(10, 10, inner=0)).logdet
    many = bounds.sgpr(gp, X, y, Z, logdet=Chain(10, 10, inner=0)).logdet
    assert few == pytest.approx(many, rel=1e-10)


def test_conditioning_on_everything_earlier_is_exact_without_inner_points(setting):
    assert logdet_gap(*setting, Chain(30, 120, inner=0)) == pytest.approx(0.0, abs=1e-7)


def test_more_neighbours_and_blocks_tighten_the_bound(setting):
    gaps = [logdet_gap(*setting, chain) for chain in (Chain(1, 0), Chain(20, 0), Chain(20, 20))]
    assert gaps[0] > 1.2 * gaps[1] > 1.2 * 1.2 * gaps[2]


def blocks_of(kernel, X, *sizes, **options):
    with cglb.float64():
        return find_blocks(kernel, jnp.asarray(X), *sizes, **options)


def prepared(bound, gp, X, Z):
    with cglb.float64():
        return bound.prepare(System(*jax.tree.map(jnp.asarray, (gp, X, Z))))


@pytest.mark.parametrize("block", [20, 23])
@pytest.mark.parametrize(
    "kernel",
    [cglb.Matern32([0.6, 0.9], 1.2), cglb.RBF(0.5, 0.7) * cglb.Linear(0.8) + cglb.Matern52([0.6, 0.9])],
    ids=["one lengthscale per column", "variances differ from row to row"],
)
def test_gradient_agrees_with_autodiff_of_a_dense_reference(setting, kernel, block):
    """Also with rows of padding in the last block (23 does not divide 120)."""
    _, X, y, Z = setting
    gp = cglb.GP(kernel, 0.01, 0.1)
    chain = prepared(Chain(block, 15, inner=7), gp, X, Z)
    index = [
        (np.asarray(n)[np.asarray(nv)], np.asarray(r)[np.asarray(rv)])
        for n, nv, r, rv in zip(
            chain.blocks.neighbours, chain.blocks.neighbour_valid, chain.blocks.rows,
            chain.blocks.row_valid, strict=True,
        )
    ]  # fmt: skip

    def dense(gp, Z):
        K = gp.kernel(X, X)
        K = jnp.where(jnp.eye(120, dtype=bool), gp.kernel.diag(X)[:, None], K)
        A = jnp.linalg.solve(jnp.linalg.cholesky(gp.kernel(Z, Z)), gp.kernel(Z, X)) / jnp.sqrt(gp.noise)
        R = jnp.eye(120) + K / gp.noise - A[:7].T @ A[:7]
        total = 120 * jnp.log(gp.noise) + jnp.linalg.slogdet(jnp.eye(12) + A @ A.T)[1]
        total = total - jnp.linalg.slogdet(jnp.eye(5) + A[7:] @ A[7:].T)[1]
        for n, r in index:
            both = np.concatenate([n, r])
            total = total + jnp.linalg.slogdet(R[np.ix_(both, both)])[1]
            if len(n):
                total = total - jnp.linalg.slogdet(R[np.ix_(n, n)])[1]
        return -0.5 * total

    with cglb.float64():
        X, y, Z = (jnp.asarray(array) for array in (X, y, Z))
        gp = jax.tree.map(jnp.asarray, gp)
        want = jax.value_and_grad(dense, argnums=(0, 1))(gp, Z)
        got = jax.value_and_grad(
            lambda gp, Z: bounds.sgpr(gp, X, y, Z, logdet=chain).logdet, argnums=(0, 1)
        )(gp, Z)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), got, want)


def test_blocks_partition_the_rows_and_neighbours_are_earlier(setting):
    gp, X, _, _ = setting
    blocks = jax.tree.map(np.asarray, blocks_of(gp.kernel, X, 16, 9, seed=5))
    members = blocks.rows[blocks.row_valid]
    assert sorted(members) == list(range(120))
    position = np.empty(120, dtype=int)
    assert sorted(blocks.numbers) == list(range(len(blocks.rows)))
    for number, row, valid in zip(blocks.numbers, blocks.rows, blocks.row_valid, strict=True):
        position[row[valid]] = number
    for number, row, valid in zip(
        blocks.numbers, blocks.neighbours, blocks.neighbour_valid, strict=True
    ):
        assert (position[row[valid]] < number).all()
        assert len(set(row[valid])) == valid.sum()


def test_the_preconditioner_is_symmetric_positive_and_saves_steps(setting):
    gp, X, y, Z = setting
    gp = cglb.GP(gp.kernel, 1e-4, 0.1)
    with cglb.float64():
        X, y, Z = (jnp.asarray(array) for array in (X, y, Z))
        gp = jax.tree.map(jnp.asarray, gp)
        blocks = find_blocks(gp.kernel, X, 20, 30)
        chain = System(gp, X, Z, Solver(precondition="chain"), neighbours=Neighbours.given(blocks))
        precondition, _ = chain.preconditioner.next(np.inf)
        M = np.asarray(precondition(jnp.eye(120)))
        np.testing.assert_allclose(M, M.T, atol=1e-9 * np.abs(M).max())
        assert np.linalg.eigvalsh(M).min() > 0.0
        plain = System(gp, X, Z, Solver(precondition="nystrom")).solve(y - 0.1)
        chained = chain.solve(y - 0.1)
        assert plain.stop is chained.stop is Stop.TOLERANCE
        assert chained.steps < 0.5 * plain.steps


def test_auto_takes_nystrom_only_where_little_is_left_to_explain(setting):
    gp, X, _, Z = setting
    with cglb.float64():
        X, Z = jnp.asarray(X), jnp.asarray(Z)
        for noise, chained in ((1e-4, True), (100.0, False)):
            model = jax.tree.map(jnp.asarray, cglb.GP(gp.kernel, noise))
            assert (System(model, X, Z).preconditioner is not None) == chained
            assert System(model, X, Z, Solver(precondition="nystrom")).preconditioner is None
    with pytest.raises(ValueError, match="precondition must be one of nystrom, chain, auto"):
        preconditioners.find("diagonal")


def test_auto_builds_the_chain_only_when_nystrom_has_not_done_it_soon(setting):
    gp, X, y, Z = setting
    with cglb.float64():
        X, y, Z = (jnp.asarray(array) for array in (X, y, Z))
        gp = jax.tree.map(jnp.asarray, cglb.GP(gp.kernel, 1e-4, 0.1))
        blocks = find_blocks(gp.kernel, X, 20, 30)

        def solve(v0, tolerance):
            system = System(gp, X, Z, neighbours=Neighbours.given(blocks))
            return system.solve(y - 0.1, v0, Limits(tolerance)), system.preconditioner.built is not None

        far, built = solve(None, 1e-3)
        assert built
        # near the tolerance three steps with Nyström's preconditioner come first
        near, built = solve(far.v, 0.9 * float(far.slack))
        assert 0 < near.steps <= AutoPreconditioning.patience
        assert not built
        late, built = solve(far.v, 1.01 * float(far.slack) / NEAR)
        assert late.steps > AutoPreconditioning.patience
        assert built
        # a step that changes the preconditioner in mid-course still ends at a true certificate
        system = System(gp, X, Z)
        for found in (near, late):
            assert found.stop is Stop.TOLERANCE
            r = y - 0.1 - system.operator @ found.v
            np.testing.assert_allclose(found.slack, 0.5 * r @ system.nystrom.solve(r), rtol=1e-6)


def test_training_by_continuation_records_its_stages(setting):
    _, X, y, _ = setting
    fit = cglb.train(
        cglb.GP(cglb.Matern32([1.0, 1.0])), X, y, cglb.CGLB(logdet="chain"),
        num_inducing=12, max_steps=20, steps_per_round=5, schedule="direct",
    )  # fmt: skip
    names = [row["logdet_bound"] for row in fit.history]
    stages = list(dict.fromkeys(names))
    assert stages[0] == "amgm"
    assert stages[-1].startswith("chain")
    assert fit.bound <= bounds.exact(fit.gp, X, y).value
    loose = cglb.train(
        cglb.GP(cglb.Matern32([1.0, 1.0])), X, y, cglb.CGLB(logdet="amgm"),
        num_inducing=12, max_steps=20, steps_per_round=5, schedule="direct",
    )  # fmt: skip
    assert fit.bound > loose.bound


@pytest.mark.parametrize(
    "options", [{"block": 0}, {"neighbours": -1}, {"inner": -1}, {"order": "hilbert"}]
)
def test_impossible_settings_are_named(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Chain(**options)
