"""What the peer scripts share: the command line, the clock, the memory and the answer.

Only numpy and the standard library, as it is imported in each peer's own environment.
"""

import argparse
import json
import platform
import resource
import sys
import time
from pathlib import Path

import numpy as np


def parse(description, tasks, add_options=None):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--task", required=True, choices=tasks)
    parser.add_argument("--input", required=True, type=Path, help="npz, see README.md")
    parser.add_argument("--output", required=True, type=Path, help="JSON")
    parser.add_argument("--repeats", type=int, default=3)
    if add_options is not None:
        add_options(parser)
    return parser.parse_args()


def load(path, dtype=np.float64):
    """The problem as a dict: arrays in dtype, zero-dimensional ones as floats."""
    with np.load(path) as file:
        return {key: np.asarray(a, dtype) if a.ndim else float(a) for key, a in file.items()}


def peak_rss():
    """The most memory this process ever held, in bytes.

    Not ru_maxrss where /proc can say it: Linux hands the maximum of the process that started this
    one down to it, so a small peer below a big benchmark would report the benchmark's memory.
    """
    found = _proc_status("VmHWM")
    if found is not None:
        return found
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def current_rss():
    """The memory this process holds now, in bytes (its peak so far where that is not known)."""
    found = _proc_status("VmRSS")
    return peak_rss() if found is None else found


def _proc_status(field):
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    for line in status.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def measure(function, repeats):
    """(results, times, first): the first call, which compiles or fills caches, is timed apart."""
    start = time.perf_counter()
    function()
    first = time.perf_counter() - start
    results, times = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        results.append(function())
        times.append(time.perf_counter() - start)
    return results, times, first


def write(args, *, baseline, times, first, versions, **extra):
    answer = {
        "task": args.task,
        "times": times,
        "first_time": first,
        "rss_baseline": baseline,
        "rss_peak": peak_rss(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, **versions},
        **extra,
    }
    args.output.write_text(json.dumps(answer, indent=1, default=lambda a: a.tolist()) + "\n")


class Clock:
    """Seconds that count: training without the scoring in between."""

    def __init__(self):
        self.seconds = 0.0
        self._since = None

    def start(self):
        self._since = time.perf_counter()

    def stop(self):
        self.seconds += time.perf_counter() - self._since


def scores(y, mean, variance):
    """Root mean squared error and mean negative log predictive density."""
    error = y - mean
    nlpd = 0.5 * np.mean(np.log(2.0 * np.pi * variance) + error**2 / variance)
    return {"rmse": float(np.sqrt(np.mean(error**2))), "nlpd": float(nlpd)}
