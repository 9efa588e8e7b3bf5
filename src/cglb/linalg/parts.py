"""Value and gradient of a bound, put together from parts: the small ones compiled, the large ones not.

A bound is a function of gp, G = AAᵀ, c = Ar, K̂v and (some) A itself. Autodiff of the whole would trace
the bound at every call, since products over all rows run on threads of the host. So the bound is
differentiated in these few arrays, as one program; G, c, A and K̂v are pulled back by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cglb.compute.parallel import matrices_of
from cglb.linalg.nystrom import Nystrom
from cglb.linalg.nystrom_gradient import Gram, Primals, pull
from cglb.linalg.system import System
from cglb.linalg.view import View, inverse_form
from cglb.model import GP

__all__ = ["value_and_gradient"]

Bound = Callable[..., Any]


class _Inputs(NamedTuple):
    """What a bound is differentiated in."""

    gp: GP
    G: Array
    c: Array  # 0: added to c
    product: Array  # 0: added to K̂v
    At: Any  # None if the bound does not use A


class _Seen(NamedTuple):
    """The vectors that a bound gave to its system."""

    r: Array | None = None  # whose rᵀQ̂⁻¹r it uses
    v: Array | None = None  # whose K̂v it uses


class _Parts(System):
    """A system whose G, c, A and K̂v are inputs of their own; it remembers the vectors it was given."""

    def __init__(self, X: Array, Z: Array, factors: Nystrom, inputs: _Inputs):
        super().__init__(inputs.gp, X, Z)
        self.factors, self.inputs, self.seen = factors, inputs, _Seen()

    def linearised(
        self, gp: GP, Z: Float[Array, "m d"], r: Float[Array, " n"], rows: bool
    ) -> tuple[View, Float[Array, ""]]:
        self.seen = self.seen._replace(r=r)
        factors, (_, G, c, _, At), noise = self.factors, self.inputs, jnp.asarray(gp.noise)
        form = inverse_form(r, noise, G, factors.project(r) + c, factors.LB)
        return View(gp.kernel, noise, self.X, G, factors.LB, At), form

    def known_product(
        self, gp: GP, v: Float[Array, " n"], K_hat_v: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        self.seen = self.seen._replace(v=v)
        return K_hat_v + self.inputs.product


def value_and_gradient(
    bound: Bound, system: System, operands: tuple[Any, ...], rows: bool
) -> tuple[Any, tuple[GP, Float[Array, "m d"]]]:
    """The terms of a bound at a system and the gradient of its value in the model and in Z.

    Args:
        bound: a function (system, gp, Z, *operands) that gives terms with a `value`.
        system: the model, the rows and the factors of Q̂.
        operands: what else the bound needs, such as the targets.
        rows: whether it uses A. It is not compiled as a whole then: it may use threads itself.
    """
    factors = system.nystrom
    with matrices_of(system.m):
        small = _small if rows else _compiled
        terms, bars, seen = small(bound, system.gp, system.X, system.Z, factors, rows, operands)
        c = _project(factors, seen.r)
        primals = Primals(system.gp.kernel, jnp.asarray(system.gp.noise), system.Z, seen.r)
        pulled = pull(primals, system.X, factors, c, Gram(bars.G, bars.c, bars.At))
        found = jax.block_until_ready((pulled.kernel, pulled.noise))
    if seen.v is not None:
        product = system.operator.bilinear_gradient(bars.product, seen.v)
        found = _add(found, (product.kernel, product.noise))
    return terms, (_with_kernel_and_noise(bars.gp, found), pulled.Z)


def _small(
    bound: Bound, gp: GP, X: Array, Z: Array, factors: Nystrom, rows: bool, operands: tuple[Any, ...]
) -> tuple[Any, _Inputs, _Seen]:
    """The terms, the gradient of the value in the inputs, and the vectors that the bound used."""

    def value(inputs: _Inputs) -> tuple[Array, tuple[Any, _Seen]]:
        parts = _Parts(X, Z, factors, inputs)
        terms = bound(parts, inputs.gp, Z, *operands)
        return jnp.asarray(terms.value), (terms, jax.lax.stop_gradient(parts.seen))

    zeros = jnp.zeros(factors.m, dtype=X.dtype), jnp.zeros(factors.n, dtype=X.dtype)
    inputs = _Inputs(gp, factors.G, *zeros, factors.At if rows else None)
    (_, (terms, seen)), bars = jax.value_and_grad(value, has_aux=True)(inputs)
    return terms, bars, seen


_compiled = eqx.filter_jit(_small)


@jax.jit
def _project(factors: Nystrom, r: Array) -> Array:
    return factors.project(r)


@jax.jit
def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


@jax.jit
def _with_kernel_and_noise(gp: GP, more: tuple[Any, Array]) -> GP:
    """The gradient with more of it in kernel and noise. Slopes may be negative: nothing is checked."""
    leaves = [*jax.tree.leaves(more), jnp.zeros_like(gp.mean)]
    return jax.tree.unflatten(
        jax.tree.structure(gp), [a + b for a, b in zip(jax.tree.leaves(gp), leaves, strict=True)]
    )
