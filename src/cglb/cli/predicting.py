"""`cglb predict`: a table of any length, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Annotated, Any

import numpy as np
import typer

from cglb.cli import common
from cglb.cli.common import Talk, load_model, watched
from cglb.core.errors import TableError
from cglb.data.files import Reader, open_table
from cglb.data.metrics import interval
from cglb.data.table import Table, listed
from cglb.data.writing import Columns, TableWriter

__all__ = ["predict"]

RESULTS = ("mean", "std", "lower", "upper")


def predict(
    model: common.Model,
    data: common.Data,
    output: Annotated[
        str, typer.Option("--output", "-o", help="CSV, .csv.gz or .parquet; standard output by default.")
    ] = "-",
    level: Annotated[float, typer.Option(help="Probability of the interval.")] = 0.95,
    variance: Annotated[
        str | None, typer.Option(help="How the spread is found: sgpr, local or cg.")
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave predictions of rows with missing inputs empty.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", "-k", help="Columns to copy next to the predictions, by name or glob."),
    ] = None,
    no_header: common.NoHeader = False,
    quiet: common.Quiet = False,
    json: common.Json = False,
) -> None:
    """Predict every row of a table: mean, standard deviation and interval of a new observation.

    The table is raw, as `cglb fit` took it, and may have more columns. It may be of any length: it is
    read and written in chunks. With --json, standard output has one object per row, or, if --output
    names a file, what was written to it.
    """
    talk = Talk(quiet, json)
    if not 0 < level < 1:
        raise ValueError(f"--level must lie between 0 and 1, found {level}.")
    estimator = load_model(model)
    how = {} if variance is None else {"variance": variance}
    rows = skipped = 0
    with open_table(data, not no_header) as reader, watched(talk), _bar(talk) as advance:
        kinds, kept = _columns(estimator, reader), _kept(reader, keep or [])
        none = {**{name: [] for name in kept}, **_columns_of(np.empty(0), np.empty(0), level)}
        predict = partial(_predict, estimator, how=how, skip_missing=skip_missing)
        parts = _parts(reader.chunks(kinds, kept), predict, reader.place)
        first = next(parts, None)  # what is refused is refused before anything is written
        with TableWriter(output, as_json=json) as sink:
            sink.write(none)
            for texts, mean, std in chain([] if first is None else [first], parts):
                sink.write({**texts, **_columns_of(mean, std, level)})
                rows += len(mean)
                skipped += int(np.isnan(mean).sum())
                advance(reader.share, rows)
    left_out = f", {skipped} of them skipped" if skipped else ""
    talk.note(f"{rows} rows predicted{left_out}{'' if output == '-' else f': {output}'}.")
    if json and output != "-":
        done = {"model": model, "output": output, "rows": rows, "skipped": skipped, "level": level}
        talk.result(done, "")


def _kept(reader: Reader, patterns: list[str]) -> list[str]:
    """The columns to copy."""
    kept = common.matching(reader.names, patterns, "--keep")
    taken = [name for name in kept if name in RESULTS]
    if taken:
        raise TableError(f"--keep {taken[0]!r}: the predictions have a column of that name.")
    return kept


def _columns(estimator: Any, reader: Reader) -> dict[str, Any]:
    """The columns that the model needs, and what they must hold."""
    if estimator.encoding_ is not None:
        kinds = {code.name: code.kind for code in estimator.encoding_.codes}
    else:
        names = getattr(estimator, "feature_names_in_", None)
        if names is None:  # a model of an array: by position
            names = reader.names[: estimator.n_features_in_]
        kinds = dict.fromkeys(map(str, names))
    absent = [name for name in kinds if name not in reader.names]
    if absent or len(kinds) < estimator.n_features_in_:
        raise TableError(
            f"{reader.place} has no column {listed(absent)}, which the model needs. It has: "
            f"{listed(reader.names)}."
        )
    return kinds


def _parts(
    chunks: Iterable[tuple[Table, Columns]], predict: Callable[[Table], Any], place: str
) -> Iterator[tuple[Columns, np.ndarray, np.ndarray]]:
    """The copied columns, means and standard deviations of one chunk after the other."""
    rows = 0
    for chunk, texts in chunks:
        try:
            mean, std = predict(chunk)
        except TableError as error:
            raise TableError(f"{place}, rows from {rows + 1} on: {error}") from None
        yield texts, mean, std
        rows += len(chunk)


def _predict(
    estimator: Any, chunk: Table, how: dict[str, str], skip_missing: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each row; NaN for rows that are skipped."""
    keep = np.ones(len(chunk), dtype=bool)
    if skip_missing and estimator.encoding_ is not None:
        filled = {
            code.name for code in estimator.encoding_.codes if code.fill is not None or not code.used
        }
        needed = [column.missing for column in chunk.columns if column.name not in filled]
        keep = ~np.any([~keep, *needed], axis=0)
    mean, std = np.full((2, len(chunk)), np.nan)
    if keep.any():
        rows = chunk.rows(keep)
        X = (
            rows
            if estimator.encoding_ is not None
            else np.stack([c.values for c in rows.columns], axis=1)
        )
        mean[keep], std[keep] = estimator.predict(X, return_std=True, **how)
    return mean, std


def _columns_of(mean: np.ndarray, std: np.ndarray, level: float) -> dict[str, np.ndarray]:
    lower, upper = np.full((2, len(mean)), np.nan)
    known = ~np.isnan(mean)
    if known.any():
        lower[known], upper[known] = interval(mean[known], std[known] ** 2, level)
    return dict(zip(RESULTS, (mean, std, lower, upper), strict=True))


@contextmanager
def _bar(talk: Talk) -> Iterator[Any]:
    """A function that shows how much of a file has been read, as far as that is known."""
    if not talk.bars:
        yield lambda share, rows: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("predicting …", total=None)

        def advance(share: float | None, rows: int) -> None:
            known: dict[str, Any] = {} if share is None else {"completed": share, "total": 1.0}
            bar.update(task, description=f"{rows:,} rows", **known)

        yield advance
