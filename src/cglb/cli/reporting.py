"""`cglb report` and `cglb demo`."""

from __future__ import annotations

__all__ = ["demo", "report"]


def report() -> None:
    """Write a report."""


def demo() -> None:
    """Show what cglb does."""
