"""Several devices, and several processes on one or many machines.

    with cglb.distributed.mesh():            # all devices of this process, such as four GPUs
        model.fit(X, y)

    cglb.distributed.initialize("10.0.0.1:1234", processes=4, process_id=2)
    model.fit(X, y)                          # the same in every process

All processes run the same program on the same data and come to the same result. The n² work and all
arrays [n, m] are split among the devices; inputs and vectors are whole in every process.
"""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from typing import Any

import jax
import numpy as np

from cglb.compute import processes
from cglb.compute.backend import use
from cglb.compute.mesh import Mesh, scope
from cglb.compute.parallel import cores
from cglb.core.errors import DistributedError

__all__ = ["initialize", "is_first", "mesh", "shutdown"]

WAIT = 60  # seconds for all processes to come
HEARTBEAT = 30  # seconds of silence after which a process counts as lost
GOODBYE = 20


def mesh(devices: Sequence[Any] | None = None) -> AbstractContextManager[None]:
    """A scope in which the work is split among these devices, or among all.

    Args:
        devices: as `jax.devices()` lists them.
    """
    chosen = jax.devices() if devices is None else devices
    return scope(chosen) if len(chosen) > 1 else nullcontext()


def is_first() -> bool:
    """Whether this process is the one that should write files."""
    return processes.is_first()


def initialize(
    coordinator: str | None = None,
    processes: int | None = None,
    process_id: int | None = None,
    *,
    devices: int | None = None,
    timeout: int = WAIT,
    heartbeat: int = HEARTBEAT,
    goodbye: int = GOODBYE,
) -> None:
    """Join the processes of a run; from here on, this thread splits its work among all of their devices.

    Call it before anything else of JAX. Started by Slurm, Open MPI or Kubernetes, it needs no arguments:
    JAX finds them in the environment.

    Args:
        coordinator: address and port of process 0, such as "10.0.0.1:1234".
        processes: how many there are.
        process_id: which one this is, from 0.
        devices: of this process, on CPUs: by default one per core that it may use.
        timeout: seconds to wait for the others.
        heartbeat: seconds of silence after which a process counts as lost, and all others stop.
        goodbye: seconds that a process waits for the others at its end.

    Raises:
        DistributedError: if the others cannot be reached, or differ in their versions.
        ValueError: if the arguments contradict each other.
    """
    _check(coordinator, processes, process_id)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", devices or len(cores()))
    _reach(coordinator, process_id, timeout)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process_id,
            initialization_timeout=timeout,
            heartbeat_timeout_seconds=heartbeat,
            shutdown_timeout_seconds=goodbye,
        )
    except ValueError as error:
        raise DistributedError(
            "This process was started neither by Slurm, Open MPI nor Kubernetes as far as JAX can tell: "
            f"give coordinator, processes and process_id. ({error})"
        ) from None
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:200]
        raise DistributedError(
            f"Not all processes came together within {timeout} seconds at {coordinator}: check that all "
            f"were started, with the same address and number of processes. ({reason})"
        ) from None
    with _others_must_come():
        _meet()
    if jax.device_count() > 1:
        use(Mesh.of())


def shutdown() -> None:
    """Leave the run; the others must leave as well."""
    use(None)
    jax.distributed.shutdown()


def _check(coordinator: str | None, count: int | None, process_id: int | None) -> None:
    given = [part is not None for part in (coordinator, count, process_id)]
    if any(given) and not all(given):
        raise ValueError("Give coordinator, processes and process_id, or none of them.")
    if count is not None and process_id is not None and not 0 <= process_id < count:
        raise ValueError(f"process_id must be from 0 to {count - 1}, found {process_id}.")
    if coordinator is not None and not coordinator.rpartition(":")[2].isdigit():
        raise ValueError(f"coordinator must be an address and a port, found {coordinator!r}.")


def _reach(coordinator: str | None, process_id: int | None, timeout: float) -> None:
    """Wait until process 0 listens. JAX itself would end the program without a word about why."""
    if coordinator is None or process_id in (None, 0):
        return
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + timeout
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
                return
        except OSError as error:
            reason = error
        if time.monotonic() >= end:
            raise DistributedError(
                f"Process 0 cannot be reached at {coordinator} ({reason}): check the address, that "
                "process 0 runs, and that no firewall is in between."
            )
        time.sleep(0.2)


def _others_must_come() -> AbstractContextManager[None]:
    return processes.guarded("It ended before the run began. ")


def _meet() -> None:
    """Check that all processes would compute the same."""
    packages = ("cglb", "jax", "jaxlib", "numpy", "scipy")
    parts = [f"{name} {metadata.version(name)}" for name in packages]
    parts += [f"Python {platform.python_version()}", platform.machine()]
    processes.check_same("versions", ", ".join(parts))
    counts = processes.gathered_rows(np.asarray([jax.local_device_count()]))
    if len(set(counts.tolist())) > 1:
        raise DistributedError(
            f"All processes must have as many devices, found {counts.tolist()}: give each as many cores "
            "or GPUs, or set `devices`."
        )
