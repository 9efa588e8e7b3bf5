"""Several processes on one store.

Each has its share of the cores and goes through the whole list of runs, taking those that no other
process holds. A worker that dies interrupts only its current run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cglb.compute.parallel import cores
from cglb.core.cache import use_compilation_cache
from cglb.experiments.execute import Options, work
from cglb.experiments.runs import Run
from cglb.experiments.spec import Budget, Spec

__all__ = ["run_workers", "shares"]


def run_workers(runs: list[Run], options: Options, workers: int, root: Path) -> list[str]:
    """Start the workers and wait for them. Their output goes to `worker-N.log` in the store.

    Returns:
        One sentence for each worker that failed.
    """
    job = _to_json(runs, options, root)
    processes = [_start(job, number, cores, root) for number, cores in enumerate(shares(workers))]
    try:
        codes = [process.wait() for process in processes]
    except KeyboardInterrupt:  # stop the workers too; their runs can be resumed
        for process in processes:
            process.terminate()
            process.wait()
        raise
    return [
        f"Worker {number} was stopped by signal {-code}."
        if code < 0
        else f"Worker {number} failed, see {root / f'worker-{number}.log'}."
        for number, code in enumerate(codes)
        if code != 0
    ]


def shares(workers: int) -> list[list[int]]:
    """The cores of each worker; workers share cores only if there are more workers than cores."""
    mine = cores()
    if workers >= len(mine):
        return [[mine[number % len(mine)]] for number in range(workers)]
    return [mine[number::workers] for number in range(workers)]


def _start(job: str, number: int, cores: list[int], root: Path) -> subprocess.Popen[Any]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"worker-{number}.log").open("w") as log, _on(cores):
        process = subprocess.Popen(
            [sys.executable, "-m", "cglb.experiments.workers"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    assert process.stdin is not None
    with process.stdin as pipe, contextlib.suppress(BrokenPipeError):
        pipe.write(job.encode())
    return process


@contextlib.contextmanager
def _on(cores: list[int]) -> Iterator[None]:
    """Processes started in this block may use only these cores.

    They inherit this before they load anything, so the lanes, XLA and BLAS all see the same number.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _to_json(runs: list[Run], options: Options, root: Path) -> str:
    specs = [run.spec.to_json() for run in runs]
    return json.dumps(
        {"root": str(root), "specs": specs, "options": asdict(options), "parent": os.getpid()}
    )


def main() -> None:
    """Run a worker, which reads its job from standard input."""
    job = json.loads(sys.stdin.read())
    use_compilation_cache()
    options = Options(**{**job["options"], "budget": Budget(**job["options"]["budget"])})
    runs = [Run(Path(job["root"]), Spec.from_json(spec)) for spec in job["specs"]]
    # a worker whose parent has died starts no further run
    work(runs, options, go_on=lambda: os.getppid() == job["parent"])


if __name__ == "__main__":
    main()
