"""Value and gradient, and K v, now and at an earlier commit: same data, θ, Z and v, in turn, in one run.

    python benchmarks/before.py --commit 538c948 --rows 1000,10000

The earlier commit is checked out into a temporary folder and measured with this environment. Each side
runs in a process of its own; sides alternate, so that a busy spell of the machine hits both. What is not
run keeps its stored result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import RESULTS, machine, write
from objective import problem
from sides import HERE, run_side

TASKS = ("sgpr", "cglb", "chain", "product")
# what today's side is told, so that both have the same bound: 538c948 has these blocks by default
SAME = {"chain": ("--blocks", "64", "64")}


def measure(tree: Path, name: str, task: str, inputs: Path, repeats: int) -> dict:
    """One process of one side."""
    extra = SAME.get(task, ()) if tree == HERE.parent else ()
    script = tree / "benchmarks" / "peers" / "run_cglb.py"
    # the earlier side may need what is no longer a dependency (optax): put it on PYTHONPATH
    path = os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"PYTHONPATH": path}
    found = run_side(name, None, str(script), task, inputs, repeats, extra, variables)
    assert found is not None
    return found


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The tree of an earlier commit, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        tree, now = Path(folder) / "before", HERE.parent
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree, commit], check=True, cwd=now)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], check=True, cwd=now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="538c948", help="the earlier side")
    parser.add_argument("--data", default="pol")
    parser.add_argument("--rows", default="1000,10000")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each side")
    parser.add_argument("--repeats", type=int, default=15, help="calls in each process")
    parser.add_argument("--json", type=Path, default=RESULTS / "before.json")
    options = parser.parse_args()
    now = HERE.parent
    stored = json.loads(options.json.read_text()) if options.json.exists() else {}
    results: dict[str, dict] = stored.get("results", {})
    with tempfile.TemporaryDirectory() as folder, checked_out(options.commit) as before:
        for rows in map(int, options.rows.split(",")):
            inputs = Path(folder) / f"{rows}.npz"
            problem(options.data, rows, min(options.inducing, rows // 2), inputs)
            for task in options.tasks.split(","):
                sides: dict[str, list[dict]] = {"before": [], "now": []}
                for _ in range(options.rounds):
                    for side, tree in (("before", before), ("now", now)):
                        found = measure(tree, f"{side} {task} {rows}", task, inputs, options.repeats)
                        sides[side].append(found)
                median = {
                    side: statistics.median(one["median"] for one in found)
                    for side, found in sides.items()
                }
                first = {
                    side: statistics.median(one["first"] for one in found)
                    for side, found in sides.items()
                }
                ratio = median["now"] / median["before"]
                results[f"{task}, n = {rows}"] = {
                    "seconds": median,
                    "first_call": first,
                    "now_to_before": round(ratio, 3),
                    "rounds": options.rounds,
                }
                print(f"{task} at {rows} rows: now takes {ratio:.2f} of the time before", flush=True)
    settings = {name: value for name, value in vars(options).items() if name != "json"}
    write(options.json, {"settings": settings, "results": results, "machine": machine()})


if __name__ == "__main__":
    main()
