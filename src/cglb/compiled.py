"""Compiled code that outlives the process, for programs. A library must not decide this for others, so
nothing here happens on import."""

from __future__ import annotations

import os
from pathlib import Path

import jax

from cglb.datasets import cache_folder

__all__ = ["use_compilation_cache"]


def use_compilation_cache() -> Path | None:
    """Keep what JAX compiles in `$CGLB_COMPILED` (else the folder "compiled" in cglb's cache).

    "off" turns it off (None comes back). A folder that JAX was given itself, by
    `JAX_COMPILATION_CACHE_DIR`, is left alone. Small compilations are kept too: there are hundreds.
    """
    chosen = os.environ.get("CGLB_COMPILED") or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if chosen == "off":
        return None
    folder = Path(chosen).expanduser() if chosen else cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written to: everything works, compiling anew each time
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder
