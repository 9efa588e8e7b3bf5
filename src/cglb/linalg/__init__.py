"""The matrices of a Gaussian process and solves with them."""
