"""`cglb report` and `cglb demo`."""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path
from typing import Annotated

import typer

from cglb.cli import common
from cglb.cli.common import Talk, load_model, watched

__all__ = ["demo", "report"]


def report(
    model: common.Model,
    output: Annotated[str, typer.Option("--output", "-o", help="The HTML file.")] = "report.html",
    data: Annotated[
        str | None, typer.Option("--data", help="A table that training did not see, with the target.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Its target; by default that of fit.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Refine the evidence to this many nats.")
    ] = None,
    no_header: common.NoHeader = False,
    quiet: common.Quiet = False,
    json: common.Json = False,
) -> None:
    """Write a report with pictures as one HTML file: it needs no network and follows light or dark."""
    from cglb.page import write_report

    talk = Talk(quiet, json)
    estimator = load_model(model)
    X = y = None
    if data is not None:
        name = target or estimator.target_name_
        if name is None:
            raise ValueError("--target: the model does not know the name of its target. Give it.")
        X, y = common.read_training(data, name, None, None, not no_header)
    with watched(talk):
        facts = write_report(estimator, output, X, y, tolerance=tolerance, model_file=model)
    talk.result({"report": output, **facts}, f"Written: {output}")


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder for the files.")] = Path(
        "demo"
    ),
    rows: Annotated[int, typer.Option(help="Rows, two thirds of them for training.")] = 1500,
    max_steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 25,
    quiet: common.Quiet = False,
    json: common.Json = False,
) -> None:
    """Simulate a robot arm, fit it, predict, and write a report: a first look without any data."""
    from cglb.cli.fitting import fit
    from cglb.cli.predicting import predict
    from cglb.data import datasets
    from cglb.data.writing import TableWriter

    talk = Talk(quiet, json)
    output.mkdir(parents=True, exist_ok=True)
    arm = datasets.robot_arm(rows, seed=0)
    split = arm.split()
    parts = {"train": (split.X_train, split.y_train), "test": (split.X_test, split.y_test)}
    for name, (X, y) in parts.items():
        columns = dict(zip(arm.feature_names, X.T, strict=True)) | {arm.target_name: y}
        with TableWriter(str(output / f"arm-{name}.csv")) as sink:
            sink.write(columns)
    train, test = (str(output / f"arm-{name}.csv") for name in parts)
    model, out, page = (str(output / name) for name in ("arm.model", "predictions.csv", "report.html"))
    started = time.perf_counter()
    target = arm.target_name

    # with --json the results of the three commands go unseen: the document names their files
    with contextlib.redirect_stdout(io.StringIO()) if json else contextlib.nullcontext():
        print(
            f"$ cglb fit {train} --target {target} --model {model} --kernel rbf --max-steps {max_steps}"
        )
        fit(data=train, target=target, model=model, kernel="rbf", max_steps=max_steps, quiet=quiet)
        print(f"\n$ cglb predict {model} {test} --output {out}", flush=True)
        predict(model, test, out, quiet=quiet)
        print(f"\n$ cglb report {model} --data {test} --output {page}", flush=True)
        report(model, page, test, quiet=quiet)
    seconds = time.perf_counter() - started
    files = {"train": train, "test": test, "model": model, "predictions": out, "report": page}
    if json:
        talk.result({**files, "seconds": seconds}, "")
    talk.note(f"All of it took {seconds:.0f} s. Open {page} in a browser.")
