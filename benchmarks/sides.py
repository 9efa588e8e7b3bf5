"""One side of a comparison: a script of `peers/`, run in its own environment and process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def python_of(environment: str | None) -> str | None:
    """The interpreter of a peer's environment (None: this one), or None if that is not built."""
    if environment is None:
        return sys.executable
    found = HERE / ".venvs" / environment / "bin" / "python"
    return str(found) if found.exists() else None


def run_side(
    name: str,
    environment: str | None,
    script: str,
    task: str,
    inputs: Path,
    repeats: int,
    extra: Sequence[str] = (),
    variables: dict[str, str] | None = None,
) -> dict[str, Any] | None:
    """Run one side and return its times, its memory above start-up, its last value and its versions.

    Args:
        name: of the side, for messages.
        environment: of the peer; None for this one.
        script: in `peers/`.
        task: what the script measures.
        inputs: the file with the problem.
        repeats: timed calls after the first.
        extra: further arguments of the script.
        variables: further environment variables.

    Returns:
        The results, or None (with a message) if the environment is not built.
    """
    python = python_of(environment)
    if python is None:
        print(f"{name}: no environment, run `make peers` first", flush=True)
        return None
    output = inputs.with_suffix(".out.json")
    command = [python, str(HERE / "peers" / script), "--task", task, "--input", str(inputs)]
    command += ["--output", str(output), "--repeats", str(repeats), *extra]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **(variables or {})}
    )
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    answer = json.loads(output.read_text())
    found = {
        "median": statistics.median(answer["times"]),
        "best": min(answer["times"]),
        "first": answer["first_time"],
        "memory_gb": (answer["rss_peak"] - answer["rss_baseline"]) / 2**30,
        "value": answer["values"][-1],
        "versions": answer["versions"],
    }
    print(
        f"{name:28s} {found['median']:8.3f} s (first {found['first']:.1f} s), "
        f"{found['memory_gb']:6.2f} GB, value {found['value']:.3f}",
        flush=True,
    )
    return found
