"""How long the test suite takes from a cold cache of compiled code, and its slowest tests.

    python benchmarks/suite.py                    # of this checkout
    python benchmarks/suite.py --tree ../clone    # of another one, such as a fresh clone

Runs `make durations` and reads what it prints. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from common import RESULTS, machine, write

HERE = Path(__file__).parent
SLOW = re.compile(r"^([\d.]+)s (call|setup|teardown)\s+(\S+)$", flags=re.MULTILINE)
FILE = re.compile(r"^\s+([\d.]+)  (tests/\S+)$", flags=re.MULTILINE)
END = re.compile(r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s", flags=re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, default=HERE.parent)
    parser.add_argument("--json", type=Path, default=RESULTS / "suite.json")
    options = parser.parse_args()
    subprocess.run(["make", "setup"], cwd=options.tree, check=True)
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        done = subprocess.run(
            ["make", "durations"],
            cwd=options.tree,
            env={**os.environ, "JAX_COMPILATION_CACHE_DIR": cache},
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - started
    print(done.stdout[-4000:], done.stderr[-1000:])
    end = END.search(done.stdout)
    results = {
        "seconds": seconds,
        "outcome": end.group(1) if end else "no summary",
        "files": {name: float(took) for took, name in FILE.findall(done.stdout)},
        "slowest": [
            {"seconds": float(took), "part": part, "test": test}
            for took, part, test in SLOW.findall(done.stdout)
        ],
    }
    write(options.json, {"results": results, "machine": machine()})
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
