"""The page of several processes, for `pages.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pages_format import machine, number, table

__all__ = ["distributed"]

JOBS = {
    "product": "K̂v",
    "evaluation": "value and gradient, chain",
    "stored": "the same, K̂ stored where it fits",
    "large": "value and gradient, chain",
}


def distributed(results: Mapping[str, Any]) -> dict[str, str]:
    """What the template of the page asks for."""
    found = results["distributed"]
    jobs = {**found, **results["distributed-large"]}
    labels = {job: label for job, label in JOBS.items() if job in jobs}
    return {
        "runs": table(
            ["what", "n", "processes", "seconds", "CPU seconds per process", "GB per process"],
            [
                [label, number(jobs[job]["n"], 0), *_cells(run)]
                for job, label in labels.items()
                for run in jobs[job]["runs"]
            ],
        ),
        "speedups": table(
            ["what", "times as fast", "by CPU seconds"],
            [
                [label, number(jobs[job]["speedup"], 2), number(jobs[job].get("cpu_speedup"), 2)]
                for job, label in labels.items()
                if "speedup" in jobs[job]
            ],
        ),
        "m": str(found["evaluation"]["m"]),
        "load": number(found.get("load")),
        "machine": machine(found),
    }


def _cells(run: Any) -> list[str]:
    return [
        str(run["processes"]),
        number(run["best"], 2),
        number(run.get("cpu"), 2),
        number(run["memory_gb"], 2),
    ]
