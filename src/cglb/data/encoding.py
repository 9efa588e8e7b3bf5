"""From a table to an array of numbers, learned on the training rows and stored with the model.

Numbers and booleans stay as they are. A date becomes days since 1970-01-01. A text column becomes one
column of zeros and ones per text that occurs in training ("colour=red"). A column that is constant in
training is left out. All of it is written to the model file, so predictions take the raw table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cglb.core.errors import TableError
from cglb.data.table import Column, Kind, Table, listed, named_columns

__all__ = ["ColumnCode", "Encoding", "missing_columns"]

MOST_TEXTS = 64
MOST_NAMED = 10
SHOWN_TEXTS = 5
IN_TRAINING = "Drop those rows (drop_missing=True, --drop-missing) or fill them (impute=True, --impute)."
IN_PREDICTIONS = (
    "Drop those rows (--skip-missing on the command line leaves their predictions empty), or fit with "
    "impute=True (--impute), which fills them in predictions too."
)


@dataclass(frozen=True)
class ColumnCode:
    """How one column of the table becomes columns of the array.

    Attributes:
        name: the column.
        kind: what it holds.
        used: False if it was constant in training.
        texts: the texts of a text column in training, in alphabetical order.
        fill: what stands in for a missing entry: the median or the most frequent value; None if missing
            entries are errors.
    """

    name: str
    kind: Kind
    used: bool = True
    texts: tuple[str, ...] = ()
    fill: float | str | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its columns in the array."""
        if not self.used:
            return ()
        if self.kind is Kind.TEXT:
            return tuple(f"{self.name}={text}" for text in self.texts)
        return (self.name,)

    def encode(self, column: Column) -> np.ndarray:
        """The columns of the array, [n, features]."""
        if self.kind is not Kind.TEXT:
            values = column.values
            if self.fill is not None:
                values = np.where(np.isnan(values), float(self.fill), values)
            return values[:, None]
        place: dict[Any, int] = {text: number for number, text in enumerate(self.texts)}
        filled = (self.fill if value is None else value for value in column.values)
        numbers = np.array([place.get(value, -1) for value in filled], dtype=np.int64)  # -1: unknown
        return (numbers[:, None] == np.arange(len(self.texts))[None, :]).astype(np.float64)


@dataclass(frozen=True)
class Encoding:
    """How a table becomes an array.

    Attributes:
        codes: one per column of the table, in order.
        notes: what was done, in sentences for people.
    """

    codes: tuple[ColumnCode, ...]
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The names of the columns of the table."""
        return [code.name for code in self.codes]

    @property
    def features(self) -> list[str]:
        """The names of the columns of the array."""
        return [name for code in self.codes for name in code.features]

    @property
    def groups(self) -> list[list[int]]:
        """For each column of the table, the columns of the array that it becomes."""
        out, start = [], 0
        for code in self.codes:
            size = len(code.features)
            out.append(list(range(start, start + size)))
            start += size
        return out

    @property
    def plain(self) -> bool:
        """Whether every column stays what it is."""
        return all(code.used and code.kind is not Kind.TEXT for code in self.codes)

    @classmethod
    def learn(cls, table: Table, impute: bool = False) -> Encoding:
        """The encoding of a training table.

        Args:
            table: the training rows.
            impute: fill missing entries, here and in predictions, with the median of numbers and dates
                and the most frequent boolean or text. Otherwise they are errors.

        Raises:
            TableError: with the columns that have missing or infinite entries, or too many texts.
        """
        if not impute:
            _check_complete(table, IN_TRAINING)
        codes, notes = [], []
        for column in table.columns:
            _check_finite(column)
            code, note = _learn_column(column, impute)
            codes.append(code)
            notes += note
        if table.columns and not any(code.used for code in codes):
            raise TableError(
                "Every column is constant, so there is nothing to learn from: "
                f"{listed([code.name for code in codes])}."
            )
        return cls(tuple(codes), tuple(notes))

    def read(self, X: Any) -> Table:
        """The columns that this encoding needs, of the kinds that it knows, from any table.

        A `Table` may have more columns, in any order; all else must have exactly these.

        Raises:
            TableError: if a column is not there or holds something else.
        """
        kinds = {code.name: code.kind for code in self.codes}
        if isinstance(X, Table):
            absent = [name for name in kinds if name not in X.names]
            if absent:
                raise TableError(
                    f"The table has no column {listed(absent)}, which the model needs. "
                    f"It has: {listed(X.names)}."
                )
            return Table(tuple(X[name].as_kind(kind) for name, kind in kinds.items()))
        given = named_columns(X)
        if len(given) != len(kinds):
            raise TableError(f"The table has {len(given)} columns, but the model needs {len(kinds)}.")
        pairs = zip(kinds.items(), given, strict=True)
        return Table(tuple(Column.of(name, values, kind) for (name, kind), (_, values) in pairs))

    def encode(self, table: Table) -> tuple[np.ndarray, list[str]]:
        """The array [n, d], and notes on what is new in this table.

        Args:
            table: what `read` gives.

        Raises:
            TableError: with the columns that have missing or infinite entries.
        """
        columns = list(zip(self.codes, table.columns, strict=True))
        needed = Table(tuple(c for code, c in columns if code.used and code.fill is None))
        _check_complete(needed, IN_PREDICTIONS)
        parts, notes = [np.empty((len(table), 0))], []
        for code, column in columns:
            if not code.used:
                continue
            _check_finite(column)
            notes += _unknown_texts(code, column)
            parts.append(code.encode(column))
        return np.concatenate(parts, axis=1), notes

    def to_json(self) -> dict[str, Any]:
        """What `from_json` needs."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Encoding:
        """The inverse of `to_json`."""
        codes = tuple(
            ColumnCode(**{**code, "kind": Kind(code["kind"]), "texts": tuple(code["texts"])})
            for code in document["codes"]
        )
        return cls(codes, tuple(document["notes"]))


