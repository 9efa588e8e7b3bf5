"""Table 1 with the paper's values for comparison: medians over the splits in a store."""

from __future__ import annotations

import csv
import io
import itertools
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any

from cglb.experiments.kinds import Manner, Method
from cglb.experiments.runs import Run
from cglb.experiments.spec import PAPER_DATA, Spec
from cglb.optimisers.base import Ending

__all__ = [
    "FORMATS",
    "OrderRow",
    "Table",
    "TableRow",
    "label",
    "make",
    "markdown",
    "number",
    "reference",
    "row_key",
    "to_csv",
    "to_json",
    "to_markdown",
]

# column of the table, its name in metrics and reference, whether by Cholesky, decimals
COLUMNS = (
    ("LML", "lml", False, 1),
    ("LML, Cholesky", "lml", True, 1),
    ("NLPD", "nlpd", False, 3),
    ("NLPD, Cholesky", "nlpd", True, 3),
    ("RMSE", "rmse", False, 3),
    ("RMSE, Cholesky", "rmse", True, 3),
)
KINDS = ("exact", "iterative", "sgpr", "cglb", "chain")
# a finished run
Found = tuple[Spec, dict[str, Any]]
NONE = "–"


@dataclass(frozen=True)
class TableRow:
    """One method on one data set: medians over its splits, or None if a split lacks the value.

    Attributes:
        data: the name of the data set.
        method: the name of the method.
        variant: what differs from the default protocol.
        manner: how it was trained.
        splits: how many splits are finished.
        converged: how many of them ended by themselves, not at their budget.
        n: training rows.
        steps: the smallest and the largest number of steps of a split.
        minutes: the median training time, without metrics.
        values: of the method, by name.
        cholesky: the exact values at the learned hyperparameters, by name.
        quartiles: the first and the third quartile of `values`; none for fewer than three splits.
        below_exact: log p(y) that exact training reaches on the same split, less log p(y) at the learned
            hyperparameters.
        coverage: of 95 % intervals.
        paper: the same values in the paper, or None.
    """

    data: str
    method: str
    variant: str = ""
    manner: Manner | None = None
    splits: int = 0
    converged: int = 0
    n: int | None = None
    steps: tuple[int, int] | None = None
    minutes: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    cholesky: dict[str, float | None] = field(default_factory=dict)
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)
    below_exact: float | None = None
    coverage: float | None = None
    paper: dict[str, Any] | None = None


@dataclass(frozen=True)
class OrderRow:
    """The bounds of one run at its learned hyperparameters.

    Attributes:
        exact: the log marginal likelihood by Cholesky, or None.
        holds: whether sgpr ≤ cglb ≤ chain ≤ exact, up to rounding.
    """

    data: str
    split: int
    method: str
    variant: str
    sgpr: float
    cglb: float
    chain: float
    exact: float | None
    holds: bool


@dataclass(frozen=True)
class Table:
    """The results of all runs of a store.

    Attributes:
        rows: one per method and data set.
        order: one per run with inducing points.
        notes: what a reader should know, and the machines.
    """

    rows: list[TableRow]
    order: list[OrderRow]
    notes: list[str]


def reference() -> dict[str, Any]:
    """The paper's values, with where to find them in the paper."""
    return json.loads(files("cglb.experiments").joinpath("reference.json").read_text())


def make(runs: Iterable[Run]) -> Table:
    """Group finished runs by data set, method and variant; add the paper's rows for the same sets."""
    groups: dict[tuple[str, str, str], list[Found]] = {}
    for run in runs:
        if (metrics := run.metrics()) is not None:
            groups.setdefault(run.spec.group, []).append((run.spec, metrics))
    published = reference()["table"]["data"]
    best = {
        _split(spec): metrics["bound"]
        for group in groups.values()
        for spec, metrics in group
        if spec.method.kind == "exact"
    }
    rows = [
        _row(*key, group, published.get(key[0], {}).get("methods", {}), best)
        for key, group in groups.items()
    ]
    here = {(data, method) for data, method, *_ in groups}
    for data in {data for data, *_ in groups} & set(published):
        for method, values in published[data]["methods"].items():
            if (data, method) not in here:
                rows.append(TableRow(data, method, paper=values))
    found: list[Found] = [item for group in groups.values() for item in group]
    found.sort(key=lambda item: (row_key(*item[0].group), item[0].split))
    order = [_order(spec, metrics) for spec, metrics in found if metrics.get("order")]
    rows.sort(key=lambda row: (row_key(row.data, row.method, row.variant), row.steps or (0, 0)))
    return Table(rows, order, _notes(found))


