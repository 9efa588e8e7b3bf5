"""What BLAS and LAPACK do better than XLA on a CPU."""
