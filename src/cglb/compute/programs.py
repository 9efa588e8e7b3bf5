"""Programs that are mostly exponentials and roots, compiled with the widest vectors of the processor.

XLA uses vectors of 256 bits on x86 even where the processor has 512. The entries of a tile then take up
to twice as long. Processors without such vectors, and accelerators, ignore the option.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from cglb.core.precision import is_traced

__all__ = ["wide"]

WIDE: dict[str, str | bool | int | float] = {"xla_cpu_prefer_vector_width": 512}


def wide(fn: Callable[..., Any], static_argnums: int | tuple[int, ...] = ()) -> Callable[..., Any]:
    """`fn`, compiled for concrete operands with the options of this module.

    Inside a trace it becomes part of the outer program, whose options count.
    """
    alone = jax.jit(fn, static_argnums=static_argnums, compiler_options=WIDE)
    part = jax.jit(fn, static_argnums=static_argnums)

    @wraps(fn)
    def run(*operands: Any) -> Any:
        if is_traced(operands):
            return part(*operands)
        try:
            return alone(*operands)
        except ValueError:  # in a trace of other values, where options are refused
            return part(*operands)

    return run
