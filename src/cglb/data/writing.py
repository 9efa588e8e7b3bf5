"""Columns of numbers into a file, chunk by chunk. A file gets its name only when it is whole."""

from __future__ import annotations

import csv
import gzip
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from cglb.core.errors import TableError

__all__ = ["Sink", "TableWriter"]

STREAM = "-"


@runtime_checkable
class Sink(Protocol):
    """Where columns of numbers go."""

    def write(self, columns: Mapping[str, np.ndarray]) -> None: ...

    def close(self) -> None: ...


class CSVSink:
    """Lines of a CSV file; a missing number is an empty field."""

    def __init__(self, file: Any, packed: bool):
        self._file: Any = gzip.GzipFile(fileobj=file, mode="wb", mtime=0) if packed else file
        self._packed, self._named = packed, False

    def write(self, columns: Mapping[str, np.ndarray]) -> None:
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        if not self._named:
            out.writerow(columns)
            self._named = True
        shown = [["" if v != v else repr(v) for v in values.tolist()] for values in columns.values()]
        out.writerows(zip(*shown, strict=True))
        self._file.write(text.getvalue().encode())

    def close(self) -> None:
        self._file.close() if self._packed else self._file.flush()


class ParquetSink:
    """A Parquet file, one group of rows per chunk."""

    def __init__(self, file: Any):
        self._file, self._writer = file, None

    def write(self, columns: Mapping[str, np.ndarray]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        table = pa.table({name: pa.array(v, from_pandas=True) for name, v in columns.items()})
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class TableWriter:
    """Writes columns of numbers, chunk by chunk; the file appears when the block ends without an error.

    The ending of the name decides: .parquet, .csv.gz, and CSV for all else. "-" is standard output.
    """

    def __init__(self, path: str):
        self.path = path
        self._part: Path | None = None

    def __enter__(self) -> Sink:
        try:
            self._sink = self._open()
        except OSError as error:
            raise TableError(f"{self.path} cannot be written: {error.strerror or error}.") from None
        return self._sink

    def _open(self) -> Sink:
        if self.path == STREAM:
            return CSVSink(sys.stdout.buffer, packed=False)
        target = Path(self.path)
        self._part = target.with_name(f".{target.name}.{os.getpid()}.part")
        self._file = self._part.open("wb")
        if target.suffix == ".parquet":
            return ParquetSink(self._file)
        return CSVSink(self._file, packed=target.suffix == ".gz")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._part is None:
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
