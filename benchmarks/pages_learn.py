"""The tables of docs/measured/learn.md, from results/learn-*.json."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from pages_format import NONE, machine, number, percent, small, table

Runs = Mapping[str, Any]
LARGE = ("bike", "elevators", "pol", "kin40k", "protein")
KINDS = ("large", "kernels", "before", "small", "toys")
LARGE_COLUMNS = [
    *("data", "split", "fit, s", "predict, s", "NLPD", "RMSE", "coverage", "bound", "log p(y)", "noise"),
    "ended",
]
SMALL_COLUMNS = [
    *("data", "split", "difference in log p(y)", "s", "s, scikit-learn", "NLPD", "NLPD, scikit-learn"),
    *("coverage", "coverage, scikit-learn"),
]
TOY_COLUMNS = [
    *("data", "rows", "seeds", "smallest difference", "smallest noise", "scikit-learn's", "coverage"),
    "scikit-learn's",
]
OURS, THEIRS = "cglb", "scikit-learn"


def learn(results: Mapping[str, Any]) -> dict[str, str]:
    found = {
        kind: results.get(f"learn-{kind}", {})
        for kind in ("large", "kernels", "before", "small", "toys")
    }
    runs = {kind: one.get("runs", {}) for kind, one in found.items()}
    before = list(runs["before"].values())
    return {
        "large": table(
            LARGE_COLUMNS,
            _large(runs["large"]),
        ),
        "large_exact": table(
            ["data", "split", "NLPD", "NLPD, exact", "coverage", "coverage, exact"],
            _large_exact(runs["large"]),
        ),
        "commit": before[0]["commit"] if before else NONE,
        "limit": number(before[0]["limit"], 0) if before else NONE,
        "figures": "\n\n".join(
            f"![NLPD and RMSE against seconds on {name}](../../benchmarks/results/learn-{name}.png)"
            for name in LARGE
            if _scored(runs, name)
        ),
        "curves": table(
            ["data", "default", "fit, s", "NLPD", "RMSE"],
            (row for name in LARGE if _scored(runs, name) for row in _ends(runs, name)),
            left=2,
        ),
        "small": table(
            SMALL_COLUMNS,
            _pairs(runs["small"]),
        ),
        "small_summary": table(
            ["data", "smallest difference", "time, × scikit-learn", "coverage", "scikit-learn's"],
            _medians(runs["small"]),
        ),
        "kernels": table(
            ["data", "split", "chosen", "gain in log p(y)", "NLPD", "NLPD, Matérn-3/2", "s"],
            _kernels(runs["small"]),
        ),
        "large_kernels": table(
            ["data", "split", "chosen", "gain of the bound", "NLPD", "NLPD, Matérn-3/2", "fit, s"],
            _large_kernels(runs),
        ),
        "toys": table(
            TOY_COLUMNS,
            _toys(runs["toys"]),
        ),
        **{f"{kind}_machine": machine(one) if one else "" for kind, one in found.items()},
    }


def _large(runs: Runs) -> Iterable[list[str]]:
    for key, one in sorted(runs.items(), key=lambda pair: _place(pair[0])):
        name, split, _ = key.split()
        seconds = [number(one["fit_seconds"], 0), number(one["predict_seconds"], 0)]
        scores = [number(one["nlpd"], 3), number(one["rmse"], 4), percent(one["coverage"])]
        values = [number(one["bound"], 0), number(one.get("exact_lml"), 0), small(one["noise"])]
        yield [name, split, *seconds, *scores, *values, one["stop"]]


def _large_exact(runs: Runs) -> Iterable[list[str]]:
    for key, one in sorted(runs.items(), key=lambda pair: _place(pair[0])):
        if "exact" in one:
            pair = (one, one["exact"])
            cells = [number(side["nlpd"], 3) for side in pair]
            yield [*key.split()[:2], *cells, *(percent(side["coverage"]) for side in pair)]


def _place(key: str) -> tuple[int, str]:
    return LARGE.index(key.split()[0]), key


def _scored(runs: Mapping[str, Runs], name: str) -> bool:
    """Whether both curves of a set have their scores."""
    sides = (runs["before"].get(f"{name} 0"), runs["large"].get(f"{name} 0 {OURS}"))
    return all(one is not None and "nlpd" in one["curve"][-1] for one in sides)


def _ends(runs: Mapping[str, Runs], name: str) -> Iterable[list[str]]:
    sides = {"earlier": runs["before"][f"{name} 0"], "today's": runs["large"][f"{name} 0 {OURS}"]}
    for label, one in sides.items():
        last = one["curve"][-1]
        yield [
            name,
            label,
            number(one["fit_seconds"], 0),
            number(last["nlpd"], 3),
            number(last["rmse"], 4),
        ]


def _both(runs: Runs) -> dict[tuple[str, int], tuple[Any, Any]]:
    """Our fit and scikit-learn's by set and split, where there are both."""
    found = {}
    for key, one in runs.items():
        name, split, side = key.split()
        other = runs.get(f"{name} {split} {THEIRS}")
        if side == OURS and other is not None:
            found[name, int(split)] = one, other
    return dict(sorted(found.items()))


