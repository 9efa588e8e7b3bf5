"""How numbers are made on a machine: tiles, threads, BLAS, and what XLA does badly on a CPU.

The only package that knows about any of these; `backend.backend_of` chooses by where the arrays are.
"""
