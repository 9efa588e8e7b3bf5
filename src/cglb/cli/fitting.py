"""`cglb fit` and `cglb compare`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cglb.cli import common
from cglb.cli.common import Talk, read_training, watched

__all__ = ["compare", "fit"]

Kernel = Annotated[str | None, typer.Option(help="A kernel by name, such as matern32 or rbf.")]
Method = Annotated[str | None, typer.Option(help="What is maximised, such as cglb, sgpr or exact.")]
Inducing = Annotated[int | None, typer.Option("--num-inducing", "-m", help="Inducing points.")]
Steps = Annotated[int | None, typer.Option("--max-steps", help="Optimiser steps.")]
Seconds = Annotated[float | None, typer.Option("--max-seconds", help="Seconds of training.")]
Seed = Annotated[int | None, typer.Option(help="Decides what is random. The default is 0.")]


def fit(
    data: common.Data,
    target: common.Target,
    model: Annotated[str, typer.Option("--model", "-o", help="The file to write.")],
    columns: common.Columns = None,
    exclude: common.Exclude = None,
    kernel: Kernel = None,
    method: Method = None,
    num_inducing: Inducing = None,
    max_steps: Steps = None,
    max_seconds: Seconds = None,
    seed: Seed = None,
    drop_missing: common.DropMissing = False,
    impute: common.Impute = False,
    no_header: common.NoHeader = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where Ctrl-C stopped.")] = False,
    quiet: common.Quiet = False,
    json: common.Json = False,
) -> None:
    """Fit a Gaussian process to a table and write the model to a file.

    Ctrl-C leaves a checkpoint next to the model; the same command with --resume goes on from there.
    """
    talk = Talk(quiet, json)
    settings = given(
        kernel=kernel, method=method, num_inducing=num_inducing, max_steps=max_steps,
        max_seconds=max_seconds, random_state=seed,
    )  # fmt: skip
    X, y = read_training(data, target, columns, exclude, not no_header)
    checkpoint = Path(f"{model}.checkpoint")
    if not Path(model).resolve().parent.is_dir():
        raise ValueError(f"--model {model}: there is no folder {Path(model).resolve().parent}.")
    if resume and not checkpoint.exists():
        raise ValueError(f"--resume: there is no checkpoint {checkpoint}. Leave --resume out.")
    if not resume:
        checkpoint.unlink(missing_ok=True)
    settings |= {"drop_missing": drop_missing, "impute": impute, "progress": talk.bars}
    estimator = regressor({**settings, "checkpoint": checkpoint})
    try:
        with watched(talk):
            estimator.fit(X, y)
    except KeyboardInterrupt:
        if checkpoint.exists():
            talk.note(
                f"Stopped. {checkpoint} has the steps so far: the same command with --resume goes on."
            )
        else:
            talk.note("Stopped before the first step: there is nothing to resume.")
        raise typer.Exit(1) from None
    estimator.target_name_ = target
    estimator.set_params(checkpoint=None, progress=False)
    estimator.save(model)
    checkpoint.unlink(missing_ok=True)
    for note in estimator.encoding_.notes:
        talk.note(f"Note: {note}")
    report = estimator.fit_report_
    document = {
        "model": model,
        "target": target,
        "columns": list(estimator.feature_names_in_),
        "rows": report.rows,
        "notes": list(estimator.encoding_.notes),
        "relevance": estimator.relevance_,
        "kernel": repr(estimator.gp_.kernel),
        "fit": asdict(report),
    }
    talk.result(document, f"{report}\nWritten: {model}")


def compare(
    data: common.Data,
    target: common.Target,
    kernels: Annotated[str, typer.Option(help="Kernels by name, with commas.")] = "matern32,rbf",
    columns: common.Columns = None,
    exclude: common.Exclude = None,
    method: Method = None,
    num_inducing: Inducing = None,
    max_steps: Steps = None,
    max_seconds: Seconds = None,
    seed: Seed = None,
    drop_missing: common.DropMissing = False,
    impute: common.Impute = False,
    no_header: common.NoHeader = False,
    quiet: common.Quiet = False,
    json: common.Json = False,
) -> None:
    """Fit one model per kernel and rank them by their evidence, with proof where there is one.

    --max-seconds is for each fit, and once more for the proofs.
    """
    import numpy as np

    from cglb.bounds.comparison import compare as rank
    from cglb.kernels.base import find

    talk = Talk(quiet, json)
    names = [name.strip() for name in kernels.split(",") if name.strip()]
    if len(set(names)) < 2:
        raise ValueError(f"--kernels must name at least two kernels, found {kernels!r}.")
    for name in names:
        find(name)  # before any work
    X, y = read_training(data, target, columns, exclude, not no_header)
    if drop_missing and not impute:
        keep = ~np.any([column.missing for column in X.columns] + [np.isnan(y)], axis=0)
        X, y = X.rows(keep), y[keep]
    settings = given(
        method=method, num_inducing=num_inducing, max_steps=max_steps, max_seconds=max_seconds,
        random_state=seed,
    )  # fmt: skip
    settings |= {"impute": impute, "progress": talk.bars}
    models = {}
    for name in names:
        talk.note(f"Fitting {name} …")
        with watched(talk):
            models[name] = regressor({**settings, "kernel": name}).fit(X, y)
    talk.note("Comparing …")
    found = rank(models, X, y, max_seconds=max_seconds)
    ranking = [
        {"kernel": m.name, "lower": m.evidence.lower, "upper": m.evidence.upper, "beats": list(m.beats)}
        for m in found.ranking
    ]
    document = {"ranking": ranking, "best": found.best, "message": found.message}
    talk.result(document, f"log p(y) in nats, best first:\n{found}")


def given(**options: Any) -> dict[str, Any]:
    """The options that the user gave; the others keep the defaults of `GPRegressor`."""
    return {name: value for name, value in options.items() if value is not None}


def regressor(settings: dict[str, Any]) -> Any:
    """An estimator with these settings."""
    from cglb.core.cache import use_compilation_cache
    from cglb.regressor import GPRegressor

    use_compilation_cache()
    unknown = settings.keys() - GPRegressor().get_params(deep=False).keys()
    if unknown:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(unknown))
        raise ValueError(f"{options}: GPRegressor has no such setting in this release.")
    return GPRegressor(**settings)
