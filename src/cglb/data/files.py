"""Tables in files: CSV (plain or gzip'd) and Parquet, whole or in chunks, and "-" for standard input.

The first bytes of a file say what it is, not its name.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cglb.core.errors import TableError
from cglb.data.table import Column, Kind, Table

__all__ = ["CHUNK_ROWS", "Reader", "open_table", "read_table"]

CHUNK_ROWS = 32_768
DELIMITERS = ",;\t|"
STREAM = "-"

Texts = Mapping[str, list[str | None]]


class Reader:
    """A table in a file, read in chunks from the beginning to the end, once.

    Attributes:
        names: of its columns.
        place: the file, for messages.
        share: how much of the file has been read so far, from 0 to 1; None if unknown.
    """

    names: list[str]
    place: str

    @property
    def share(self) -> float | None:
        raise NotImplementedError

    def chunks(
        self, kinds: Mapping[str, Kind | None], kept: Sequence[str] = ()
    ) -> Iterator[tuple[Table, Texts]]:
        """Tables of up to `CHUNK_ROWS` rows, and columns as the file has them.

        Args:
            kinds: the columns of the tables, and what each must hold; None for what a chunk looks like.
            kept: columns to give as texts, by name, in addition.

        Raises:
            TableError: with the file, and the line or the column that cannot be read.
        """
        raise NotImplementedError

    def table(self, names: list[str], part: tuple[int, int] = (0, 1)) -> Table:
        """All rows as one table, or part i of k equal parts of them.

        Args:
            names: of the columns.
            part: (i, k). Of a Parquet file only its rows are read.
        """
        raise NotImplementedError


class CSVReader(Reader):
    """A CSV file: a line of names, then one line per row.

    Args:
        file: the bytes, from the beginning.
        place: the file, for messages.
        size: bytes in the file, if known.
        header: whether the first line has the names; otherwise they are x1, x2, ….
    """

    def __init__(self, file: Any, place: str, size: int | None, header: bool = True):
        self.place = place
        self._size, self._raw = size, file
        packed = _peek(file, 2) == b"\x1f\x8b"
        plain: Any = gzip.GzipFile(fileobj=file) if packed else file
        # held, since it would close the file when it is collected
        text = self._text = io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")
        with self._troubles():
            first = text.readline()
        if not first.strip():
            raise TableError(f"{place} is empty: a CSV file starts with a line of column names.")
        delimiter = max(DELIMITERS, key=first.count)
        self._lines = csv.reader(_chain(first, text), delimiter=delimiter, strict=True)
        self._rest: list[list[str]] = []
        with self._troubles():
            fields = next(self._lines)
        if header:
            self.names = [name.strip() or f"column {i}" for i, name in enumerate(fields, start=1)]
            self._check_names()
        else:
            self.names = [f"x{i}" for i in range(1, len(fields) + 1)]
            self._rest = [fields]

    def _check_names(self) -> None:
        twice = next((name for name in self.names if self.names.count(name) > 1), None)
        if twice is not None:
            raise TableError(f"{self.place} has more than one column {twice!r}: rename one of them.")
        if all(map(_is_number, self.names)):
            raise TableError(
                f"The first line of {self.place} has only numbers ({', '.join(self.names[:3])}, …), not "
                "column names. If it is a row, pass --no-header: the columns are then x1, x2, …."
            )

    @property
    def share(self) -> float | None:
        return None if not self._size else min(1.0, self._raw.tell() / self._size)

    def chunks(
        self, kinds: Mapping[str, Kind | None], kept: Sequence[str] = ()
    ) -> Iterator[tuple[Table, Texts]]:
        while rows := self._rows(CHUNK_ROWS):
            fields = dict(zip(self.names, zip(*rows, strict=True), strict=True))
            table = Table(tuple(Column.of(name, fields[name], kind) for name, kind in kinds.items()))
            yield table, {name: list(fields[name]) for name in kept}

    def table(self, names: list[str], part: tuple[int, int] = (0, 1)) -> Table:
        wanted = [(self.names.index(name), name) for name in names]
        held: list[list[str]] = [[] for _ in wanted]
        while rows := self._rows(CHUNK_ROWS):
            for (i, _), column in zip(wanted, held, strict=True):
                column += [row[i] for row in rows]
        rows = _part_of(len(held[0]) if held else 0, part)
        # a column is a number or a text by all of its rows
        columns = [Column.of(n, texts) for (_, n), texts in zip(wanted, held, strict=True)]
        return Table(tuple(Column(c.name, c.kind, c.values[rows]) for c in columns))

    def _rows(self, most: int) -> list[list[str]]:
        """The next rows; blank lines are no rows."""
        rows, self._rest = self._rest, []
        width = len(self.names)
        with self._troubles():
            for fields in self._lines:
                if not fields or (width > 1 and not any(fields)):
                    continue
                if len(fields) != width:
                    raise TableError(
                        f"Line {self._lines.line_num} of {self.place} has {len(fields)} fields, but "
                        f"there are {width} columns."
                    )
                rows.append(fields)
                if len(rows) >= most:
                    break
        return rows

    @contextlib.contextmanager
    def _troubles(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:
            raise TableError(f"{self.place} is not UTF-8 text ({error.reason}).") from None
        except csv.Error as error:
            raise TableError(f"Line {self._lines.line_num} of {self.place}: {error}.") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TableError(f"{self.place} is not a whole gzip file ({error}).") from None


class ParquetReader(Reader):
    """A Parquet file, or one that was read from standard input."""

    def __init__(self, file: Any, place: str):
        try:
            import pyarrow as pa
            import pyarrow.parquet as parquet  # large, and needed only here
        except ImportError:
            raise TableError(f"{place} is a Parquet file: `pip install pyarrow` to read it.") from None
        self.place, self._error = place, (pa.ArrowException, OSError, ValueError, NotImplementedError)
        try:
            self._file = parquet.ParquetFile(file)
            self.names = [str(name) for name in self._file.schema_arrow.names]
            self._total = self._file.metadata.num_rows
        except self._error as error:
            raise self._trouble(error) from None
        twice = next((name for name in self.names if self.names.count(name) > 1), None)
        if twice is not None:
            raise TableError(f"{place} has more than one column {twice!r}: rename one of them.")
        self._done = 0

    @property
    def share(self) -> float | None:
        return self._done / max(1, self._total)

    def chunks(
        self, kinds: Mapping[str, Kind | None], kept: Sequence[str] = ()
    ) -> Iterator[tuple[Table, Texts]]:
        batches = self._file.iter_batches(CHUNK_ROWS, columns=list(dict.fromkeys([*kinds, *kept])))
        while True:
            try:
                batch = next(batches, None)
            except self._error as error:
                raise self._trouble(error) from None
            if batch is None:
                return
            self._done += len(batch)
            fields = {
                name: batch.column(batch.schema.get_field_index(name)) for name in batch.schema.names
            }
            table = Table(tuple(Column.of(name, fields[name], kind) for name, kind in kinds.items()))
            yield table, {name: _texts(name, fields[name]) for name in kept}

    def table(self, names: list[str], part: tuple[int, int] = (0, 1)) -> Table:
        try:
            found = self._file.read(columns=names) if part[1] == 1 else self._rows(names, part)
        except self._error as error:
            raise self._trouble(error) from None
        return Table(tuple(Column.of(name, found.column(name)) for name in names))

    def _rows(self, names: list[str], part: tuple[int, int]) -> Any:
        """Of the row groups that hold them, the rows of a part."""
        wanted, metadata = _part_of(self._total, part), self._file.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        ends = list(itertools.accumulate(sizes))
        groups = [
            i
            for i, (size, end) in enumerate(zip(sizes, ends, strict=True))
            if end - size < wanted.stop and end > wanted.start
        ]
        first = ends[groups[0]] - sizes[groups[0]] if groups else 0
        found = self._file.read_row_groups(groups, columns=names)
        return found.slice(wanted.start - first, wanted.stop - wanted.start)

    def _trouble(self, error: Exception) -> TableError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return TableError(f"{self.place} cannot be read as a Parquet file ({reason}).")


@contextlib.contextmanager
def open_table(path: str, header: bool = True) -> Iterator[Reader]:
    """A reader of a file.

    Args:
        path: the file; "-" is standard input.
        header: whether the first line of a CSV file has the names of the columns.

    Raises:
        TableError: if there is no such file, or if it is not a table.
    """
    with contextlib.ExitStack() as stack:
        if path == STREAM:
            file: Any = sys.stdin.buffer
            file = file if hasattr(file, "peek") else io.BufferedReader(file)
            place, size = "standard input", None
        else:
            place = path
            try:
                file = stack.enter_context(Path(path).open("rb"))
                size = os.fstat(file.fileno()).st_size
            except OSError as error:
                raise TableError(f"{path} cannot be read: {error.strerror or error}.") from None
        start = _peek(file, 4)
        if start == b"PAR1":
            yield ParquetReader(io.BytesIO(file.read()) if path == STREAM else file, place)
        else:
            yield CSVReader(file, place, size, header)


def read_table(path: str, header: bool = True) -> Table:
    """The whole table in a file."""
    with open_table(path, header) as reader:
        return reader.table(reader.names)


def _part_of(n: int, part: tuple[int, int]) -> slice:
    """The rows of part i of k equal parts of n rows."""
    i, k = part
    return slice(n * i // k, n * (i + 1) // k)


def _peek(file: Any, count: int) -> bytes:
    try:
        return file.peek(count)[:count]
    except OSError as error:
        raise TableError(f"{getattr(file, 'name', 'The file')} cannot be read: {error}.") from None


def _texts(name: str, values: Any) -> list[str | None]:
    """The entries of an Arrow column as a CSV file would have them."""
    import pyarrow as pa

    try:
        return values.cast(pa.string()).to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise TableError(f"Column {name!r} ({values.type}) cannot be copied as text.") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _chain(first: str, rest: Any) -> Iterator[str]:
    yield first
    yield from rest
