"""The machine and the versions behind a result, without names of hosts, places or people."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

import jax
import numpy as np
import scipy

from cglb.compute.parallel import cores

__all__ = ["peak_memory_gb", "reset_peak_memory", "summary", "versions"]


def summary() -> dict[str, str | int | float]:
    """Operating system, processor, cores this process may use, memory in GB and JAX backend."""
    return {
        "system": platform.system(),
        "processor": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(cores()),
        "memory_gb": round(_kilobytes(Path("/proc/meminfo"), "MemTotal") / 2**20, 1),
        "backend": jax.default_backend(),
    }


def versions() -> dict[str, str]:
    """Versions of Python, cglb and the packages that results depend on."""
    from cglb import __version__  # not at the top: the package is still being imported there

    return {
        "cglb": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }


def peak_memory_gb() -> float:
    """The largest resident memory since the start or `reset_peak_memory`; 0 if the system cannot tell.

    Not `ru_maxrss`, which a process inherits from its parent.
    """
    return _kilobytes(Path("/proc/self/status"), "VmHWM") / 2**20


def reset_peak_memory() -> None:
    """Restart `peak_memory_gb` if the system allows it, since one process makes several runs."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _field(path: Path, name: str) -> str:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def _kilobytes(path: Path, name: str) -> int:
    found = _field(path, name).split()
    return int(found[0]) if found else 0
