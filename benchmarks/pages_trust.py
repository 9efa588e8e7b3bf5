"""The pages of the soak, of likely intervals and of the test suite, for `pages.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pages_format import NONE, bullets, machine, number, small, table

__all__ = ["confidence", "soak", "suite"]

GROUPS = {
    "sane": "sane: lengthscales around 1, noise from 1e-4 to 1",
    "floor": "floor: noise at 1e-6, variances to 1e4, close pairs and duplicates",
    "extreme": "extreme: noise from 1e-9, variances to 1e8, outliers, offsets and scales to 1e8",
}


def soak(results: Mapping[str, Any]) -> dict[str, str]:
    found = results["soak"]
    bounds, files, kills = (found[part]["counts"] for part in ("bounds", "files", "kills"))
    kinds = sorted(
        {kind for one in bounds.values() for kind in one if ":" not in kind or "log|" in kind}
    )
    kinds = [kind for kind in kinds if any(_counted(one, kind) for one in bounds.values())]
    named = [kind for kind in kinds if "NaN" in kind or "no factor" in kind or "beyond" in kind]
    checks = [kind for kind in kinds if kind not in named]
    certain = ("certificate", "exact value", "variance")
    small_sets = [kind for kind in checks if any(word in kind for word in certain)]
    big_sets = [kind for kind in checks if kind not in small_sets]
    total = {
        name: sum(_counted(one, kind) for one in bounds.values() for kind in chosen)
        for name, chosen in (("bounds", big_sets), ("certificates", small_sets))
    }
    outcomes = sorted({kind for one in files.values() for kind in one})
    killed = {
        method: sum(_counted(one, kind) for kind in one if kind.startswith("killed"))
        for method, one in kills.items()
    }
    return {
        "problems": number(found["bounds"]["next"], 0),
        "minutes": number(found["bounds"]["seconds"] / 60.0, 0),
        "bound_checks": number(total["bounds"], 0),
        "certificates": number(total["certificates"], 0),
        "groups": bullets(GROUPS.values()),
        "counts": table(
            ["check", *GROUPS],
            [[f"`{kind}`", *(number(_counted(bounds[g], kind), 0) for g in GROUPS)] for kind in kinds],
        ).replace("log|K̂|", "log\\|K̂\\|"),
        "margins": table(
            ["margin", *(f"{g}: {head}" for g in GROUPS for head in ("mean", "largest", "needed"))],
            [
                [f"`{kind}`", *(cell for g in GROUPS for cell in _margin(bounds[g].get(kind)))]
                for kind in checks
                if any(bounds[g].get(kind, {}).get("largest") for g in GROUPS)
            ],
        ).replace("log|K̂|", "log\\|K̂\\|"),
        "files": number(sum(one["count"] for kinds in files.values() for one in kinds.values()), 0),
        "outcomes": table(
            ["file", *outcomes],
            [
                [kind, *(number(_counted(one, outcome), 0) for outcome in outcomes)]
                for kind, one in files.items()
            ],
        ),
        "kills": str(sum(killed.values())),
        "killed": table(
            ["fit", "kills", "stages in which", "fits that ended with the same bits"],
            [
                [
                    method,
                    str(killed[method]),
                    str(sum(kind.startswith("killed") for kind in one)),
                    str(_counted(one, "fits that ended with the same bits")),
                ]
                for method, one in kills.items()
            ],
        ),
        "commit": results["cases"]["commit"],
        "cases": _cases(results["cases"]["results"]),
        "machine": machine(found),
    }


def _cases(sides: Mapping[str, Mapping[str, str]]) -> str:
    """Which cases hold, by their names as sentences."""
    outcomes = {side: [one == "holds" for one in found.values()] for side, found in sides.items()}
    words = {True: "holds", False: "fails"}
    names = [name.removeprefix("test_").replace("_", " ") for name in sides["now"]]
    rows = zip(names, outcomes["before"], outcomes["now"], strict=True)
    return table(["case", "before", "now"], [[name, words[old], words[new]] for name, old, new in rows])


def _counted(one: Any, kind: str) -> int:
    return one.get(kind, {}).get("count", 0)


def _margin(one: Any) -> list[str]:
    if not one or not one["useful"]:
        return [NONE] * 3
    return [small(one["total"] / one["useful"]), small(one["largest"]), number(one["needed"], 0)]


def confidence(results: Mapping[str, Any]) -> dict[str, str]:
    found = results["confidence"]
    sets, settings = found["results"], found["settings"]
    return {
        "level": f"{settings['confidence']:.0%}",
        "repetitions": str(settings["repetitions"]),
        "rows": number(next(iter(sets.values()))["few"]["rows"], 0),
        "many": number(next(iter(sets.values()))["many"]["rows"], 0),
        "coverage": table(
            ["", "contain log p(y)", "certain width", "likely width (median)", "largest", "probes"],
            [
                [
                    data,
                    f"{one['few']['contain']} of {one['few']['repetitions']}",
                    number(one["few"]["certain_width"]),
                    number(one["few"]["median_width"], 2),
                    number(one["few"]["largest_width"], 2),
                    number(one["few"]["median_probes"], 0),
                ]
                for data, one in sets.items()
            ],
        ),
        "scale": table(
            [
                "", "noise", "certain width", "likely width", "probes", "contains log p(y)",
                "s, one evaluation", "s, certain", "s, likely",
            ],
            [
                [
                    data,
                    small(one["many"]["noise"]),
                    number(one["many"]["certain_width"]),
                    number(one["many"]["likely_width"], 2),
                    str(one["many"]["probes"]),
                    "yes" if one["many"]["contains"] else "no",
                    *(
                        number(one["many"][f"{name}_seconds"])
                        for name in ("evaluation", "certain", "likely")
                    ),
                ]
                for data, one in sets.items()
            ],
        ),
        "wide": _too_wide(sets),
        "machine": machine(found),
    }  # fmt: skip


def _too_wide(sets: Mapping[str, Any]) -> str:
    """What a reader should know where the likely interval is wider than asked; nothing otherwise."""
    names = [name for name, one in sets.items() if one["many"]["likely_width"] > one["many"]["wanted"]]
    if not names:
        return "It is on every set."
    return (
        f"It is not on {', '.join(names)}, with as many probes as are tried. Where the certain width\n"
        "is infinite, the noise is so small compared with the kernel's variance that float64 proves\n"
        "nothing."
    )


def suite(results: Mapping[str, Any]) -> dict[str, str]:
    found = results["suite"]
    one = found["results"]
    slowest = [[f"`{row['test']}`", row["part"], number(row["seconds"])] for row in one["slowest"][:10]]
    return {
        "minutes": number(one["seconds"] / 60.0),
        "slowest": table(["test", "part", "s"], slowest, left=2),
        "machine": machine(found),
    }