def _split(spec: Spec) -> tuple[str, float, int]:
    """Which rows it was trained on."""
    return spec.data, spec.fraction, spec.split


def _row(
    data: str,
    method: str,
    variant: str,
    group: list[Found],
    published: dict[str, Any],
    best: Mapping[tuple[str, float, int], float],
) -> TableRow:
    found = [metrics for _, metrics in group]
    names = ("lml", "nlpd", "rmse")
    values = {name: [one["bound" if name == "lml" else name] for one in found] for name in names}
    exact = {name: [(one["cholesky"] or {}).get(name) for one in found] for name in names}
    below = [
        best[_split(spec)] - lml
        for (spec, _), lml in zip(group, exact["lml"], strict=True)
        if _split(spec) in best and lml is not None
    ]
    return TableRow(
        data,
        method,
        variant,
        group[0][0].manner,
        splits=len(found),
        converged=sum(not Ending(one["stop"]).may_go_on for one in found),
        n=found[0]["n"],
        steps=(min(one["steps"] for one in found), max(one["steps"] for one in found)),
        minutes=statistics.median(one["seconds"] for one in found) / 60.0,
        values={name: _median(values[name]) for name in names},
        cholesky={name: _median(exact[name]) for name in names},
        quartiles={name: _quartiles(values[name]) for name in names} if len(found) >= 3 else {},
        below_exact=statistics.median(below) if len(below) == len(found) else None,
        coverage=_median([one["coverage"] for one in found]),
        paper=published.get(method),
    )


