"""The page on how tight bounds are, and how right slopes are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from pages_format import bullets, commands, machine, number, percent, small, table

Values = dict[str, str]

UPPER = {
    "trace": "`trace` (SGPR)",
    "amgm": "`amgm` (the paper)",
    "waterfill": "`waterfill` (its appendix)",
    "hadamard": "`hadamard`",
    "chain": "`chain`",
    "chain, half": "`chain`, half of the points in A₁",
    "vecchia": "Vecchia (`inner=0`)",
    "auto": "`auto`",
}
LOWER = ("nystrom", "spectral", "moments")
PRECONDITIONERS = ("nystrom", "chain", "auto")


def _tried(found: Any) -> Values:
    """Lower bounds on log|K̂| on small dense problems, those of the package among them."""
    sets, settings = found["results"], found["settings"]
    names = next(iter(sets.values()))
    return {
        "tried_command": commands(
            f"python benchmarks/lower.py --rows {settings['rows']} --inducing {settings['inducing']}"
        ),
        "tried_rows": number(settings["rows"], 0),
        "tried_points": str(settings["inducing"]),
        "tried": table(
            ["bound", *sets], [[name, *(number(one[name]) for one in sets.values())] for name in names]
        ),
    }


def tightness(results: Mapping[str, Any]) -> Values:
    sets = {name.split("-")[1]: one for name, one in results.items() if name.startswith("tightness-")}
    gaps = {data: {_bound_name(gap): gap for gap in one["gaps"]} for data, one in sets.items()}
    settings = next(iter(sets.values()))["settings"]
    steps = [(data, row) for data, one in sets.items() for row in one["cg_steps"]]
    options = f"--inducing {settings['inducing']} --repeats {settings['repeats']}"
    lower = [[f"`{name}`", *(number(gaps[data][name]["logdet_gap"]) for data in sets)] for name in LOWER]
    return {
        "commands": commands(
            *(f"python benchmarks/tightness.py --data {data} {options}" for data in sets)
        ),
        "steps": str(settings["steps"]),
        "upper": table(
            ["bound", *(head for data in sets for head in (f"{data}, nats", "× gap", "× time"))],
            [
                [label, *(cell for data in sets for cell in _gap(gaps[data][name]))]
                for name, label in UPPER.items()
            ],
        ),
        **_tried(results["lower"]),
        "chosen": bullets(f"{data}: `{gaps[data]['auto']['bound'].split(': ')[1]}`" for data in sets),
        "lower": table(
            ["bound", *sets],
            [*lower, ["width", *(number(_width(found.values())) for found in gaps.values())]],
        ),
        "worst": number(max(row["auto_to_better"] for _, row in steps), 2),
        "cg_steps": table(
            ["data", "noise", "Nyström", "chain", "automatic"],
            [
                [data, small(row["noise"]), *(str(row[name]) for name in PRECONDITIONERS)]
                for data, row in steps
            ],
        ),
        "variances": table(
            ["data", "in bracket", "widest", "local below", "local, ratio", "SGPR below", "SGPR, ratio"],
            [[data, *_variances(one["variances"])] for data, one in sets.items()],
        ),
        "machines": bullets(f"{data}: {machine(one)}" for data, one in sets.items()),
        **_slopes(results["slopes"]),
    }


def _slopes(found: Any) -> Values:
    """Errors of slopes by the tolerance of CG."""
    settings, errors = found["settings"], itemgetter("loss", "fixed", "solution")
    return {
        "slopes_command": commands("python benchmarks/slopes.py"),
        "slopes_rows": number(settings["rows"], 0),
        "slopes_points": str(settings["inducing"]),
        "slopes": table(
            ["data", "tolerance", "steps", "cost of v", "error at fixed v", "error at the solution"],
            [
                [data, f"{row['tolerance']:g}", str(row["steps"]), *map(small, errors(row))]
                for data, rows in found["results"].items()
                for row in rows
            ],
        ),
        "slopes_machine": machine(found),
    }


def _bound_name(gap: Any) -> str:
    return gap["bound"].split(":")[0].split(" (")[0]


def _gap(gap: Any) -> list[str]:
    return [number(gap["logdet_gap"]), number(gap["gap_to_amgm"], 2), number(gap["time_to_amgm"], 2)]


def _width(gaps: Iterable[Any]) -> float:
    values = [gap["logdet_gap"] for gap in gaps]
    return min(value for value in values if value >= 0) - max(value for value in values if value < 0)


def _variances(one: Any) -> list[str]:
    local = [str(one["local_below"]), number(one["local_median_ratio"], 2)]
    sgpr = [str(one["sgpr_below"]), number(one["sgpr_median_ratio"], 2)]
    return [f"{one['contained']} of {one['rows']}", percent(one["widest"]), *local, *sgpr]
