"""Columns into a file, chunk by chunk. A file gets its name only when it is whole."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from cglb.core.errors import TableError

__all__ = ["Columns", "Sink", "TableWriter"]

STREAM = "-"

Columns = Mapping[str, np.ndarray | Sequence[str | None]]


@runtime_checkable
class Sink(Protocol):
    """Where columns go."""

    def write(self, columns: Columns) -> None: ...

    def close(self) -> None: ...


class CSVSink:
    """Lines of a CSV file; a missing entry is an empty field."""

    def __init__(self, file: Any, packed: bool):
        self._file: Any = gzip.GzipFile(fileobj=file, mode="wb", mtime=0) if packed else file
        self._packed, self._named = packed, False

    def write(self, columns: Columns) -> None:
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        if not self._named:
            out.writerow(columns)
            self._named = True
        out.writerows(zip(*map(_entries, columns.values()), strict=True))  # None is an empty field
        self._file.write(text.getvalue().encode())

    def close(self) -> None:
        self._file.close() if self._packed else self._file.flush()


class JSONSink:
    """One JSON array with one object per row; a missing entry is null."""

    def __init__(self, file: Any):
        self._file, self._before = file, "["

    def write(self, columns: Columns) -> None:
        lines = []
        for row in zip(*map(_entries, columns.values()), strict=True):
            entries = dict(zip(columns, row, strict=True))
            lines.append(f"{self._before}\n{json.dumps(entries, ensure_ascii=False)}")
            self._before = ","
        self._file.write("".join(lines).encode())

    def close(self) -> None:
        self._file.write(b"[]\n" if self._before == "[" else b"\n]\n")
        self._file.flush()


class ParquetSink:
    """A Parquet file, one group of rows per chunk."""

    def __init__(self, file: Any):
        self._file, self._writer = file, None

    def write(self, columns: Columns) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        table = pa.table({name: _arrow(values) for name, values in columns.items()})
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class TableWriter:
    """Writes columns, chunk by chunk; the file appears when the block ends without an error.

    The ending of the name decides: .parquet, .csv.gz, and CSV for all else. "-" is standard output.

    Args:
        path: the file.
        as_json: whether standard output is JSON, not CSV.
    """

    def __init__(self, path: str, as_json: bool = False):
        self.path, self._as_json = path, as_json
        self._part: Path | None = None

    def __enter__(self) -> Sink:
        try:
            self._sink = self._open()
        except OSError as error:
            raise TableError(f"{self.path} cannot be written: {error.strerror or error}.") from None
        return self._sink

    def _open(self) -> Sink:
        if self.path == STREAM:
            out = sys.stdout.buffer
            return JSONSink(out) if self._as_json else CSVSink(out, packed=False)
        target = Path(self.path)
        self._part = target.with_name(f".{target.name}.{os.getpid()}.part")
        self._file = self._part.open("wb")
        if target.suffix == ".parquet":
            return ParquetSink(self._file)
        return CSVSink(self._file, packed=target.suffix == ".gz")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._part is None:
            if kind is None:
                self._sink.close()
            return
        try:
            if kind is None:
                self._sink.close()
                self._file.flush()
                os.fsync(self._file.fileno())
                self._part.replace(self.path)
        finally:
            self._file.close()
            self._part.unlink(missing_ok=True)


def _entries(values: Any) -> list[Any]:
    """The entries of a column, with None for a missing number."""
    if isinstance(values, np.ndarray):
        return [None if value != value else value for value in values.tolist()]
    return list(values)


def _arrow(values: Any) -> Any:
    import pyarrow as pa

    if isinstance(values, np.ndarray):
        return pa.array(values, from_pandas=True)
    return pa.array(values, pa.string())
