"""Files of the store: JSON documents and rows of JSON, whole or reported as damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cglb.core.errors import StoreError
from cglb.io import tensorfile

__all__ = ["read_json", "read_rows", "write_json", "write_rows"]

NUMBERS = ("step", "seconds", "bound", "rows")  # in a row of the history, if it has them
REMEDY = "Restore it, or delete the folder of this run to start it again."


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write atomically: a reader sees the old content or the new, never a mixture."""
    tensorfile.replace_file(path, (json.dumps(document, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The document, or None if there is no such file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return tensorfile.parse_object(content, path, REMEDY)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write one line per row, atomically."""
    tensorfile.replace_file(path, "".join(json.dumps(row) + "\n" for row in rows).encode())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_rows(path: Path, last_bytes: int | None = None) -> list[dict[str, Any]]:
    """The complete rows: `last_bytes` may cut the first, a kill the last."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = 0 if last_bytes is None else max(size - last_bytes, 0)
            file.seek(start)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    lines = lines[1 if start else 0 : -1]  # what follows the last line break is empty or half a row
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not all(_is_number(row.get(name, 0)) for name in NUMBERS):
            place = f"line {number}" if not start else f"line {number} of the last {last_bytes} bytes"
            raise StoreError(f"{path} is damaged: {place} is not a row of JSON. {REMEDY}")
        rows.append(row)
    return rows
