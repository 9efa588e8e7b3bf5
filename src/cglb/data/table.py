"""Tables as people have them: named columns of numbers, booleans, dates or text, with gaps.

`Table.of` takes pandas, polars and Arrow tables, dictionaries of columns, and arrays. Text is read as a
CSV file is: a column of texts that all look like numbers is a column of numbers. So a table means the
same in Python and on the command line.
"""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from cglb.core.errors import TableError
from cglb.data.entries import (
    MISSING,
    PARSERS,
    Kind,
    as_days,
    as_floats,
    as_text,
    is_missing,
    parse_all,
)

__all__ = ["Column", "Kind", "Table", "listed", "named_columns"]

MOST_NAMED = 8


@dataclass(frozen=True)
class Column:
    """One named column.

    Attributes:
        name: its name.
        kind: what it holds.
        values: [n]. Text as str, with None where it is missing; all else as float64, with NaN where it
            is missing: a boolean as 0 or 1, a date as days since 1970-01-01 (UTC).
    """

    name: str
    kind: Kind
    values: np.ndarray

    @property
    def missing(self) -> np.ndarray:
        """Which entries are missing, [n]."""
        if self.kind is Kind.TEXT:
            return np.array([value is None for value in self.values], dtype=bool)
        return np.isnan(self.values)

    @classmethod
    def of(cls, name: str, values: Any, kind: Kind | None = None) -> Column:
        """A column of any library's values.

        Args:
            name: its name.
            values: a list, array or Series.
            kind: what it must hold; by default what it looks like.

        Raises:
            TableError: if it holds something else, with the first entry that does not fit.
        """
        if kind in (None, Kind.NUMBER) and (quick := _only_numbers(values)) is not None:
            return cls(name, Kind.NUMBER, quick)
        array = _as_array(name, values)
        found = _typed(name, array) if array.dtype.kind != "O" else _from_objects(name, array, kind)
        return found if kind is None else found.as_kind(kind)

    def as_kind(self, kind: Kind) -> Column:
        """This column as another kind, where that means something.

        Raises:
            TableError: where it does not.
        """
        return self if self.kind is kind else _converted(self, kind)


