"""Single entries of a table: what a column may hold, and how a text becomes one of them."""

from __future__ import annotations

import datetime
import enum
from decimal import Decimal
from typing import Any

import numpy as np

from cglb.core.errors import TableError

__all__ = ["MISSING", "PARSERS", "Kind", "as_days", "as_floats", "as_text", "is_missing", "parse_all"]

# texts, in lower case, that stand for a missing entry
MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "<na>", "nat"})
TRUTH = {"true": 1.0, "false": 0.0}
DAY = 86400.0


class Kind(enum.StrEnum):
    """What a column holds."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    DATE = "date"
    TEXT = "text"


def is_missing(value: Any) -> bool:
    """Whether a Python object stands for nothing: None, NaN, or what pandas has for it."""
    if value is None:
        return True
    if isinstance(value, float):
        return value != value
    return type(value).__name__ in ("NAType", "NaTType") or (
        isinstance(value, Decimal) and value.is_nan()
    )


def as_floats(entries: list[Any]) -> np.ndarray:
    """The entries as float64, NaN for None."""
    return np.array([np.nan if value is None else float(value) for value in entries], dtype=np.float64)


def as_text(value: Any) -> str:
    """A number as people write it: 2, not 2.0."""
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole else str(value)


def _number(text: str) -> float:
    if "_" in text:  # Python's own way to write numbers, nobody else's
        raise ValueError(text)
    return float(text)


def _truth(text: str) -> float:
    return TRUTH[text.lower()]


def _date(text: str) -> float:
    return as_days(datetime.datetime.fromisoformat(text))


def as_days(value: datetime.date) -> float:
    """Days since 1970-01-01, in UTC if there is a time zone."""
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if value.tzinfo is not None:
        value = (value - (value.utcoffset() or datetime.timedelta())).replace(tzinfo=None)
    return (value - datetime.datetime(1970, 1, 1)).total_seconds() / DAY


# in the order in which a column of texts is tried
PARSERS = {
    Kind.NUMBER: (_number, "a number"),
    Kind.BOOLEAN: (_truth, "true or false"),
    Kind.DATE: (_date, "a date such as 2024-05-31 or 2024-05-31T12:00:00"),
}


def parse_all(name: str, entries: list[Any], parser: Any, what: str) -> np.ndarray:
    """Every entry parsed; TableError with the first that does not parse."""
    out = np.full(len(entries), np.nan)
    for row, entry in enumerate(entries):
        if entry is None:
            continue
        try:
            out[row] = parser(entry)
        except (ValueError, KeyError, OverflowError):
            shown = entry if len(str(entry)) < 40 else f"{str(entry)[:40]}…"
            raise TableError(
                f"Column {name!r} must hold {what} in every row, but row {row + 1} holds {shown!r}."
            ) from None
    return out
