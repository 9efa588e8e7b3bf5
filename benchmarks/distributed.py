"""One process with one core against two processes with one core each, on this machine.

    python benchmarks/distributed.py
    python benchmarks/distributed.py --jobs large --processes 2

Each process is bound to a core of its own and has one BLAS thread; they talk over 127.0.0.1. `product`
is K̂v, `evaluation` one value and gradient with the chain bound, CG from v = 0 included, with K̂ made anew
in every product; `stored` is the same with K̂ in memory where it fits, `large` one on many rows. Times
are the best after a first call; `cpu` are seconds of a core in one process, which other programs on the
machine change little. Peak memory is that of a process above its start. Data are from the robot arm.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
JOBS = {
    "product": {"n": 40_000, "repeats": 3},
    "evaluation": {"n": 40_000, "m": 512, "repeats": 2, "memory_gb": 0.0},
    "stored": {"n": 40_000, "m": 512, "repeats": 1, "memory_gb": 4.0},
    "large": {"n": 250_000, "m": 512, "repeats": 0, "memory_gb": 4.0},
}


def child(options: argparse.Namespace) -> None:
    """One process of a run: prints its result as JSON."""
    os.sched_setaffinity(0, {options.core})
    import jax
    import numpy as np

    import cglb

    if options.port:
        address = f"127.0.0.1:{options.port}"
        cglb.distributed.initialize(address, 2, options.id, timeout=120, heartbeat=120)
    job = json.loads(options.settings)
    n = job["n"]
    data = cglb.datasets.robot_arm(n, noise=0.1, seed=0)
    X = (data.X - data.X.mean(0)) / data.X.std(0)
    y = (data.y - data.y.mean()) / data.y.std()
    gp = cglb.GP(cglb.Matern32(np.full(X.shape[1], 3.0)), 0.05)
    with cglb.float64():
        gp, X, y = jax.tree.map(jax.numpy.asarray, gp), jax.device_put(X), jax.device_put(y)
        before = _peak()
        run = _product(gp, X, y) if options.job == "product" else _evaluation(gp, X, y, job)
        times, cpu, note = [], [], {}
        for _ in range(job["repeats"] + 1):
            started, used = time.perf_counter(), time.process_time()
            note = run()
            times.append(time.perf_counter() - started)
            cpu.append(time.process_time() - used)
    later = slice(1, None) if job["repeats"] else slice(None)
    found = {"best": min(times[later]), "cpu": min(cpu[later]), "first": times[0]}
    print(json.dumps({**found, "memory_gb": (_peak() - before) / 2**30, **note}))


def _product(gp: Any, X: Any, y: Any) -> Any:
    import jax

    from cglb.linalg.operator import KernelOperator

    operator = KernelOperator.of(gp, X)

    def run() -> dict[str, Any]:
        jax.block_until_ready(operator @ y)
        return {}

    return run


def _evaluation(gp: Any, X: Any, y: Any, job: Any) -> Any:
    from dataclasses import replace

    import numpy as np

    import cglb

    method = cglb.CGLB(logdet="chain")
    solver = replace(method.solver, memory_gb=job["memory_gb"])
    Z = X[np.random.default_rng(0).choice(X.shape[0], job["m"], replace=False)]
    started = time.perf_counter()
    prepared = method.prepare(method.system(gp, X, Z))
    preparing = time.perf_counter() - started

    def run() -> dict[str, Any]:
        system = method.system(gp, X, Z, prepared)
        found = method.evaluate(prepared, system.again(solver, system.neighbours), y)
        assert found is not None
        return {"preparing": preparing, "bound": found.value, "cg_steps": found.cg_steps}

    return run


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(job: str, processes: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The slowest of the processes, and the largest memory of one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1] if processes > 1 else 0
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    cores = sorted(os.sched_getaffinity(0))
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", "--job", job, "--settings", json.dumps(settings),
             "--port", str(port), "--id", str(i), "--core", str(cores[i % len(cores)])],
            stdout=subprocess.PIPE, text=True, env={**os.environ, **one_thread},
        )
        for i in range(processes)
    ]  # fmt: skip
    try:
        outputs = [child.communicate()[0].splitlines() for child in children]
    finally:
        for each in children:
            each.kill()
    found = [json.loads(lines[-1]) for lines in outputs]
    slowest = {name: max(one[name] for one in found) for name in found[0]}
    return {"processes": processes, **slowest}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", default="product,evaluation,stored")
    parser.add_argument("--rows", type=int, help="instead of those of the job")
    parser.add_argument("--inducing", type=int)
    parser.add_argument("--processes", default="1,2", help="with how many to run")
    parser.add_argument("--json", type=Path)
    for name in ("--job", "--settings"):
        parser.add_argument(name)
    for name in ("--port", "--id", "--core"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    found = {}
    for job in options.jobs.split(","):
        settings = dict(JOBS[job])
        settings |= {"n": options.rows} if options.rows else {}
        settings |= {"m": options.inducing} if options.inducing and "m" in settings else {}
        runs = [run(job, int(count), settings) for count in options.processes.split(",")]
        found[job] = {**settings, "runs": runs}
        if len(runs) > 1:
            for name, measure in (("speedup", "best"), ("cpu_speedup", "cpu")):
                found[job][name] = runs[0][measure] / runs[1][measure]
        print(job, json.dumps(found[job], indent=1))
    if options.json:
        from common import machine, write

        write(options.json, {**found, "load": os.getloadavg()[0], "machine": machine()})


if __name__ == "__main__":
    main()
