"""The cases of `tests/test_cases.py` with the code of now and of an earlier commit: which ones hold.

    python benchmarks/cases.py --commit 538c948

The earlier commit may need what is no longer a dependency (optax): put it on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from before import checked_out
from common import RESULTS, machine, write
from sides import HERE

CASES = HERE.parent / "tests" / "test_cases.py"


def run(tree: Path, folder: Path) -> dict[str, str]:
    """The outcome of each case with the package of `tree`: "holds", or the first line of its failure."""
    report = folder / "cases.xml"
    path = os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", str(CASES), "--noconftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--junitxml={report}"], env={**os.environ, "PYTHONPATH": path}, capture_output=True
    )
    if done.returncode not in (0, 1):  # neither all passed nor some failed
        raise SystemExit(done.stdout.decode()[-2000:])
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        failed = case.find("failure")
        message = "" if failed is None else (failed.get("message") or "fails")
        outcomes[case.get("name", "")] = message.splitlines()[0][:200] if message else "holds"
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="538c948", help="the earlier side")
    parser.add_argument("--json", type=Path, default=RESULTS / "cases.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, checked_out(options.commit) as before:
        sides = {"before": run(before, Path(folder)), "now": run(HERE.parent, Path(folder))}
    for name, now in sides["now"].items():
        print(f"{name}\n  before: {sides['before'].get(name)}\n  now: {now}")
    write(options.json, {"commit": options.commit, "results": sides, "machine": machine()})
    if any(outcome != "holds" for outcome in sides["now"].values()):
        raise SystemExit("Not every case holds now.")


if __name__ == "__main__":
    main()
