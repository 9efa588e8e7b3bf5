"""Lower bounds on log|K̂| that can be proven: how far each is from the exact value, on dense matrices.

    python benchmarks/lower.py --rows 1000 --inducing 128

With M = Q̂^(−½)K̂Q̂^(−½) − I ⪰ 0, g(μ) = log(1 + μ)/μ and log|K̂| = log|Q̂| + tr M g(M):

    nystrom    log|Q̂|
    moments    t·g(f/t), t = tr M, f = tr M², by Jensen: what the package has
    rows       the same row by row, t = Mᵢᵢ, f = (M²)ᵢᵢ
    blocks     the same for blocks of rows, tr T g(T^(−½)FT^(−½)) with T and F blocks of M and M²,
               because g is operator convex
    twice      moments with twice (four times) the inducing points
    whitened   the chain's WK̂Wᵀ = I + D: log λ ≥ λ − 1 − c(λ − 1)² for λ ≥ a gives tr D − c‖D‖², with
               a = σ²/λ_max((WᵀW)⁻¹)

Half of the gap of log|K̂| is what a bound on log p(y) loses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from common import RESULTS, machine, standardised, write

import cglb
from cglb.linalg.blocks import find_blocks
from cglb.linalg.inducing import greedy_rows

# data: (lengthscale in units of √d, noise), near what training finds
MODELS = {"elevators": (1.5, 0.14), "pol": (0.8, 1e-3), "bike": (1.0, 1e-5)}
BLOCKS = (16, 64)


def gain(t: np.ndarray, f: np.ndarray) -> float:
    """Σ t·g(f/t)."""
    keep = t > 1e-12 * t.max()
    t, f = t[keep], f[keep]
    return float(np.sum(t * t / f * np.log1p(f / t)))


def block_gain(M: np.ndarray, rows: np.ndarray) -> float:
    """tr T g(T^(−½)FT^(−½)) of one block."""
    a, U = np.linalg.eigh(M[np.ix_(rows, rows)])
    keep = a > 1e-10 * a.max()
    a, U = a[keep], U[:, keep]
    half = U / np.sqrt(a)
    x, V = np.linalg.eigh(half.T @ (M[rows] @ M[:, rows]) @ half)
    x = np.maximum(x, 1e-14)
    return float(np.sum(np.sum((np.sqrt(a)[:, None] * V) ** 2, axis=0) * np.log1p(x) / x))


def residual(K_hat: np.ndarray, noise: float, points: np.ndarray) -> tuple[float, np.ndarray]:
    """log|Q̂| and M for these rows as inducing points."""
    K = K_hat - noise * np.eye(len(K_hat))
    Kuu = K[np.ix_(points, points)] + 1e-10 * np.eye(len(points))
    A = np.linalg.solve(np.linalg.cholesky(Kuu), K[points])
    values, V = np.linalg.eigh(A.T @ A + noise * np.eye(len(K)))
    half = (V / np.sqrt(values)) @ V.T
    M = half @ K_hat @ half - np.eye(len(K))
    return float(np.sum(np.log(values))), 0.5 * (M + M.T)


def whitened(K_hat: np.ndarray, noise: float, blocks) -> float:
    """By the chain of K̂ itself."""
    n = len(K_hat)
    U = np.zeros((n, n))
    start = 0
    rows, kept = np.asarray(blocks.rows), np.asarray(blocks.row_valid)
    near, known = np.asarray(blocks.neighbours), np.asarray(blocks.neighbour_valid)
    for b in range(len(rows)):
        own, others = rows[b][kept[b]], near[b][known[b]]
        index = np.concatenate([others, own])
        inverse = np.linalg.inv(np.linalg.cholesky(K_hat[np.ix_(index, index)]))
        U[start : start + len(own), index] = inverse[len(others) :]
        start += len(own)
    D = U @ K_hat @ U.T - np.eye(n)
    logdet_P = -np.linalg.slogdet(U)[1] * 2.0
    a = noise * np.linalg.eigvalsh(U.T @ U)[0]
    c = (a - 1.0 - np.log(a)) / (a - 1.0) ** 2
    return float(logdet_P + np.trace(D) - c * np.sum(D * D))


def gaps(data: str, rows: int, m: int) -> dict[str, float]:
    """Half the gap of each bound, in nats."""
    X, _, _, _ = standardised(data, rows)
    scale, noise = MODELS[data]
    with cglb.float64():
        kernel = jax.tree.map(
            jnp.asarray, cglb.Matern32(scale * np.sqrt(X.shape[1]) * np.ones(X.shape[1]))
        )
        x = jnp.asarray(X)
        K_hat = np.asarray(kernel(x, x)) + noise * np.eye(rows)
        order = np.asarray(greedy_rows(kernel, x, 4 * m, seed=0))
        chains = {k: find_blocks(kernel, x, 64, k) for k in (64, 256)}
        leaves = {p: find_blocks(kernel, x, p, 1) for p in BLOCKS}
    exact = np.linalg.slogdet(K_hat)[1]
    logdet_Q, M = residual(K_hat, noise, order[:m])
    found = {
        "nystrom": logdet_Q,
        "moments": logdet_Q + gain(np.trace(M)[None], np.sum(M * M)[None]),
        "rows": logdet_Q + gain(np.diagonal(M), np.sum(M * M, axis=1)),
    }
    for p, blocks in leaves.items():
        parts = zip(np.asarray(blocks.rows), np.asarray(blocks.row_valid), strict=True)
        found[f"blocks of {p}"] = logdet_Q + sum(block_gain(M, one[kept]) for one, kept in parts)
    for times, label in ((2, "twice"), (4, "four times")):
        more, larger = residual(K_hat, noise, order[: times * m])
        found[label] = more + gain(np.trace(larger)[None], np.sum(larger * larger)[None])
    for k, blocks in chains.items():
        found[f"whitened, {k} neighbours"] = whitened(K_hat, noise, blocks)
    return {name: 0.5 * float(exact - value) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--inducing", type=int, default=64)
    parser.add_argument("--json", type=Path, default=RESULTS / "lower.json")
    options = parser.parse_args()
    results = {}
    for data in MODELS:
        results[data] = gaps(data, options.rows, options.inducing)
        print(data, {name: round(gap, 1) for name, gap in results[data].items()}, flush=True)
    settings = {"rows": options.rows, "inducing": options.inducing}
    write(options.json, {"settings": settings, "results": results, "machine": machine()})


if __name__ == "__main__":
    main()