def _pairs(runs: Runs) -> Iterable[list[str]]:
    for (name, split), (one, other) in _both(runs).items():
        cells = [number(one["exact_lml"] - other["exact_lml"], 2)]
        cells += [number(side["fit_seconds"]) for side in (one, other)]
        cells += [number(side["nlpd"], 3) for side in (one, other)]
        yield [name, str(split), *cells, *(percent(side["coverage"]) for side in (one, other))]


def _kernels(runs: Runs) -> Iterable[list[str]]:
    for (name, split), (one, _) in _both(runs).items():
        auto = runs.get(f"{name} {split} auto")
        if auto is not None:
            cells = [number(auto["exact_lml"] - one["exact_lml"]), number(auto["nlpd"], 3)]
            cells += [number(one["nlpd"], 3), number(auto["fit_seconds"])]
            yield [name, str(split), f"`{auto['kernel']}`", *cells]


def _large_kernels(runs: Mapping[str, Runs]) -> Iterable[list[str]]:
    for key, auto in sorted(runs["kernels"].items(), key=lambda pair: _place(pair[0])):
        name, split, _ = key.split()
        one = runs["large"][f"{name} {split} {OURS}"]
        cells = [number(auto["bound"] - one["bound"], 0), number(auto["nlpd"], 3)]
        cells += [number(one["nlpd"], 3), number(auto["fit_seconds"], 0)]
        yield [name, split, f"`{auto['kernel']}`", *cells]


def _by_name(runs: Runs) -> dict[str, list[tuple[Any, Any]]]:
    grouped: dict[str, list[tuple[Any, Any]]] = {}
    for (name, _), pair in _both(runs).items():
        grouped.setdefault(name, []).append(pair)
    return grouped


def _least(pairs: list[tuple[Any, Any]]) -> str:
    return number(min(one["exact_lml"] - other["exact_lml"] for one, other in pairs), 2)


def _coverage(pairs: list[tuple[Any, Any]]) -> list[str]:
    return [percent(statistics.median(pair[side]["coverage"] for pair in pairs)) for side in (0, 1)]


def _medians(runs: Runs) -> Iterable[list[str]]:
    for name, pairs in _by_name(runs).items():
        ratio = statistics.median(one["fit_seconds"] / other["fit_seconds"] for one, other in pairs)
        yield [name, _least(pairs), number(ratio, 2), *_coverage(pairs)]


def _toys(runs: Runs) -> Iterable[list[str]]:
    for name, pairs in _by_name(runs).items():
        function, rows = name.split("-")
        noises = [small(min(pair[side]["noise"] for pair in pairs)) for side in (0, 1)]
        yield [function, rows, str(len(pairs)), _least(pairs), *noises, *_coverage(pairs)]
