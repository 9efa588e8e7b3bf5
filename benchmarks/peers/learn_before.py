"""The default fit of an earlier commit, in a process of its own with that commit's code on the path.

Reads X and y, standardised, and writes seconds, bound and hyperparameters of every step.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np

import cglb


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    data = np.load(options.input)
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    model = cglb.GPRegressor().fit(data["X"], data["y"])
    seconds = time.perf_counter() - started
    rows = [{key: row[key] for key in ("seconds", "bound", "parameters")} for row in model.history_]
    options.output.write_text(json.dumps({"fit_seconds": seconds, "rows": rows}))


if __name__ == "__main__":
    main()
