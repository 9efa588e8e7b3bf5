"""The cache folder, for what can be downloaded or compiled again."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

__all__ = ["cache_by_default", "cache_folder", "prune", "use_compilation_cache"]

# bytes of compiled code that are kept from one process to the next
KEPT = 2 << 30
# Small compilations are cached too, since there are hundreds.
SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def cache_folder() -> Path:
    """`$CGLB_CACHE`, or the folder "cglb" in the user's cache folder."""
    env = os.environ.get
    return Path(env("CGLB_CACHE") or Path(env("XDG_CACHE_HOME") or "~/.cache", "cglb")).expanduser()


def use_compilation_cache() -> Path | None:
    """Cache what JAX compiles in `$CGLB_COMPILED`, or in "compiled" in cglb's cache.

    The value "off" turns this off. Without `CGLB_COMPILED`, a folder set by `JAX_COMPILATION_CACHE_DIR`
    is used. Otherwise each version of JAX and each kind of processor has a folder of its own, because
    code for one does not run on another.

    Returns:
        The folder, or None if nothing is cached.
    """
    chosen = os.environ.get("CGLB_COMPILED") or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if chosen == "off":
        return None
    own = cache_folder() / "compiled"
    folder = Path(chosen).expanduser() if chosen else own / _machine()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not chosen:
            prune(own, KEPT)
    except OSError:  # not writable: everything works, but each process compiles again
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    for name, value in SETTINGS.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    compilation_cache.reset_cache()  # JAX may have looked for a folder before, and found none
    return folder


def cache_by_default() -> None:
    """For users of the library, at its first use: `use_compilation_cache`, unless JAX has a setting.

    A folder that was set, or a cache that was turned off, in JAX itself stays as it is.
    """
    config = jax.config
    if config.jax_compilation_cache_dir is None and config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        use_compilation_cache()


def _machine() -> str:
    """A name for this JAX on this kind of processor."""
    parts = [jax.__version__, version("jaxlib"), platform.machine()]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts += sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    except OSError:  # not Linux
        parts.append(platform.processor())
    return f"jax-{jax.__version__}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:8]}"


def prune(folder: Path, kept: int) -> None:
    """Delete the oldest files until `kept` bytes are left; other processes may delete them too."""
    found = []
    for path in folder.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if path.is_file():
            found.append((status.st_mtime, status.st_size, path))
    excess = sum(size for _, size, _ in found) - kept
    for _, size, path in sorted(found):
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= size