def _quartiles(values: list[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _median(values: list[float | None]) -> float | None:
    """The median, or None if a value is missing: medians over different splits are not comparable."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if len(there) == len(values) else None


def _order(spec: Spec, metrics: dict[str, Any]) -> OrderRow:
    """The row of one run. Bounds that meet may be out of order by rounding, which is allowed."""
    found = metrics["order"]
    values = [found[name] for name in ("sgpr", "cglb", "chain", "exact") if found[name] is not None]
    rounding = 1e-9 * max(map(abs, values))
    holds = all(low <= high + rounding for low, high in itertools.pairwise(values))
    return OrderRow(spec.data, spec.split, spec.method.name, spec.variant, **found, holds=holds)


# the first word of the name of each method's final log-det bound
LAST_STAGE = {"sgpr": "trace", "cglb": "amgm", "chain": "chain"}


def _notes(found: list[Found]) -> list[str]:
    notes = []
    for spec, metrics in found:
        name = f"{spec.data}, split {spec.split}, {spec.method.name}"
        if not (metrics["logdet_bound"] or "").startswith(LAST_STAGE.get(spec.method.kind, "")):
            notes.append(
                f"{name}: ended ({metrics['stop']}) after {metrics['steps']} steps in the stage "
                f"{metrics['logdet_bound']}, before the stage with its own bound."
            )
        if "error" in (metrics["cholesky"] or {}):
            notes.append(f"{name}: no Cholesky values. {metrics['cholesky']['error']}")
    made = {_maker(metrics) for _, metrics in found}
    return [*notes, *(f"Made on {maker}." for maker in sorted(made))]


def _maker(metrics: dict[str, Any]) -> str:
    machine, versions = metrics["machine"], metrics["versions"]
    return (
        f"{machine['cores']} core(s) of {machine['processor']} with {machine['memory_gb']} GB, "
        f"cglb {versions['cglb']}, JAX {versions['jax']}, SciPy {versions['scipy']}"
    )


def row_key(data: str, method: str, variant: str = "") -> tuple[Any, ...]:
    """The sort key of groups: data sets and methods in the paper's order, the largest M first."""
    place = PAPER_DATA.index(data) if data in PAPER_DATA else len(PAPER_DATA)
    parsed = Method.parse(method)
    kind = KINDS.index(parsed.kind)
    return place, data, kind, -(parsed.num_inducing or 0), method, variant


# ---- formats ----


def to_markdown(table: Table) -> str:
    """The table, the order of the bounds, and notes."""
    if not table.rows:
        return "This store has no finished runs yet.\n"
    header = ["data", "method", *(column[0] for column in COLUMNS)]
    header += ["coverage (95 %)", "splits", "steps", "minutes"]
    lines = ["Medians over the splits; the paper's values in brackets.", ""]
    lines += markdown(header, [_cells(row) for row in table.rows], left=2)
    if table.order:
        bounds = ["sgpr", "cglb", "chain", "exact"]
        cells = [
            [row.data, label(row.method, row.variant), str(row.split)]
            + [number(getattr(row, name), 1) for name in bounds]
            + ["yes" if row.holds else "NO"]
            for row in table.order
        ]
        lines += ["", "The bounds at the learned hyperparameters of each run, same Z and v:", ""]
        lines += markdown(["data", "run", "split", *bounds, "in order"], cells, left=2)
    lines += ["", *table.notes] if table.notes else []
    return "\n".join(lines) + "\n"


def to_json(table: Table) -> str:
    """All results, with the source of the paper's values."""
    found = reference()
    source = f"{found['source']}; {found['table']['location']}"
    return json.dumps({"paper": source, **asdict(table)}, indent=1) + "\n"


def to_csv(table: Table) -> str:
    """One line per row; the paper's values have separate columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = [(name, exact) for _, name, exact, _ in COLUMNS]
    names = [f"{name}_cholesky" if exact else name for name, exact in keys]
    columns = ["data", "method", "variant", "n", *names, *(f"paper_{name}" for name in names)]
    writer.writerow([*columns, "coverage", "splits", "steps_min", "steps_max", "minutes"])
    for row in table.rows:
        values = [_value(row, *key) for key in keys] + [_published(row, *key) for key in keys]
        ends = [row.coverage, row.splits, *(row.steps or (None, None)), row.minutes]
        writer.writerow([row.data, row.method, row.variant, row.n, *values, *ends])
    return out.getvalue()


FORMATS = {"markdown": to_markdown, "json": to_json, "csv": to_csv}


def _value(row: TableRow, name: str, exact: bool) -> float | None:
    return (row.cholesky if exact else row.values).get(name)


def _published(row: TableRow, name: str, exact: bool) -> float | None:
    if row.paper is None:
        return None
    return (row.paper["cholesky"] or {}).get(name) if exact else row.paper[name]


def _cells(row: TableRow) -> list[str]:
    cells = [row.data, label(row.method, row.variant)]
    for _, name, exact, decimals in COLUMNS:
        ours, theirs = _value(row, name, exact), _published(row, name, exact)
        cells.append(
            number(ours, decimals) + ("" if theirs is None else f" ({number(theirs, decimals)})")
        )
    coverage = NONE if row.coverage is None else f"{100 * row.coverage:.1f} %"
    low, high = row.steps or (0, 0)
    steps = str(low) if low == high else f"{low} to {high}"
    minutes = number(row.minutes, 1)
    return [*cells, coverage, str(row.splits), steps if row.splits else NONE, minutes]


def label(method: str, variant: str) -> str:
    """The name of a row."""
    return f"{method} ({variant})" if variant else method


def number(value: float | None, decimals: int) -> str:
    """With so many decimals; a dash for None."""
    return NONE if value is None else f"{value:.{decimals}f}"


def markdown(header: list[str], rows: list[list[str]], left: int) -> list[str]:
    """The lines of a Markdown table whose first `left` columns are text."""
    rule = ["---" if number < left else "---:" for number in range(len(header))]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]
