"""How numbers, tables and machines are written on the pages of measured numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

WIDTH = 105
NONE = "–"


def number(value: float | None, decimals: int = 1) -> str:
    """The number with separators and a true minus sign; a dash for None."""
    return NONE if value is None else f"{value:,.{decimals}f}".replace("-", "−")


def small(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def table(header: list[str], rows: Iterable[list[str]], left: int = 1) -> str:
    """A Markdown table whose first `left` columns are text and the others numbers."""
    rule = ["---" if column < left else "---:" for column in range(len(header))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def commands(*lines: str) -> str:
    return "\n".join(["```", *lines, "```"])


def bullets(items: Iterable[str]) -> str:
    return "\n".join(
        textwrap.fill(item, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for item in items
    )


def machine(result: Any) -> str:
    found = result["machine"]
    rate = number(found["gemm_gflops"])
    cores = f"{found['cores']} core{'' if found['cores'] == 1 else 's'}"
    return textwrap.fill(
        f"Measured on {cores} ({found['processor']}; {rate} GFLOP/s in a float64 matrix "
        f"product at the time) with cglb {found['cglb']} and JAX {found['jax']}.",
        WIDTH,
    )
