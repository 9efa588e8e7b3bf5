"""A reference in 50 decimal digits, with nothing but the standard library: slow and obvious.

It takes the numbers of a model and of the data as they are, and computes covariances, the log marginal
likelihood and posterior variances from the formulas. Its errors are some 1e-40 of the result, so a
difference to it is the rounding of the code under test.
"""

from __future__ import annotations

from decimal import Decimal, getcontext

import numpy as np

import cglb
from cglb.kernels import Kernel, Product, Sum

getcontext().prec = 50
TWO_PI = 2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494")


def exactly(array) -> np.ndarray:
    """An array of Decimals with the same values, to the last bit."""
    values = np.asarray(array, dtype=np.float64)
    return np.array([Decimal(float(v)) for v in values.ravel()], dtype=object).reshape(values.shape)


def _profile(kernel: Kernel, r2: Decimal) -> Decimal:
    if isinstance(kernel, cglb.RBF):
        return (-r2 / 2).exp()
    order = {cglb.Matern12: 1, cglb.Matern32: 3, cglb.Matern52: 5}[type(kernel)]
    s = (order * r2).sqrt()
    polynomial = {1: Decimal(1), 3: 1 + s, 5: 1 + s + s * s / 3}[order]
    return polynomial * (-s).exp()


def covariances(kernel: Kernel, X1: np.ndarray, X2: np.ndarray) -> np.ndarray:
    """K(X1, X2) for RBF, Matérn and Linear, and their sums and products."""
    if isinstance(kernel, Sum | Product):
        left, right = covariances(kernel.left, X1, X2), covariances(kernel.right, X1, X2)
        return left + right if isinstance(kernel, Sum) else left * right
    A, B = exactly(X1), exactly(X2)
    if isinstance(kernel, cglb.Linear):
        return (A * exactly(np.broadcast_to(kernel.variance, X1.shape[1]))) @ B.T
    scale, variance = exactly(np.broadcast_to(kernel.lengthscale, X1.shape[1])), exactly(kernel.variance)
    out = np.empty((len(A), len(B)), dtype=object)
    for i, a in enumerate(A):
        for j, b in enumerate(B):
            out[i, j] = variance.item() * _profile(kernel, sum(((a - b) / scale) ** 2))
    return out


def cholesky(A: np.ndarray) -> np.ndarray:
    """L with LLᵀ = A."""
    n = len(A)
    L = np.full((n, n), Decimal(0), dtype=object)
    for j in range(n):
        L[j, j] = (A[j, j] - L[j, :j] @ L[j, :j]).sqrt() if j else A[j, j].sqrt()
        for i in range(j + 1, n):
            L[i, j] = (A[i, j] - (L[i, :j] @ L[j, :j] if j else 0)) / L[j, j]
    return L


def half_solve(L: np.ndarray, b: np.ndarray) -> np.ndarray:
    """L⁻¹b."""
    x = np.array(b, dtype=object)
    for i in range(len(x)):
        x[i] = (x[i] - (L[i, :i] @ x[:i] if i else 0)) / L[i, i]
    return x


def factor(gp: cglb.GP, X: np.ndarray) -> np.ndarray:
    """The Cholesky factor of K̂."""
    K = covariances(gp.kernel, X, X)
    K[np.diag_indices(len(X))] += exactly(gp.noise).item()
    return cholesky(K)


def log_likelihood(gp: cglb.GP, X: np.ndarray, y: np.ndarray, L: np.ndarray | None = None) -> float:
    """log p(y); L is the factor, if it is known."""
    L = factor(gp, X) if L is None else L
    z = half_solve(L, exactly(y) - exactly(gp.mean).item())
    logdet = 2 * sum(value.ln() for value in np.diagonal(L))
    return float(-(z @ z + logdet + len(y) * TWO_PI.ln()) / 2)


def variances(gp: cglb.GP, X: np.ndarray, X_star: np.ndarray, L: np.ndarray | None = None) -> np.ndarray:
    """Var f at the rows of X_star."""
    L = factor(gp, X) if L is None else L
    found = []
    for x in X_star:
        z = half_solve(L, covariances(gp.kernel, X, x[None, :])[:, 0])
        found.append(float(covariances(gp.kernel, x[None, :], x[None, :])[0, 0] - z @ z))
    return np.array(found)
