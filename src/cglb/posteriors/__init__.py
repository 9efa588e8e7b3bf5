"""Predictions: means, variances and covariances of the latent f at new inputs."""

from cglb.posteriors import variance
from cglb.posteriors.base import Posterior
from cglb.posteriors.cholesky import ExactPosterior, exact
from cglb.posteriors.iterative import IterativePosterior
from cglb.posteriors.sparse import SparsePosterior, cglb, sgpr

__all__ = [
    "ExactPosterior",
    "IterativePosterior",
    "Posterior",
    "SparsePosterior",
    "cglb",
    "exact",
    "sgpr",
    "variance",
]
