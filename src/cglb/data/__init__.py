"""Data sets, metrics, tables."""
