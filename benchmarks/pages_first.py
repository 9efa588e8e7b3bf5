"""The page of the first minute, for `pages.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pages_format import machine, number, table

__all__ = ["first"]


def first(results: Mapping[str, Any]) -> dict[str, str]:
    """What the template of the page asks for."""
    found = results["first-minute"]
    parts = found["results"]
    return {
        "fits": table(
            ["rows", "empty", "cached", "again", "one more", "programs", "scikit-learn", "GPflow"],
            [[number(int(n), 0), *_fits(one)] for n, one in parts["fit"].items()],
            left=0,
        ),
        "others": table(["what", "measured"], _others(parts)),
        "machine": machine(found),
    }


def _fits(one: Any) -> list[str]:
    own = one["cglb"]
    peers = ((one.get(side) or {}).get("second") for side in ("sklearn", "gpflow"))
    cells = (own["first"], one["cglb_cached"]["first"], own["second"], own["another"])
    return [*(number(cell, 2) for cell in cells), str(own["programs"]), *(number(p, 2) for p in peers)]


def _others(parts: Any) -> Iterable[list[str]]:
    """Those that were measured."""
    if folds := parts.get("folds"):
        yield ["seven folds of 600 rows, warm", f"{number(folds['warm'])} s"]
    if serve := parts.get("serve"):
        yield ["a mean, n = 10,000, m = 512", f"{number(serve['mean_ms'], 2)} ms"]
        yield ["a mean and a standard deviation (`local`)", f"{number(serve['mean_std_ms'], 2)} ms"]
        yield ["a mean and a standard deviation (`sgpr`)", f"{number(serve['mean_sgpr_std_ms'], 2)} ms"]
        yield ["means of 100,000 rows", f"{number(serve['many_seconds'])} s"]
        spread = f"{number(serve['many_std_seconds'])} s"
        yield ["means and standard deviations (`local`) of 10,000 rows", spread]
        yield ["memory that 100,000 means add", f"{number(serve['many_more_mb'], 0)} MB"]
        programs = str(serve["programs_of_a_bucket"])
        yield ["programs for other numbers of test rows of the same buckets", programs]
    if memory := parts.get("memory"):
        fits, most = memory["fits"], memory["mb"][-1]
        yield [f"memory after {fits} fits of as many sizes", f"{number(most, 0)} MB"]
    if imports := parts.get("import"):
        yield ["`import cglb`", f"{number(imports['cglb'], 2)} s"]
        yield ["`import cglb`, relative to `import jax, sklearn`", number(imports["ratio"], 2)]
