"""A program that tests of several devices and processes start: it prints its results as JSON.

    python processes.py JOB[,JOB…] [--port P --processes N --id I] [--devices N] [--xla]

Without a port it runs alone. Each job prints a line when it ends. All results are plain numbers, so that
runs can be compared.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
from contextlib import nullcontext
from pathlib import Path

import jax
import numpy as np

import cglb
from cglb.bounds.logdet import Chain
from cglb.compute.backend import using
from cglb.compute.mesh import Mesh
from cglb.compute.xla import XLA

N, D, M = 43, 2, 8  # no multiple of 2 or 4 devices


def problem(n: int = N):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, D))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * X.sum(axis=1) + 0.1 * rng.normal(size=n)
    return cglb.GP(cglb.Matern32([0.7, 1.1], 1.3), 0.02, 0.1), X, y, X[5 : 5 + M] + 0.05


def everything() -> dict:
    """Bounds with gradients, solves, inducing points, predictions and an interval."""
    gp, X, y, Z = problem()
    out = {}
    with cglb.float64():
        for name, logdet in {"amgm": "amgm", "hadamard": "hadamard", "chain": Chain(7, 5)}.items():

            def bound(gp, Z, logdet=logdet):
                return cglb.bounds.cglb(gp, X, y, Z, 0.1 * y, logdet=logdet).value

            value, slopes = jax.value_and_grad(bound, argnums=(0, 1))(jax.tree.map(np.asarray, gp), Z)
            out[f"bound {name}"], out[f"gradient {name}"] = value, _flat(slopes)
    out["bound upper"] = cglb.bounds.upper(gp, X, y, Z, 0.1 * y, logdet="moments").value
    for precondition in ("nystrom", "chain"):
        found = cglb.solve(gp, X, y, Z, precondition=precondition, tolerance=1e-12)
        out[f"solve {precondition}"] = found.v
    out["points"] = cglb.inducing.greedy(gp.kernel, X, M, seed=1)
    posterior = cglb.posteriors.cglb(gp, X, y, Z, found.v)
    X_star = X[:9] + 0.1
    out["mean"], out["variance"] = posterior.mean(X_star), posterior.variance(X_star)
    interval = cglb.certify(gp, X, y, Z)
    out["interval"] = [interval.lower, interval.upper]
    return out


def fitting(checkpoint: str | None = None, steps: int = 4, die: int | None = None) -> dict:
    """A fit, its predictions and its history."""
    _, X, y, _ = problem()
    taken = []

    def after(row, fit):
        taken.append(row["bound"])
        if die is not None and len(taken) == 2 and jax.process_index() == die:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        return False

    fit = cglb.train(
        cglb.GP(cglb.Matern32([1.0, 1.0]), 0.1),
        X,
        y,
        cglb.CGLB(logdet=Chain(7, 5)),
        num_inducing=M,
        max_steps=steps,
        schedule="direct",
        checkpoint=checkpoint,
        checkpoint_seconds=0.0,
        callback=after,
    )
    posterior = cglb.methods.base.condition(cglb.CGLB(), fit.gp, X, y, fit.Z, fit.v).posterior
    return {
        "bound": fit.bound,
        "parameters": _flat(fit.gp),
        "mean": posterior.mean(X[:9] + 0.1),
        "history": [row["bound"] for row in fit.history],
    }


def killed(checkpoint: str) -> dict:
    """The same fit, in the middle of which the second process dies."""
    return fitting(checkpoint, die=1)


def memory(n: int, m: int) -> dict:
    """Bytes of the factor Aᵀ that this process holds after an evaluation, and how many more it needs
    while it evaluates (in Linux, where the peak can be set back)."""
    gp, X, y, _ = problem(n)
    method = cglb.SGPR("hadamard")  # the n × m part of an evaluation alone
    with cglb.float64():
        operands = jax.tree.map(jax.numpy.asarray, gp), jax.device_put(X), jax.device_put(X[:m])
        y = jax.device_put(y)
        for _ in range(2):  # the first one compiles
            gc.collect()
            if CLEAR.exists():
                CLEAR.write_text("5")
            before = _resident("VmRSS")
            system = method.system(*operands)
            found = method.evaluate(method.prepare(system), system, y)
            assert found is not None
            jax.block_until_ready((found.gp_bar, found.Z_bar, system.nystrom.solve(y)))
            peak = _resident("VmHWM") - before
            At = system.nystrom.At
            held = sum(one.data.nbytes for one in getattr(At, "data", At).addressable_shards)
            del system, found, At
    return {"held": held, "peak": peak}


CLEAR = Path("/proc/self/clear_refs")


def _resident(kind: str) -> int:
    """The resident size of this process in bytes; 0 where there is no /proc."""
    status = Path("/proc/self/status")
    found = re.search(rf"{kind}:\s*(\d+) kB", status.read_text()) if status.exists() else None
    return 1024 * int(found[1]) if found else 0


def _flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs")
    parser.add_argument("--port", type=int)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--id", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--arguments", default="{}", help="of jobs by name")
    given = parser.parse_args()
    scope = nullcontext()
    if given.port is not None:
        address = f"127.0.0.1:{given.port}"
        cglb.distributed.initialize(
            address, given.processes, given.id, devices=given.devices, timeout=60, goodbye=2
        )
    elif given.devices > 1:
        jax.config.update("jax_num_cpu_devices", given.devices)
        scope = using(Mesh.of(local=XLA() if given.xla else None))
    known = {"everything": everything, "fitting": fitting, "memory": memory, "killed": killed}
    settings = json.loads(given.arguments)
    with scope:
        for job in given.jobs.split(","):
            found = known[job](**settings.get(job, {}))
            plain = {name: np.asarray(value).tolist() for name, value in found.items()}
            print(json.dumps({job: plain}), flush=True)


if __name__ == "__main__":
    main()
