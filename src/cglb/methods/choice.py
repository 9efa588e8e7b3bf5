"""`method="auto"`: exact while that is the faster way to the same answer, CGLB above."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cglb.methods.base import Method, find
from cglb.methods.cglb import CGLB
from cglb.methods.exact import Exact, memory_needed
from cglb.methods.stages import EXACT_ROWS

__all__ = ["AUTO", "Choice", "choose"]

AUTO = "auto"


class Choice(NamedTuple):
    """A method, and why it was chosen; no reason if the user asked for it."""

    method: Method
    reason: str = ""


def choose(
    method: str | Method,
    n: int,
    settings: Mapping[str, Any] | None = None,
    memory_gb: float | None = None,
) -> Choice:
    """The method to train with.

    Args:
        method: "auto", a registered name, or a method.
        n: training rows.
        settings: for a method given by name, as in `find`.
        memory_gb: what the arrays of a method may take; None for no limit.
    """
    if method != AUTO:
        return Choice(find(method, settings))
    if n > EXACT_ROWS:
        reason = f"above {EXACT_ROWS} rows a bound is the faster way to the same model"
    elif memory_gb is not None and memory_needed(n) > memory_gb:
        reason = f"exact needs {memory_needed(n):.1f} GB, more than memory_gb={memory_gb}"
    else:
        return Choice(Exact(), f"up to {EXACT_ROWS} rows Cholesky is fast, and nothing is approximated")
    return Choice(find(CGLB.name, {"logdet": AUTO, **(settings or {})}), reason)
