"""The page: numbers and pictures of a model in one HTML file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from cglb.data.table import Kind
from cglb.diagnostics import Dependence, Held, climbs, dependence, held_out, leave_one_out, shown_kernel
from cglb.io.tensorfile import replace_file
from cglb.page import charts
from cglb.page.svg import number
from cglb.regressor import GPRegressor

__all__ = ["write_report"]

MOST_DEPENDENCES = 3


def write_report(
    model: GPRegressor,
    path: str | os.PathLike[str],
    X: Any = None,
    y: Any = None,
    *,
    tolerance: float | None = None,
    model_file: str = "model.safetensors",
) -> dict[str, Any]:
    """Write the report of a fitted model.

    Args:
        model: a fitted model.
        path: the HTML file.
        X: inputs of rows that training did not see; by default training rows are left out in turn.
        y: their targets.
        tolerance: nats to which the evidence is refined.
        model_file: the name of the model's file, for the page's last section.

    Returns:
        The numbers at the top of the page.
    """
    held = leave_one_out(model) if X is None else held_out(model, X, y)
    found = model.evidence(tolerance)
    scores = held.scores()
    facts: dict[str, Any] = {
        "rows": model.fit_report_.rows,
        "inputs": model.n_features_in_,
        **scores,
        "lower": found.lower,
        "upper": found.upper,
        "how": held.how,
    }
    name = model.target_name_ or "y"
    strongest = sorted(model.relevance_.items(), key=lambda pair: -pair[1])
    moved = [dependence(model, input) for input, value in strongest[:MOST_DEPENDENCES] if value > 0.0]
    body = [
        _top(name, model, facts),
        _predictions(held, name),
        _inputs(model, moved, name),
        _training(model, found),
        _how_to(model, model_file),
    ]
    style = resources.files("cglb.page").joinpath("style.css").read_text(encoding="utf-8")
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(name)}: a cglb report</title><style>{style}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )
    replace_file(Path(path), text.encode())
    return facts


def _top(name: str, model: GPRegressor, facts: dict[str, Any]) -> str:
    share = "–" if facts["r2"] is None else f"{100 * facts['r2']:.1f} %"
    cards = {
        "of the variance explained": share,
        f"typical error (RMSE) of {name}": number(facts["rmse"]),
        "of targets in their 95 % interval": f"{100 * facts['coverage']:.1f} %",
        "nats per row (NLPD, lower is better)": number(facts["nlpd"]),
        "rows": f"{facts['rows']:,}",
        "inputs": f"{facts['inputs']}",
    }
    shown = "".join(
        f'<div class="card"><b>{v}</b><span>{escape(k)}</span></div>' for k, v in cards.items()
    )
    return (
        f"<h1>Predicting {escape(name)}</h1>"
        f'<p class="soft">A Gaussian process fitted by cglb, method {escape(str(model.method_.name))}. '
        f"Scores: {escape(facts['how'])}.</p>"
        f'<div class="cards">{shown}</div>'
    )


def _figure(title: str, svg: str, words: str) -> str:
    return f"<figure><h3>{escape(title)}</h3>{svg}<figcaption>{escape(words)}</figcaption></figure>"


def _section(title: str, words: str, figures: Sequence[str], more: str = "") -> str:
    return f'<h2>{escape(title)}</h2><p>{words}</p><div class="figures">{"".join(figures)}</div>{more}'


def _predictions(held: Held, name: str) -> str:
    return _section(
        "How good are the predictions?",
        f"{escape(held.how[0].upper() + held.how[1:])}.",
        [
            _figure("Predicted and observed", charts.observed(held, name),
                    "Points on the dashed line are perfect; grey lines are 95 % intervals."),
            _figure("Calibration", charts.calibrated(held),
                    "Below the dashed line: intervals too narrow. Above: wider than needed."),
            _figure("Residuals", charts.residuals(held, name),
                    "No pattern should be left: a trend here is something the model has missed."),
            _figure("Surprise", charts.surprise(held),
                    "Residuals in standard deviations; the line is what a calibrated model has."),
        ],
    )  # fmt: skip


def _inputs(model: GPRegressor, moved: list[Dependence], name: str) -> str:
    figures = [
        _figure("Relevance", charts.relevance(model.relevance_),
                "Inverse lengthscale on standardised inputs, the largest 1.")
    ]  # fmt: skip
    for found in moved:
        words = "Average over rows, with 95 % intervals."
        if found.kind in (Kind.NUMBER, Kind.DATE):
            words = "Average over rows, with a 95 % band; between the 2 % and the 98 % quantile."
        figures.append(_figure(f"Dependence on {found.name}", charts.depends(found, name), words))
    notes = () if model.encoding_ is None else model.encoding_.notes
    more = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return _section(
        "Which inputs matter?",
        "The strongest inputs, and how the prediction moves with each of them.",
        figures,
        f'<ul class="soft">{more}</ul>' if more else "",
    )


def _training(model: GPRegressor, found: Any) -> str:
    report = model.fit_report_
    figures = []
    if model.history_:
        stages = climbs(model)
        words = "In standardised units of the target; first steps far below are cut off."
        if len(stages) > 1:
            sizes = sorted({stage.rows for stage in stages})
            shown = _joined([f"{size:,}" for size in sizes])
            words = f"One line per stage: searches first, then the best of them; {shown} rows. {words}"
        what = report.maximised
        figures.append(_figure(f"Training: {what}", charts.training(stages, what), words))
        second = charts.solves(model.history_)
        if second is not None:
            figures.append(_figure("Conjugate gradients", second, "Steps at each accepted step."))
    words = "The log marginal likelihood lies in this interval: proven, up to rounding."
    if report.spread is not None:
        words += " The dashed line is an estimate, not a bound."
    figures.append(_figure("Evidence", charts.evidence(found, report.bound, report.maximised), words))
    lines = "<br>".join(escape(line) for line in str(report).splitlines())
    noise = float(model.gp_.noise) ** 0.5 * model.y_scale_
    kernel, units = shown_kernel(model)
    rows = {
        f"kernel, {units}": f"<code>{escape(kernel)}</code>",
        "noise, standard deviation": number(noise),
        "inducing points": "none" if model._Z is None else str(len(model._Z)),
    }
    table = "".join(f"<tr><th>{key}</th><td>{value}</td></tr>" for key, value in rows.items())
    return _section(
        "How was it fitted?", lines, figures, f'<div class="wide"><table>{table}</table></div>'
    )


def _joined(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _how_to(model: GPRegressor, model_file: str) -> str:
    shown = escape(Path(model_file).name)
    return (
        "<h2>How to use the model</h2><p>On the command line, for a table with the same columns:</p>"
        f"<pre>cglb predict {shown} new.csv --output predictions.csv\n"
        f"cglb evidence {shown} --tolerance 1</pre>"
        "<p>In Python:</p>"
        f'<pre>from cglb import GPRegressor\n\nmodel = GPRegressor.load("{shown}")\n'
        "mean, std = model.predict(table, return_std=True)</pre>"
    )
