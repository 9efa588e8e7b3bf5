"""A small problem and quick fits, for the tests of training."""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import problems
from hypothesis import strategies as st

import cglb
from cglb import CGLB

X, Y, Z = problems.data(n=40, d=2, m=8)
# Nyström alone preconditions, so that CG has some work left even on 40 rows
NYSTROM = CGLB(precondition="nystrom")
WAYS = {"rounds": {}, "together": {"optimize_inducing": True}}


@dataclass(frozen=True)
class Watched(CGLB):
    """CGLB whose evaluations go through `hook(evaluate, gp, Z, v0)`."""

    precondition: str = "nystrom"
    hook: Any = field(default=None, repr=False)

    def evaluate(self, prepared, system, y, v0=None, seed=()):
        def usual():
            return super(Watched, self).evaluate(prepared, system, y, v0)

        return self.hook(usual, system.gp, system.Z, v0)


def start():
    return cglb.GP(cglb.Matern32(np.ones(2)))


def fit(method=NYSTROM, gp=None, y=Y, **settings):
    defaults = {"num_inducing": 8, "max_steps": 12, "steps_per_round": 5, "schedule": "direct"}
    return cglb.train(gp or start(), X, y, method, **{**defaults, **settings})


@functools.cache
def fitted(way):
    return fit(**WAYS[way])


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def without_time(history):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


def model(row):
    values = row["parameters"]
    lengthscale = [values["kernel.lengthscale[0]"], values["kernel.lengthscale[1]"]]
    kernel = cglb.Matern32(lengthscale, values["kernel.variance"])
    return cglb.GP(kernel, values["noise"], values["mean"])


@st.composite
def point(draw):
    """A model and a v, anywhere a line search may look."""
    value = st.floats(-2.0, 1.0).map(lambda t: 10.0**t)
    kernel = cglb.Matern32([draw(value), draw(value)], draw(value))
    v = draw(st.floats(-1.0, 1.0)) * np.random.default_rng(0).normal(size=len(Y))
    return cglb.GP(kernel, draw(value), draw(st.floats(-1.0, 1.0))), v


def evaluation(gp, v, method=NYSTROM):
    with cglb.float64():
        first, gp = jax.tree.map(jnp.asarray, (start(), gp))
        x, y, z, v0 = map(jnp.asarray, (X, Y, Z, v))
        prepared = method.prepare(method.system(first, x, z))
        return method.evaluate(prepared, method.system(gp, x, z, prepared), y, v0)