@dataclass(frozen=True)
class Table:
    """Named columns of the same length."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise TableError(f"Column names must differ, found more than once: {listed(twice)}.")

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return [column.name for column in self.columns]

    def __len__(self) -> int:
        return len(self.columns[0].values) if self.columns else 0

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise TableError(f"There is no column {name!r}. There are: {listed(self.names)}.")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), len(self.columns)

    def select(self, names: Iterable[str]) -> Table:
        """The columns of these names, in this order."""
        return Table(tuple(self[name] for name in names))

    def rows(self, which: np.ndarray) -> Table:
        """The rows that a mask or a list of row numbers chooses."""
        return Table(tuple(Column(c.name, c.kind, c.values[which]) for c in self.columns))

    @classmethod
    def of(cls, X: Any, kinds: Sequence[Kind | None] | None = None) -> Table:
        """The table in X.

        Args:
            X: a table of pandas, polars or Arrow, a dictionary of columns, or an array [n, d], whose
                columns are called x0, x1, ….
            kinds: what each column must hold; by default what it looks like.

        Raises:
            TableError: with the name of a column that cannot be used.
        """
        pairs = named_columns(X)
        wanted = kinds if kinds is not None else [None] * len(pairs)
        return cls(
            tuple(Column.of(*pair, kind) for pair, kind in zip(pairs, wanted, strict=True))
        )  # fmt: skip


def named_columns(X: Any) -> list[tuple[str, Any]]:
    """The columns of any table with their names, as they are."""
    if type(X) is dict:
        return [(str(name), values) for name, values in X.items()]
    if hasattr(X, "column_names") and hasattr(X, "column"):  # Arrow
        return [(str(name), X.column(i)) for i, name in enumerate(X.column_names)]
    if hasattr(X, "iloc"):  # pandas; by position, since names may repeat
        return [(str(name), X.iloc[:, i]) for i, name in enumerate(X.columns)]
    if hasattr(X, "columns"):  # polars
        return [(str(name), X[name]) for name in X.columns]
    array = np.asarray(X)
    if array.ndim != 2:
        raise TableError(f"X must be a table or have 2 axes, found shape {array.shape}.")
    return [(f"x{i}", array[:, i]) for i in range(array.shape[1])]


def _as_array(name: str, values: Any) -> np.ndarray:
    """The values as a NumPy array: of a plain type where there is one, otherwise of objects."""
    dtype = getattr(values, "dtype", None)
    if hasattr(values, "iloc"):  # pandas
        if getattr(dtype, "kind", "O") in "biuf" and str(dtype) not in ("bool", "boolean"):
            return values.to_numpy(dtype=np.float64, na_value=np.nan)
        if hasattr(dtype, "tz"):
            return values.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
        if getattr(dtype, "kind", "O") not in "bMm" or str(dtype) == "boolean":
            return values.astype(object).to_numpy(dtype=object)
        return values.to_numpy()
    if type(values).__module__.startswith("pyarrow"):
        chunked = hasattr(values, "chunks")
        return values.to_numpy() if chunked else values.to_numpy(zero_copy_only=False)
    if isinstance(values, list | tuple):
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return array
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if array.ndim != 1:
        raise TableError(f"Column {name!r} must hold one value per row, found shape {array.shape}.")
    return array.astype(object) if array.dtype.kind in "US" else array


def _typed(name: str, array: np.ndarray) -> Column:
    """A column of an array that is not of objects."""
    kind = array.dtype.kind
    if kind in "iuf":
        return Column(name, Kind.NUMBER, array.astype(np.float64))
    if kind == "b":
        return Column(name, Kind.BOOLEAN, array.astype(np.float64))
    if kind == "M":
        since = array.astype("datetime64[us]")
        days = since.astype(np.int64) / 86400e6
        return Column(name, Kind.DATE, np.where(np.isnat(since), np.nan, days))
    what = "durations: give them as numbers" if kind == "m" else f"{array.dtype}, not real numbers"
    raise TableError(f"Column {name!r} holds {what}.")


def _from_objects(name: str, array: np.ndarray, wanted: Kind | None) -> Column:
    """A column of Python objects: by their types, and text by what it looks like."""
    entries: list[Any] = [None if is_missing(value) else value for value in array.tolist()]
    present = [value for value in entries if value is not None]
    if all(isinstance(value, str) for value in present):
        return _from_texts(name, entries, wanted)
    if all(isinstance(value, bool | np.bool_) for value in present):
        return Column(name, Kind.BOOLEAN, as_floats(entries))
    if all(isinstance(value, numbers.Real | Decimal) for value in present):
        return Column(name, Kind.NUMBER, as_floats(entries))
    if all(isinstance(value, datetime.date) for value in present):
        return Column(name, Kind.DATE, parse_all(name, entries, as_days, "a date"))
    plain = (str, bool, np.bool_, numbers.Real, Decimal, datetime.date)
    strange = next((value for value in present if not isinstance(value, plain)), None)
    if strange is not None:
        raise TableError(
            f"Column {name!r} holds a {type(strange).__name__}. A column holds numbers, booleans, dates "
            "or text: turn it into one of them, or leave it out."
        )
    return _from_texts(name, [None if v is None else as_text(v) for v in entries], wanted)


def _only_numbers(values: Any) -> np.ndarray | None:
    """The numbers in a list of texts, or None if one is something else: the quick common case."""
    if not isinstance(values, list | tuple) or set(map(type, values)) != {str} or "_" in "".join(values):
        return None
    try:
        return np.array(list(map(float, values)))
    except ValueError:
        return None


def _from_texts(name: str, entries: list[str | None], wanted: Kind | None) -> Column:
    """A column of texts: of numbers, booleans or dates if all of them are."""
    texts = [None if e is None or e.strip().lower() in MISSING else e.strip() for e in entries]
    if wanted is Kind.TEXT:
        return Column(name, Kind.TEXT, np.array(texts, dtype=object))
    if wanted is not None:
        parser, what = PARSERS[wanted]
        return Column(name, wanted, parse_all(name, texts, parser, what))
    for kind, (parser, _) in PARSERS.items():
        try:
            values = [np.nan if text is None else parser(text) for text in texts]
        except (ValueError, KeyError, OverflowError):
            continue
        return Column(name, kind, np.array(values, dtype=np.float64))
    return Column(name, Kind.TEXT, np.array(texts, dtype=object))


def _converted(column: Column, kind: Kind) -> Column:
    """A column of one kind as another, where that means something."""
    numeric = (Kind.NUMBER, Kind.BOOLEAN)
    if column.kind in numeric and kind in numeric:
        return Column(column.name, kind, column.values)
    if bool(column.missing.all()):
        empty = np.full(len(column.values), None if kind is Kind.TEXT else np.nan)
        return Column(column.name, kind, empty)
    if kind is Kind.TEXT and column.kind in numeric:
        named = {0.0: "False", 1.0: "True"} if column.kind is Kind.BOOLEAN else {}
        texts = [None if np.isnan(v) else named.get(v, as_text(v)) for v in column.values.tolist()]
        return Column(column.name, Kind.TEXT, np.array(texts, dtype=object))
    if column.kind is Kind.TEXT:
        return _from_texts(column.name, column.values.tolist(), kind)
    raise TableError(
        f"Column {column.name!r} must hold {kind}s as in training, but holds {column.kind}s."
    )


def listed(names: list[str]) -> str:
    """The names in quotes, the first few if they are many."""
    more = "" if len(names) <= MOST_NAMED else f" and {len(names) - MOST_NAMED} more"
    return ", ".join(map(repr, names[:MOST_NAMED])) + more
