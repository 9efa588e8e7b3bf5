"""A second preconditioner for CG, for low noise: Nyström plus a sparse approximate inverse.

The Nyström matrix alone replaces the residual E by nothing, and at low noise that is far from K̂. The
chain's blocks give a sparse factor of the residual's inverse, R⁻¹ ≈ UᵀU (R = K̂/σ² − AᵀA), and then

    K̂⁻¹ ≈ Uᵀ(I − B(I + BᵀB)⁻¹Bᵀ)U/σ²,   B = UAᵀ,

which is positive definite whatever the blocks. Setting it up costs about 3nm² flops, a use O(n(m + k)),
like Nyström's. The certificate does not depend on it: CG's stop rule uses Q̂.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from cglb.chain import inverse_factors
from cglb.model import GP
from cglb.neighbours import Blocks
from cglb.nystrom import Nystrom

__all__ = ["ChainPreconditioner", "OnDemand", "chain_preconditioner", "choose"]

NAMES = ("auto", "nystrom", "chain")
# mean δ/σ² above which Q̂ alone is a poor picture of K̂
POOR_NYSTROM = 0.05
# a slack of up to this many tolerances may be gone after PATIENCE steps with Nyström's preconditioner
NEAR = 10.0
PATIENCE = 3


class ChainPreconditioner(eqx.Module):
    """z = Uᵀ(I − B(I + BᵀB)⁻¹Bᵀ)U r/σ²."""

    U: Float[Array, "b p pk"]
    index: Int[Array, "b pk"]
    valid: Bool[Array, "b pk"]
    B: Float[Array, "bp m"]
    LC: Float[Array, "m m"]
    noise: Float[Array, ""]

    def __call__(self, R: Float[Array, "n t"]) -> Float[Array, "n t"]:
        """The preconditioned residual, for every column."""
        return _apply(self, R)


@jax.jit
def _apply(self: ChainPreconditioner, R: Array) -> Array:
    t = R.shape[1]
    gathered = jnp.where(self.valid[:, :, None], R[self.index], 0.0)
    y = jnp.einsum("bpk,bkt->bpt", self.U, gathered).reshape(-1, t)
    y = y - self.B @ cho_solve((self.LC, True), (y.T @ self.B).T)
    parts = jnp.einsum("bpk,bpt->bkt", self.U, y.reshape(*self.U.shape[:2], t))
    parts = jnp.where(self.valid[:, :, None], parts, 0.0)
    return jnp.zeros_like(R).at[self.index].add(parts) / self.noise


def chain_preconditioner(
    gp: GP, X: Float[Array, "n d"], factors: Nystrom, blocks: Blocks
) -> ChainPreconditioner:
    """Factor the residual of `factors` on `blocks`."""
    noise = jnp.asarray(gp.noise)
    U, B, index, valid = inverse_factors(gp.kernel, noise, factors.At, X, blocks)
    return ChainPreconditioner(U, index, valid, B, _factor_inner(B), noise)


@jax.jit
def _factor_inner(B: Array) -> Array:
    """The Cholesky factor of I + BᵀB, from a transposed copy: XLA is twice as fast with that."""
    Bt = lax.optimization_barrier(B.T)
    return jnp.linalg.cholesky(Bt @ B + jnp.eye(B.shape[1], dtype=B.dtype))


class OnDemand:
    """The chain preconditioner, built when it is needed, for `conjugate_gradients`.

    Most evaluations in training start from a v that is nearly good enough and take no step at all, or a
    few, for which Nyström's own preconditioner will do. Building the chain's costs as much as several
    steps, so it waits until the slack is far above the tolerance or `PATIENCE` steps were not enough.
    """

    def __init__(self, build: Callable[[], ChainPreconditioner], patience: int):
        self._build = build
        self._patience = patience
        self._built: ChainPreconditioner | None = None

    def __call__(self, R: Array, W: Array, ratio: float) -> tuple[Array, bool]:
        """The preconditioned residual, and whether it comes from the same matrix as the one before.

        W:     Q̂⁻¹R.
        ratio: the slack in units of the tolerance.
        """
        if self._built is not None:
            return self._built(R), True
        if self._patience > 0 and ratio <= NEAR:
            self._patience -= 1
            return W, True
        self._built = self._build()
        return self._built(R), False


def choose(
    name: str, gp: GP, X: Float[Array, "n d"], factors: Nystrom, blocks: Callable[[], Blocks]
) -> OnDemand | None:
    """CG's preconditioner by name; None is Nyström's.

    "auto" takes the chain where what the inducing points leave unexplained is not small beside the
    noise. `blocks` is called when the chain is built.
    """
    if name not in NAMES:
        raise ValueError(f"precondition must be one of {', '.join(NAMES)}, found {name!r}.")
    if name == "nystrom":
        return None
    if name == "auto" and float(jnp.mean(factors.residual_diag)) <= POOR_NYSTROM * float(gp.noise):
        return None
    return OnDemand(
        lambda: chain_preconditioner(gp, X, factors, blocks()), PATIENCE if name == "auto" else 0
    )
