"""`cglb fit` and `cglb compare`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cglb.cli import common, sharing
from cglb.cli.common import Talk, watched
from cglb.cli.options import Training, expanded

__all__ = ["compare", "fit"]


@expanded
def fit(
    *,
    data: common.Data,
    target: common.Target,
    model: Annotated[str, typer.Option("--model", "-o", help="The file to write.")],
    kernel: Annotated[
        str | None,
        typer.Option(help="A kernel by name, such as matern32; auto compares several."),
    ] = None,
    training: Training,
    resume: Annotated[bool, typer.Option("--resume", help="Continue where Ctrl-C stopped.")] = False,
    distributed: sharing.Distributed = False,
    coordinator: sharing.Coordinator = None,
    processes: sharing.Processes = None,
    process_id: sharing.ProcessId = None,
    quiet: common.Quiet = False,
    json: common.Json = False,
) -> None:
    """Fit a Gaussian process to a table and write the model to a file.

    Ctrl-C leaves a checkpoint next to the model; the same command with --resume continues from there.
    With --distributed several processes share the work; the first one writes the model.
    """
    with sharing.joined(distributed, coordinator, processes, process_id) as part:
        talk = Talk(quiet or part[0] > 0, json)
        _fit(data, target, model, kernel, training, resume, talk, part)


def _fit(
    data: str,
    target: str,
    model: str,
    kernel: str | None,
    training: Training,
    resume: bool,
    talk: Talk,
    part: tuple[int, int],
) -> None:
    """Fit as one of several processes; the first one writes and speaks."""
    from cglb.diagnostics import shown_kernel

    first = part[0] == 0
    folder, checkpoint = Path(model).resolve().parent, Path(f"{model}.checkpoint")
    if not folder.is_dir():
        raise ValueError(f"--model {model}: there is no folder {folder}.")
    if Path(model).is_dir():
        raise ValueError(f"--model {model} is a folder: name a file.")
    if first and resume and not checkpoint.exists():
        raise ValueError(f"--resume: there is no checkpoint {checkpoint}. Leave --resume out.")
    X, y = training.read(data, target, part)
    if first and not resume:
        checkpoint.unlink(missing_ok=True)
    settings = {**training.settings(), "checkpoint": checkpoint, "progress": talk.bars}
    estimator = _regressor(settings if kernel is None else {**settings, "kernel": kernel})
    try:
        with watched(talk):
            estimator.fit(X, y)
    except KeyboardInterrupt:
        talk.note(_how_to_continue(checkpoint, data))
        raise typer.Exit(1) from None
    if not first:
        return
    estimator.target_name_ = target
    estimator.set_params(checkpoint=None, progress=False)
    estimator.save(model)
    checkpoint.unlink(missing_ok=True)
    for note in estimator.encoding_.notes:
        talk.note(f"Note: {note}")
    report, (kernel, units) = estimator.fit_report_, shown_kernel(estimator)
    document = {
        "model": model,
        "target": target,
        "columns": list(estimator.feature_names_in_),
        "rows": report.rows,
        "notes": list(estimator.encoding_.notes),
        "relevance": estimator.relevance_,
        "kernel": kernel,
        "kernel_units": units,
        "fit": asdict(report),
    }
    talk.result(document, f"{report}\nWritten: {model}")


def _how_to_continue(checkpoint: Path, data: str) -> str:
    """What to say when a fit was interrupted."""
    if not checkpoint.exists():
        return "Stopped before the first step: there is nothing to resume."
    arguments = sys.argv[1:]
    if arguments[:1] != ["fit"]:  # called from Python
        return f"Stopped. {checkpoint} has the steps so far: --resume continues."
    again = shlex.join(["cglb", *(word for word in arguments if word != "--resume"), "--resume"])
    piped = " (with the same table on standard input)" if data == "-" else ""
    return f"Stopped. {checkpoint} has the steps so far. To continue{piped}:\n  {again}"


@expanded
def compare(
    *,
    data: common.Data,
    target: common.Target,
    kernels: Annotated[str, typer.Option(help="Kernels by name, with commas.")] = "matern32,rbf",
    training: Training,
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
    names = list(dict.fromkeys(name.strip() for name in kernels.split(",") if name.strip()))
    if len(names) < 2:
        raise ValueError(f"--kernels must name at least two kernels, found {kernels!r}.")
    for name in names:
        find(name)  # before any work
    X, y = training.read(data, target)
    settings = {**training.settings(), "progress": talk.bars}
    if settings.pop("drop_missing") and not training.impute:  # here, since `rank` needs the same rows
        keep = ~np.any([column.missing for column in X.columns] + [np.isnan(y)], axis=0)
        X, y = X.rows(keep), y[keep]
    models = {}
    for name in names:
        talk.note(f"Fitting {name} …")
        with watched(talk):
            models[name] = _regressor({**settings, "kernel": name}).fit(X, y)
    talk.note("Comparing …")
    found = rank(models, X, y, max_seconds=training.max_seconds)
    ranking = [
        {"kernel": m.name, "lower": m.evidence.lower, "upper": m.evidence.upper, "beats": list(m.beats)}
        for m in found.ranking
    ]
    document = {"ranking": ranking, "best": found.best, "message": found.message}
    talk.result(document, f"log p(y) in nats, best first:\n{found}")


def _regressor(settings: dict[str, Any]) -> Any:
    """An estimator with these settings."""
    from cglb.core.cache import use_compilation_cache
    from cglb.regressor import GPRegressor

    use_compilation_cache()
    return GPRegressor(**settings)
