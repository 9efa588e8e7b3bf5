"""Blocks of rows that lie together, and the earlier rows nearest to each, in scaled inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from cglb.compute.backend import backend_of
from cglb.kernels.base import Kernel
from cglb.kernels.distance import squared_distance
from cglb.linalg.row_noise import number

__all__ = ["BLOCK", "NEIGHBOURS", "Blocks", "Neighbours", "find_blocks"]

# Rows per block, and neighbours of each. With more the chain is tighter and its preconditioner saves
# steps of CG; with these both cost about as much as the Nyström factors.
BLOCK, NEIGHBOURS = 128, 256


class Blocks(eqx.Module):
    """b blocks of up to p rows, each with up to k neighbours among the rows of earlier blocks.

    Blocks that lie together stand together, since they share neighbours. When each comes in the chain is
    its number.
    """

    rows: Int[Array, "b p"]
    row_valid: Bool[Array, "b p"]
    neighbours: Int[Array, "b k"]
    neighbour_valid: Bool[Array, "b k"]
    numbers: Int[Array, " b"]


class Neighbours:
    """The blocks for one kernel and data, searched for when first needed. It holds no factors, so that
    systems of nearby models can share it."""

    def __init__(self, find: Callable[[], Blocks]):
        self._find = find

    @classmethod
    def near(cls, kernel: Kernel, X: Float[Array, "n d"]) -> Neighbours:
        """Those that `find_blocks` finds by default."""
        return cls(lambda: find_blocks(kernel, X))

    @classmethod
    def given(cls, blocks: Blocks) -> Neighbours:
        """Blocks that are known."""
        return cls(lambda: blocks)

    @cached_property
    def blocks(self) -> Blocks:
        return self._find()


def find_blocks(
    kernel: Kernel,
    X: Float[Array, "n d"],
    block: int = BLOCK,
    neighbours: int = NEIGHBOURS,
    random_order: bool = True,
    seed: int = 0,
) -> Blocks:
    """Cut the rows by medians (a k-d tree), number the leaves, and search neighbours by distance.

    O(n log n) for the tree and n²·d for the search, in stripes of one block against all rows. Distances
    are in inputs scaled by the kernel's lengthscales.

    Args:
        block: rows per block.
        neighbours: rows of earlier blocks to condition each block on.
        random_order: number the blocks at random; otherwise in the order of the tree.
        seed: of the shuffle.
    """
    n, d = number(kernel, X), X.shape[1]
    scaled = np.asarray(X) * np.asarray(kernel.relevance(d))[None, :]
    leaves = _leaves(scaled[:n], min(block, n))
    # sizes come from all rows, those that count for nothing included: one program for all of a bucket
    p = min(block, X.shape[0])
    # as many blocks as all rows would fill
    count = len(leaves) + -(-X.shape[0] // p) - -(-n // p)
    rows = np.zeros((count, p), dtype=np.int32)
    valid = np.zeros((count, p), dtype=bool)
    for i, leaf in enumerate(leaves):
        rows[i, : len(leaf)], valid[i, : len(leaf)] = leaf, True
    numbers = np.arange(count, dtype=np.int32)
    if random_order:
        numbers[np.random.default_rng(seed).permutation(len(leaves))] = np.arange(len(leaves))
    position = np.full(X.shape[0], count, dtype=np.int32)  # the number of the block each row is in
    for number_of_leaf, leaf in zip(numbers, leaves, strict=False):
        position[leaf] = number_of_leaf
    rows, valid = jnp.asarray(rows), jnp.asarray(valid)
    k = min(neighbours, X.shape[0])
    search = partial(_nearest_earlier, k)
    operands = jax.device_put(scaled), jnp.asarray(position)
    found, found_valid = backend_of(kernel, X).over_blocks(search, operands, (numbers, rows, valid))
    return Blocks(rows, valid, found, found_valid, jnp.asarray(numbers))


def _leaves(X: np.ndarray, size: int) -> list[np.ndarray]:
    """Row numbers in groups of at most `size`, by median cuts along the widest direction."""
    todo, leaves = [np.arange(len(X))], []
    while todo:
        rows = todo.pop()
        if len(rows) <= size:
            leaves.append(rows)
            continue
        axis = int(np.argmax(X[rows].std(axis=0)))
        # cut at a multiple of the block size, so that all blocks but the last are full
        half = max(size, round(len(rows) / 2 / size) * size)
        order = rows[np.argsort(X[rows, axis], kind="stable")]
        todo += [order[half:], order[:half]]
    return leaves


@partial(jax.jit, static_argnums=0)
def _nearest_earlier(
    k: int, X: Array, position: Array, numbers: Array, rows: Array, valid: Array
) -> tuple[Array, Array]:
    """For blocks with these numbers: the k nearest rows of earlier blocks, and which of them exist."""

    def one(block: Any) -> tuple[Array, Array]:
        number, row, row_valid = block
        r2 = jnp.where(row_valid[:, None], squared_distance(X[row], X), jnp.inf)
        nearest = jnp.where(position < number, jnp.min(r2, axis=0), jnp.inf)
        distance, index = lax.top_k(-nearest, k)
        return index.astype(jnp.int32), jnp.isfinite(distance)

    return lax.map(one, (numbers, rows, valid))
