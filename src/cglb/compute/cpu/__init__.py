"""The backend of one CPU, and what BLAS and LAPACK do better than XLA there."""
