"""The cache folder, for what can be downloaded or compiled again."""

from __future__ import annotations

import os
from pathlib import Path

import jax

__all__ = ["cache_folder", "use_compilation_cache"]


def cache_folder() -> Path:
    """`$CGLB_CACHE`, or the folder "cglb" in the user's cache folder."""
    env = os.environ.get
    return Path(env("CGLB_CACHE") or Path(env("XDG_CACHE_HOME") or "~/.cache", "cglb")).expanduser()


def use_compilation_cache() -> Path | None:
    """For programs: cache what JAX compiles in `$CGLB_COMPILED`, or in "compiled" in cglb's cache.

    The value "off" turns this off. Without `CGLB_COMPILED`, a folder set by `JAX_COMPILATION_CACHE_DIR`
    is used. Small compilations are cached too, since there are hundreds.

    Returns:
        The folder, or None if nothing is cached.
    """
    chosen = os.environ.get("CGLB_COMPILED") or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if chosen == "off":
        return None
    folder = Path(chosen).expanduser() if chosen else cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # not writable: everything works, but each process compiles again
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder
