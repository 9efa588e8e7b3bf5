"""The page on tables in files: predictions of long ones, odd and broken ones."""

from __future__ import annotations

from typing import Any

from pages_format import machine, number, table


def tables(results: dict[str, Any]) -> dict[str, str]:
    found, fuzz = results["predict"], results["fuzz"]
    rows = [
        [
            f"{run['rows']:,}",
            number(run["megabytes"]),
            number(run["seconds"]),
            number(run["rows_per_second"], 0),
            number(run["peak_gb"], 2),
        ]
        for run in found["runs"]
    ]
    outcomes = [[name.replace(":", ","), f"{count:,}"] for name, count in sorted(fuzz["counts"].items())]
    return {
        "columns": str(found["settings"]["columns"]),
        "train": f"{found['settings']['train']:,}",
        "predictions": table(
            ["rows", "file, MB", "seconds", "rows per second", "peak memory, GB"], rows, left=0
        ),
        "predict_machine": machine(found),
        "tables": str(fuzz["settings"]["tables"]),
        "tables_shown": f"{fuzz['settings']['tables']:,}",
        "fuzz": table(["outcome", "tables"], outcomes),
    }
