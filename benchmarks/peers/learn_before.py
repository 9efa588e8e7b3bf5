"""The default training of an earlier commit, in a process with that commit's code on the path.

Reads X and y, standardised, and writes seconds, bound and hyperparameters of every step. It calls
`train` as that commit's `GPRegressor()` does, since only `train` has a limit of seconds.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

import cglb


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--max-seconds", type=float, required=True)
    options = parser.parse_args()
    data = np.load(options.input)
    gp = cglb.GP(cglb.Matern32(np.ones(data["X"].shape[1])))
    started = time.perf_counter()
    fit = cglb.train(gp, data["X"], data["y"], num_inducing=512, max_seconds=options.max_seconds)
    seconds = time.perf_counter() - started
    rows = [{key: row[key] for key in ("seconds", "bound", "parameters")} for row in fit.history]
    options.output.write_text(json.dumps({"fit_seconds": seconds, "rows": rows}))


if __name__ == "__main__":
    main()
