"""What the tests of the paper's experiments share: commands, and stores made by hand."""

import numpy as np
from typer.testing import CliRunner

from cglb import cli
from cglb.experiments.kinds import Method
from cglb.experiments.runs import Run
from cglb.experiments.spec import Budget, Spec

STEPS = 6
DATA = "diabetes"  # ships with scikit-learn: 295 rows for training
METHODS = "sgpr-16,chain-16,exact"
SGPR = Spec(DATA, 0, Method("sgpr", 16))
TIMES = ("seconds", "scoring_seconds", "peak_memory_gb")


def command(*arguments):
    """A call of the program, in this process."""
    return CliRunner().invoke(cli.app, ["paper", *map(str, arguments)], catch_exceptions=False)


def run_command(store, *more, methods=METHODS, steps=STEPS):
    settings = ("--data", DATA, "--methods", methods, "--split", 0, "--max-steps", steps)
    return command("run", *settings, "--evaluate-every", 3, "--store", store, *more)


def untimed(metrics):
    return {name: value for name, value in metrics.items() if name not in TIMES}


def handmade(
    root, one, steps=40, *, bound=-100.0, rmse=0.5, cholesky=True, order=None, budget=None, stage="amgm"
):
    """A run with a history that is easy to calculate with: 2 s per step, a bound that rises by 1."""
    run = Run(root, one)
    run.register(budget or Budget(steps))
    cg = one.method.kind in ("cglb", "chain", "iterative")
    for step in range(1, steps + 1):
        row = {"step": step, "rows": 1000, "seconds": 2.0 * step, "bound": bound - steps + step}
        row["cg_steps"] = round(400 / (step + 3)) if cg else None
        run.append("history", row)
        if step % 5 == 0:
            error = rmse + 0.5 * np.exp(-step / 10) + 0.02 * one.split
            exact = row["bound"] + 20 if cholesky else None
            scores = {"rmse": error, "nlpd": np.log(error), "coverage": 0.95, "exact_lml": exact}
            run.append("scores", {**row, **scores})
    exact = {"lml": bound + 20, "nlpd": rmse - 1.1, "rmse": rmse - 0.1, "coverage": 0.95}
    run.finish(
        {
            "n": 1000,
            "steps": steps,
            "stop": "step limit",
            "seconds": 2.0 * steps,
            "bound": bound,
            "logdet_bound": stage,
            "rmse": rmse,
            "nlpd": rmse - 1.0,
            "coverage": 0.95,
            "cholesky": exact if cholesky else None,
            "order": order,
            "machine": {"cores": 2, "processor": "a processor", "memory_gb": 8.0},
            "versions": {"cglb": "1", "jax": "2", "scipy": "3"},
        }
    )
    return run
