"""Gradients put together from parts are those of autodiff through the whole bound."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import cglb
from cglb.bounds import evidence
from cglb.bounds.logdet import LogdetBound, Side, find, names
from cglb.compute.backend import using
from cglb.compute.cpu.backend import CPU
from cglb.linalg import parts
from cglb.linalg.row_noise import RowNoise, Rows
from cglb.linalg.system import System

GP = cglb.GP(cglb.Matern32([0.7, 1.6], 1.3) + cglb.Linear(0.3).on([1]), 0.05, 0.2)


class OfBoth(LogdetBound):
    """Not a bound; it uses all that a view has without A, and a setting."""

    scale: float = 2.0

    def __call__(self, view):
        if self.scale < 0.0:  # a setting may decide
            return view.logdet_Q
        return view.logdet_Q + self.scale * view.residual_trace + jnp.sum(view.eigenvalues)


@pytest.fixture(autouse=True)
def scope():
    with cglb.float64(), using(CPU(tile_rows=17, chunk_rows=9, width=2)):
        yield


def system(own_noise):
    X, y, Z = problems.data(n=40, d=2, m=8)
    noise = RowNoise(np.linspace(0.5, 2.0, 40), np.full(40, 0.01)) if own_noise else RowNoise()
    rows = Rows.of(X, y, noise, padded=own_noise)
    gp = jax.tree.map(jnp.asarray, GP)
    return System(rows.model(gp), rows.X, rows.at(Z)), jnp.asarray(rows.y)


@pytest.mark.parametrize("own_noise", [False, True], ids=["equal noise", "noise of rows, padding"])
@pytest.mark.parametrize("name", [*names(Side.ABOVE), OfBoth(2.0), OfBoth(-1.0)], ids=str)
def test_gradients_are_those_of_autodiff_through_everything(name, own_noise):
    of, y = system(own_noise)
    logdet = find(name, Side.ABOVE).prepare(of).settle(of)
    v = 0.3 * y
    given = {evidence.sgpr_at: (y,), evidence.cglb_at: (y, v, of.operator @ v)}
    given[evidence.cglb_at_solution] = given[evidence.cglb_at]
    for bound, operands in given.items():

        def value(gp, Z, bound=bound, operands=operands):
            return bound(of, gp, Z, *operands, logdet).value

        terms, slopes = parts.value_and_gradient(bound, of, (*operands, logdet), logdet.rows)
        wanted = jax.value_and_grad(value, argnums=(0, 1))(of.gp, of.Z)
        found = jax.tree.leaves((terms.value, slopes))
        for a, b in zip(found, jax.tree.leaves(wanted), strict=True):
            scale = max(1.0, np.abs(np.asarray(b)).max())
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * scale)
