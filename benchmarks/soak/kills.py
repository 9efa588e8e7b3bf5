"""Kills at random moments: a fit that is killed again and again ends with the same bits.

Every method is fitted in a process of its own, which is killed (SIGKILL) a random time after a random
number of steps, started again, killed again, and at last left alone. The result must be that of a fit
that was never killed, to the last bit.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tally import Tally, Violation

METHODS = ("cglb", "chain", "sgpr", "exact", "iterative", "joint")
MOST_STEPS, LONGEST = 3, 0.05  # steps between two kills at most, and seconds after the last of them


def fit(method: str, checkpoint: Path | None) -> str:
    """One fit in this process, each step on a line of its own; a digest of its result."""
    import jax

    import cglb
    from cglb.bounds.logdet import Chain
    from cglb.core.cache import use_compilation_cache

    use_compilation_cache()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=40)
    pretrained = cglb.Iterative(rank=5, pretrain=(3, 2))
    ways = {
        "cglb": {"method": cglb.CGLB(logdet="auto"), "schedule": "progressive", "parts": (10, 20)},
        "chain": {"method": cglb.CGLB(logdet=Chain(8, 4)), "schedule": "direct"},
        "sgpr": {"method": "sgpr", "schedule": "progressive", "parts": (10, 20)},
        "exact": {"method": "exact", "schedule": "progressive", "parts": (10, 20)},
        "iterative": {
            "method": pretrained,
            "schedule": "direct",
            "subset": 15,
        },
        "joint": {"method": "cglb", "schedule": "direct", "optimize_inducing": True},
    }

    def told(row: dict, model: object) -> None:
        print("step", row["step"], row["stage"], row["rows"], flush=True)

    found = cglb.train(
        cglb.GP(cglb.Matern32(np.ones(2))), X, y, num_inducing=8, max_steps=12, steps_per_round=4,
        checkpoint=checkpoint, checkpoint_seconds=0.0, callback=told, **ways[method],
    )  # fmt: skip
    leaves = jax.tree.leaves((found.gp, found.Z, found.v, found.bound, found.evaluations))
    rows = [sorted((k, repr(v)) for k, v in row.items() if k != "seconds") for row in found.history]
    digest = hashlib.sha256(repr(rows).encode())
    for leaf in leaves:
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def check(count: int, seed: int, tally: Tally) -> None:
    """So many kills, over all methods in turn."""
    rng = np.random.default_rng(seed)
    share = -(-count // len(METHODS))
    killed = 0
    for method in METHODS:
        expected = _whole(method)
        with tempfile.TemporaryDirectory() as folder:
            left = min(share, count - killed)
            while left > 0:  # a fit may end before its share of kills: then another one is killed
                path = Path(folder) / f"checkpoint-{left}"
                left = _kill_often(method, path, left, rng, tally)
                found = _whole(method, path)
                if found != expected:
                    raise Violation(f"VIOLATION: {method}, seed {seed}: another result after kills.")
                tally.note(method, "fits that ended with the same bits")
        killed += min(share, count - killed)


def _kill_often(method: str, path: Path, left: int, rng: np.random.Generator, tally: Tally) -> int:
    """Start and kill until a fit ends by itself or no kills are left; how many are."""
    while left > 0:
        process = _start(method, path)
        assert process.stdout is not None
        steps, stage = int(rng.integers(MOST_STEPS)), "before the first step"
        for line in process.stdout:
            if not line.startswith("step"):
                break
            stage = "stage " + line.split()[2]
            if steps == 0:
                break
            steps -= 1
        else:
            process.wait()
            return left
        time.sleep(rng.uniform(0.0, LONGEST))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        if process.wait() != -signal.SIGKILL or "result" in line + rest:
            return left
        tally.note(method, f"killed in {stage}")
        left -= 1
    return left


def _start(method: str, path: Path | None) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, method, *([] if path is None else [str(path)])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def _whole(method: str, path: Path | None = None) -> str:
    """The result of a fit that is left alone."""
    out, _ = _start(method, path).communicate()
    last = out.strip().splitlines()[-1] if out.strip() else ""
    if not last.startswith("result"):
        raise Violation(f"VIOLATION: {method} did not end: {last!r}")
    return last.split()[1]


if __name__ == "__main__":
    print("result", fit(sys.argv[1], Path(sys.argv[2]) if sys.argv[2:] else None), flush=True)
