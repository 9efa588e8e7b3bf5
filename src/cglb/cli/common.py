"""What commands share: options, notes and results, the choice of columns."""

from __future__ import annotations

import fnmatch
import json
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cglb.cli.sharing import gathered
from cglb.core.errors import TableError
from cglb.data.files import open_table
from cglb.data.table import Kind, Table, listed

__all__ = ["Talk", "load_model", "matching", "read_training", "watched"]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results only, no notes and no bars.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
Data = Annotated[str, typer.Argument(help='CSV (also .gz) or Parquet; "-" for standard input.')]
Model = Annotated[str, typer.Argument(help="A file that `cglb fit` wrote.")]
Target = Annotated[str, typer.Option("--target", "-t", help="The column to predict.")]
Columns = Annotated[
    list[str] | None,
    typer.Option("--columns", "-c", help='Inputs by name or glob, as "temp*"; repeat it.'),
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", "-x", help="Columns to leave out, by name or glob.")
]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="The first line is a row; columns are x1, x2, ….")
]
DropMissing = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows with missing entries.")
]
Impute = Annotated[
    bool, typer.Option("--impute", help="Fill missing inputs with the median or the most frequent.")
]


@dataclass(frozen=True)
class Talk:
    """Where a command's words go: results to standard output, notes and bars to standard error."""

    quiet: bool = False
    json: bool = False

    @property
    def bars(self) -> bool:
        """Whether progress bars are wanted."""
        return not self.quiet and sys.stderr.isatty()

    def note(self, text: str) -> None:
        """Something that the user may want to know."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def result(self, document: dict[str, Any], text: str) -> None:
        """The result: the document with --json, otherwise the text."""
        print(json.dumps(_finite(document), indent=2, allow_nan=False) if self.json else text)


def _finite(document: Any) -> Any:
    """The document with null for numbers that JSON does not have."""
    if isinstance(document, dict):
        return {name: _finite(value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [_finite(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


@contextmanager
def watched(talk: Talk) -> Iterator[None]:
    """Warnings about tables become notes, each said once; all others pass."""
    said: set[str] = set()

    def show(message: Any, category: Any, *rest: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            talk.note(f"Note: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def load_model(path: str) -> Any:
    """The model in a file."""
    from cglb.core.cache import use_compilation_cache
    from cglb.regressor import GPRegressor

    use_compilation_cache()
    return GPRegressor.load(path).set_params(progress=False)  # commands have bars of their own


def read_training(
    data: str,
    target: str,
    columns: list[str] | None,
    exclude: list[str] | None,
    header: bool,
    part: tuple[int, int] = (0, 1),
) -> tuple[Table, Any]:
    """The inputs and the target [n] in a file.

    Args:
        data: the file.
        target: the column to predict.
        columns: names or globs of inputs; by default all but the target.
        exclude: names or globs of columns that are not inputs.
        header: whether the first line of a CSV file has the names of the columns.
        part: which part of the rows this process reads, and of how many; it gets all of them.

    Raises:
        TableError: with the column that is not there, or a target that is not a number.
    """
    with open_table(data, header) as reader:
        if target not in reader.names:
            raise TableError(
                f"--target {target!r}: {reader.place} has no such column. "
                f"It has: {listed(reader.names)}."
            )
        chosen = _chosen(reader.names, target, columns, exclude)
        table = reader.table([*chosen, target], part)
    table = gathered(table) if part[1] > 1 else table
    if len(table) == 0:
        raise TableError(f"{data} has column names, but no rows.")
    y = table[target]
    if y.kind in (Kind.TEXT, Kind.DATE):
        raise TableError(
            f"--target {target!r} holds {y.kind}s, such as {y.values[~y.missing][0]!r}: it must hold "
            "numbers."
        )
    return table.select(chosen), y.values


def _chosen(
    names: list[str], target: str, columns: list[str] | None, exclude: list[str] | None
) -> list[str]:
    """The names of the inputs."""
    wanted = names if not columns else matching(names, columns, "--columns")
    left_out = {target, *matching(names, exclude or [], "--exclude")}
    chosen = [name for name in wanted if name not in left_out]
    if not chosen:
        raise TableError(f"No column is left as an input. There are: {listed(names)}.")
    return chosen


def matching(names: list[str], patterns: list[str], option: str) -> list[str]:
    """The names that fit a pattern, in order.

    Raises:
        TableError: with the option, if a pattern fits none.
    """
    chosen = set()
    for pattern in patterns:
        found = {name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)}
        if not found:
            raise TableError(f"{option} {pattern!r} fits no column. There are: {listed(names)}.")
        chosen |= found
    return [name for name in names if name in chosen]
