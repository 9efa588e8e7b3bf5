"""Pivoted Cholesky where the rows are split among the devices of a mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from cglb.compute.mesh import run_on
from cglb.compute.shards import AXIS, REPLICATED, SPLIT, pad_to
from cglb.kernels.base import Kernel
from cglb.linalg.pivoting import in_stages

__all__ = ["pivots"]


def pivots(
    mesh: jax.sharding.Mesh,
    m: int,
    tiny: float,
    kernel: Kernel,
    X: Float[Array, "n d"],
) -> tuple[Array, Array]:
    """Pivots [m] and their conditional variances [m], as `inducing.pivots`: O(nm/P) memory per device.

    Each device proposes its best row; one collective per pivot decides.

    Args:
        mesh: the devices.
        m: the number of pivots.
        tiny: avoids a division by 0.
        kernel: k.
        X: inputs.
    """
    n = X.shape[0]
    rows = pad_to(-(-n // mesh.size) * mesh.size, X, "edge")
    specs = ((REPLICATED, SPLIT), (REPLICATED, REPLICATED))
    return run_on(mesh, _share, (m, n, tiny), specs, kernel, rows)


def _share(m: int, n: int, tiny: float, kernel: Kernel, X: Array) -> tuple[Array, Array]:
    share, d = X.shape
    numbers = lax.axis_index(AXIS) * share + jnp.arange(share, dtype=jnp.int32)
    # rows of padding are never chosen, as rows that were chosen before
    diag = jnp.where(numbers < n, kernel.diag(X), -jnp.inf)

    def step(state: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], tuple]:
        C, diag = state
        own = jnp.argmax(diag)
        place = numbers[own].astype(X.dtype)  # exact up to 2⁵³ rows
        proposal = jnp.concatenate([jnp.stack([diag[own], place]), X[own], C[:, own]])
        proposals = lax.all_gather(proposal, AXIS)
        best = proposals[jnp.argmax(proposals[:, 0])]  # of equal ones that with the lowest number
        variance, pivot = best[0], best[1].astype(jnp.int32)
        column = kernel(X, best[None, 2 : 2 + d])[:, 0]
        column = (column - best[2 + d :] @ C) / jnp.sqrt(jnp.maximum(variance, tiny))
        C = lax.dynamic_update_slice_in_dim(C, column[None, :], t, axis=0)
        lowered = jnp.maximum(diag - column * column, 0.0)
        mine = numbers == pivot
        return (C, jnp.where(jnp.isneginf(diag) | mine, -jnp.inf, lowered)), (pivot, variance)

    return in_stages(m, diag, step)
