"""`cglb evidence` and `cglb info`: what a model is worth, and what it is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cglb.cli import common
from cglb.cli.common import Talk, load_model

__all__ = ["evidence", "info"]


def evidence(
    model: common.Model,
    tolerance: Annotated[float | None, typer.Option(help="Refine to at most this many nats.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="By Cholesky: n² memory.")] = False,
    max_seconds: Annotated[float | None, typer.Option(help="Time for refining.")] = None,
    quiet: common.Quiet = False,
    json: common.Json = False,
) -> None:
    """An interval that contains the log marginal likelihood. Exit code 1 if it stays too wide."""
    talk = Talk(quiet, json)
    found = load_model(model).evidence(tolerance, exact=exact, max_seconds=max_seconds)
    document = {
        "lower": found.lower,
        "upper": found.upper,
        "width": found.width,
        "message": found.message,
    }
    talk.result(document, f"{found} ({found.width:.3g} nats wide)")
    if tolerance is not None and found.width > tolerance:
        talk.note(f"Wider than --tolerance {tolerance:g}: {found.message}")
        raise typer.Exit(1)


def info(model: common.Model, quiet: common.Quiet = False, json: common.Json = False) -> None:
    """What a model file holds: columns, kernel, noise, relevance, how training went."""
    from cglb.diagnostics import shown_kernel

    estimator = load_model(model)
    kernel, units = shown_kernel(estimator)
    encoding = estimator.encoding_
    names = [str(name) for name in getattr(estimator, "feature_names_in_", estimator.relevance_)]
    kinds = {} if encoding is None else {code.name: str(code.kind) for code in encoding.codes}
    noise = float(estimator.gp_.noise) ** 0.5 * estimator.y_scale_
    document = {
        "model": model,
        "rows": estimator.fit_report_.rows,
        "target": estimator.target_name_,
        "columns": {name: kinds.get(name, "number") for name in names},
        "method": estimator.method_.name,
        "kernel": kernel,
        "kernel_units": units,
        "noise_std": noise,
        "relevance": estimator.relevance_,
        "notes": [] if encoding is None else list(encoding.notes),
        "fit": asdict(estimator.fit_report_),
    }
    width = max(map(len, names))
    relevance = sorted(estimator.relevance_.items(), key=lambda pair: -pair[1])
    lines = [
        f"{document['rows']} rows, {len(names)} columns, target {estimator.target_name_ or 'not named'}",
        f"method {document['method']}, kernel {kernel} ({units})",
        f"noise: standard deviation {noise:.4g} in the units of the target",
        "relevance, the largest 1:",
        *(f"  {name:{width}s}  {value:.3f}  {kinds.get(name, 'number')}" for name, value in relevance),
        *document["notes"],
        str(estimator.fit_report_),
    ]
    Talk(quiet, json).result(document, "\n".join(lines))
