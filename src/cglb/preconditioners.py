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
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from cglb.chain import inverse_factors
from cglb.model import GP
from cglb.neighbours import Blocks
from cglb.nystrom import Nystrom

__all__ = ["ChainPreconditioner", "chain_preconditioner", "choose"]

NAMES = ("auto", "nystrom", "chain")
# mean δ/σ² above which Q̂ alone is a poor picture of K̂
POOR_NYSTROM = 0.05


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
    y = y - self.B @ cho_solve((self.LC, True), self.B.T @ y)
    parts = jnp.einsum("bpk,bpt->bkt", self.U, y.reshape(*self.U.shape[:2], t))
    parts = jnp.where(self.valid[:, :, None], parts, 0.0)
    return jnp.zeros_like(R).at[self.index].add(parts) / self.noise


def chain_preconditioner(
    gp: GP, X: Float[Array, "n d"], factors: Nystrom, blocks: Blocks
) -> ChainPreconditioner:
    """Factor the residual of `factors` on `blocks`."""
    noise = jnp.asarray(gp.noise)
    U, B, index, valid = inverse_factors(gp.kernel, noise, factors.At, X, blocks)
    LC = jnp.linalg.cholesky(B.T @ B + jnp.eye(factors.m, dtype=B.dtype))
    return ChainPreconditioner(U, index, valid, B, LC, noise)


def choose(
    name: str, gp: GP, X: Float[Array, "n d"], factors: Nystrom, blocks: Blocks | None
) -> Callable[[Array], Array] | None:
    """CG's preconditioner by name; None is Nyström's.

    "auto" takes the chain where what the inducing points leave unexplained is not small beside the
    noise. It is built at its first use: most evaluations in training need no CG step at all.
    """
    if name not in NAMES:
        raise ValueError(f"precondition must be one of {', '.join(NAMES)}, found {name!r}.")
    if name == "nystrom" or blocks is None:
        return None
    if name == "auto" and float(jnp.mean(factors.residual_diag)) <= POOR_NYSTROM * float(gp.noise):
        return None
    built: list[ChainPreconditioner] = []

    def apply(R: Array) -> Array:
        if not built:
            built.append(chain_preconditioner(gp, X, factors, blocks))
        return built[0](R)

    return apply