def missing_columns(table: Table) -> dict[str, int]:
    """How many entries of each column are missing, for the columns that miss some."""
    counts = {column.name: int(column.missing.sum()) for column in table.columns}
    return {name: count for name, count in counts.items() if count}


def _learn_column(column: Column, impute: bool) -> tuple[ColumnCode, list[str]]:
    missing = column.missing
    present = column.values[~missing]
    name, notes = column.name, []
    if len(present) == 0:
        return ColumnCode(name, column.kind, used=False), [f"{name} has no values: left out."]
    if len(set(present.tolist())) == 1:
        shown = present[0] if column.kind is Kind.TEXT else f"{present[0]:g}"
        return ColumnCode(name, column.kind, used=False), [f"{name} is constant ({shown}): left out."]
    fill = _typical(column, present) if impute else None
    if missing.any():
        shown = fill if isinstance(fill, str) else f"{fill:g}"
        notes.append(f"{name} has {int(missing.sum())} missing entries: filled with {shown}.")
    if column.kind is Kind.DATE:
        notes.append(
            f"{name} holds dates: used as days since 1970-01-01. If the target follows the season or "
            "the weekday, add a column for it, or use a Periodic kernel on this one."
        )
    if column.kind is not Kind.TEXT:
        return ColumnCode(name, column.kind, fill=fill), notes
    texts = tuple(sorted(set(present.tolist())))
    if len(texts) > MOST_TEXTS:
        raise TableError(
            f"Column {name!r} has {len(texts)} different texts, such as {texts[0]!r}; at most "
            f"{MOST_TEXTS} are used. Leave it out (--exclude), or group them."
        )
    shown = ", ".join(texts[:SHOWN_TEXTS]) + (", …" if len(texts) > SHOWN_TEXTS else "")
    notes.append(f"{name} holds text: one column of zeros and ones for each of {len(texts)}: {shown}.")
    return ColumnCode(name, column.kind, texts=texts, fill=fill), notes


def _typical(column: Column, present: np.ndarray) -> float | str:
    """The median, or the most frequent value of booleans and texts (the first of equals)."""
    if column.kind in (Kind.NUMBER, Kind.DATE):
        return float(np.median(present))
    counts = Counter(sorted(present.tolist()))
    return max(counts, key=lambda value: counts[value])


def _check_complete(table: Table, advice: str) -> None:
    found = missing_columns(table)
    if found:
        shown = ", ".join(f"{name} ({count})" for name, count in list(found.items())[:MOST_NAMED])
        more = f" and {len(found) - MOST_NAMED} more columns" if len(found) > MOST_NAMED else ""
        # scikit-learn and its users look for the first words
        raise TableError(f"Input X contains NaN: missing entries in {shown}{more}. {advice}")


def _check_finite(column: Column) -> None:
    if column.kind is Kind.TEXT:
        return
    infinite = np.isinf(column.values)
    if infinite.any():
        row = int(np.argmax(infinite)) + 1
        raise TableError(
            f"Input X contains infinity: column {column.name!r} has {int(infinite.sum())} infinite "
            f"entries, the first in row {row}. Drop or replace them."
        )


def _unknown_texts(code: ColumnCode, column: Column) -> list[str]:
    if code.kind is not Kind.TEXT:
        return []
    new = sorted({value for value in column.values if value is not None} - set(code.texts))
    if not new:
        return []
    shown = ", ".join(map(repr, new[:SHOWN_TEXTS])) + (", …" if len(new) > SHOWN_TEXTS else "")
    return [
        f"{code.name} has texts that training did not have: {shown}. Their rows are predicted as "
        "belonging to none of those it had."
    ]
