"""Random problems, files and kills against what must hold; stops at the first failure.

    make soak                                        # an hour
    python benchmarks/soak                           # all parts, as committed
    python benchmarks/soak bounds --problems 100     # one part, and how much of it
    python benchmarks/soak --seconds 300             # no more than so long

Parts:

    bounds   every bound, certificate and variance against quadruple precision (`problems.py`)
    files    mutated and hostile models, checkpoints and stores (`files.py`)
    kills    fits killed at random moments (`kills.py`)

The counts are in the JSON file after every 50 problems. `--resume` goes on where it ends. A failure is
printed with the command that makes it again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from common import RESULTS, machine, write
from tally import Tally

from cglb.core.cache import use_compilation_cache

PARTS = ("kills", "files", "bounds")
EVERY = 50


def soak_bounds(options: argparse.Namespace, done: dict[str, Any], save: Any) -> None:
    import problems

    tally = Tally.from_json(done.get("counts", {}))
    seed, left = done.get("next", options.first), options.problems
    started, before = time.perf_counter(), done.get("seconds", 0.0)
    while left > 0 and time.perf_counter() < options.deadline:
        problems.check(seed, tally)
        seed, left = seed + 1, left - 1
        if seed % EVERY == 0 or left == 0:
            seconds = before + time.perf_counter() - started
            save("bounds", {"next": seed, "seconds": seconds, "counts": tally.to_json()})
            print(f"{seed} problems, {seconds:.0f} s", flush=True)


def soak_files(options: argparse.Namespace, done: dict[str, Any], save: Any) -> None:
    import files

    tally, started = Tally(), time.perf_counter()
    files.check(options.files, options.first, tally)
    save("files", _whole(tally, started))


def soak_kills(options: argparse.Namespace, done: dict[str, Any], save: Any) -> None:
    import kills

    tally, started = Tally(), time.perf_counter()
    kills.check(options.kills, options.first, tally)
    save("kills", _whole(tally, started))


def _whole(tally: Tally, started: float) -> dict[str, Any]:
    return {"seconds": time.perf_counter() - started, "counts": tally.to_json()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default"
    )
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of the bounds at most")
    parser.add_argument("--resume", action="store_true", help="add to the counts in the JSON file")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    options.deadline = time.perf_counter() + options.seconds
    use_compilation_cache()
    path = options.json or RESULTS / "soak.json"
    stored = json.loads(path.read_text()) if path.exists() else {}

    def save(part: str, content: dict[str, Any]) -> None:
        stored[part] = content
        kept = json.loads(path.read_text()) if path.exists() else {}  # parts may run side by side
        write(path, kept | {part: content, "machine": host})

    host = machine()
    for part in options.parts or PARTS:
        run = {"bounds": soak_bounds, "files": soak_files, "kills": soak_kills}[part]
        run(options, stored.get(part, {}) if options.resume else {}, save)
        checks = {
            kind: sum(one.get(kind, {}).get("count", 0) for one in stored[part]["counts"].values())
            for one in stored[part]["counts"].values()
            for kind in one
        }
        print(f"{part}: {sum(checks.values())} in {stored[part]['seconds']:.0f} s, no violation")
        for kind, count in sorted(checks.items()):
            print(f"  {kind:44s} {count:9d}")


if __name__ == "__main__":
    main()
