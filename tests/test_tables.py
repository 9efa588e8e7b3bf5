"""Tables with text, booleans, dates, gaps and constants: one meaning, from Python and from files."""

import datetime
import functools
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cglb import GPRegressor
from cglb.core.errors import TableError
from cglb.data.encoding import Encoding
from cglb.data.table import Column, Kind, Table

N = 40
RNG = np.random.default_rng(3)
SPEED = RNG.normal(size=N).round(3)
COLOUR = RNG.choice(["red", "green", "blue"], size=N)
OPEN = RNG.random(N) < 0.5
DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(days=7 * i) for i in range(N)]
RAW = {
    "speed": SPEED.tolist(),
    "colour": COLOUR.tolist(),
    "open": OPEN.tolist(),
    "day": DAYS,
    "place": ["here"] * N,
    "count": RNG.integers(0, 9, size=N).tolist(),
}
Y = np.sin(SPEED) + (COLOUR == "red") + 0.5 * OPEN + 0.05 * RNG.normal(size=N)
FEATURES = ["speed", "colour=blue", "colour=green", "colour=red", "open", "day", "count"]


def as_texts(table):
    """The table as a CSV file has it."""
    return {name: [str(value) for value in values] for name, values in table.items()}


LIBRARIES = {
    "dict": dict,
    "pandas": pd.DataFrame,
    "pandas nullable": lambda table: pd.DataFrame(table).convert_dtypes(),
    "pandas categories": lambda table: pd.DataFrame(table).astype({"colour": "category"}),
    "pandas dates": lambda table: pd.DataFrame(table).assign(day=pd.to_datetime(table["day"])),
    "pandas texts": lambda table: pd.DataFrame(as_texts(table)),
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "texts": as_texts,
}


def make(**settings):
    return GPRegressor(**{"method": "exact", "max_steps": 2, **settings})


@functools.cache
def fitted():
    return make().fit(pd.DataFrame(RAW), Y)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_table_means_the_same_in_every_library(library):
    found, _ = Encoding.learn(Table.of(LIBRARIES[library](RAW))).encode(
        Table.of(LIBRARIES[library](RAW))
    )
    days = np.array(DAYS, dtype="datetime64[D]").astype(float)
    colours = [colour == COLOUR for colour in ("blue", "green", "red")]
    expected = np.column_stack([SPEED, *colours, OPEN, days, RAW["count"]]).astype(float)
    np.testing.assert_array_equal(found, expected)


def test_names_are_kept_and_what_was_done_is_said():
    model = fitted()
    assert list(model.feature_names_in_) == list(RAW)
    assert model.encoding_.features == FEATURES
    assert list(model.relevance_) == list(RAW)
    assert model.relevance_["place"] == 0.0
    assert max(model.relevance_.values()) == 1.0
    notes = "\n".join(model.encoding_.notes)
    assert "place is constant (here): left out" in notes
    assert "colour holds text" in notes
    assert "day holds dates" in notes


def test_the_fit_is_that_of_the_numbers():
    inputs, _ = fitted().encoding_.encode(Table.of(RAW))
    plain = make().fit(inputs, Y)
    np.testing.assert_array_equal(plain.predict(inputs), fitted().predict(pd.DataFrame(RAW)))


def test_an_array_with_text_is_a_table_too():
    mixed = np.array([SPEED, COLOUR], dtype=object).T
    model = make().fit(mixed, Y)
    named = make().fit(pd.DataFrame({"a": SPEED, "b": COLOUR}), Y)
    np.testing.assert_array_equal(
        model.predict(mixed[:5]), named.predict(pd.DataFrame(mixed[:5], columns=["a", "b"]))
    )


def test_a_saved_model_takes_the_raw_table_in_another_process(tmp_path):
    fitted().save(tmp_path / "model")
    pd.DataFrame(RAW).to_parquet(tmp_path / "raw.parquet")
    program = (
        "import sys, pandas as pd, numpy as np; from cglb import GPRegressor; folder = sys.argv[1]; "
        "model = GPRegressor.load(folder + '/model'); "
        "np.save(folder + '/mean.npy', model.predict(pd.read_parquet(folder + '/raw.parquet')))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "mean.npy"), fitted().predict(pd.DataFrame(RAW)))
    assert GPRegressor.load(tmp_path / "model").encoding_ == fitted().encoding_


def test_an_update_takes_the_raw_table():
    model = make().fit(pd.DataFrame(RAW), Y)
    model.update(pd.DataFrame(RAW).iloc[:3], Y[:3] + 0.1)
    assert len(model._y) == N + 3


# ---- gaps ----

GAPPY = {**RAW, "speed": [None, *RAW["speed"][1:]], "colour": [*RAW["colour"][:-2], None, ""]}


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow", "dict"])
def test_missing_entries_are_counted_by_column(library):
    table = LIBRARIES[library](GAPPY)
    with pytest.raises(TableError, match=r"speed \(1\), colour \(2\).*drop_missing.*impute"):
        make().fit(table, Y)
    with pytest.raises(TableError, match=r"speed \(1\), colour \(2\)"):
        fitted().predict(table)


def test_rows_with_missing_entries_can_be_dropped():
    model = make(drop_missing=True).fit(pd.DataFrame(GAPPY), Y)
    whole = make().fit(pd.DataFrame(RAW).iloc[1:-2], Y[1:-2])
    rows = pd.DataFrame(RAW).iloc[:5]
    np.testing.assert_array_equal(model.predict(rows), whole.predict(rows))


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow", "dict"])
def test_rows_with_a_missing_target_can_be_dropped(library):
    model = make(drop_missing=True).fit(LIBRARIES[library](RAW), [np.nan, *Y[1:]])
    assert model.fit_report_.rows == N - 1


def test_missing_entries_can_be_filled_in_training_and_in_predictions():
    model = make(impute=True).fit(pd.DataFrame(GAPPY), Y)
    often = max(sorted(set(COLOUR[:-2])), key=list(COLOUR[:-2]).count)
    filled = {**RAW, "speed": [np.median(SPEED[1:]), *SPEED[1:]], "colour": [*COLOUR[:-2], often, often]}
    expected = make().fit(pd.DataFrame(filled), Y).predict(pd.DataFrame(filled))
    np.testing.assert_array_equal(model.predict(pd.DataFrame(GAPPY)), expected)
    assert "speed has 1 missing entries" in "\n".join(model.encoding_.notes)


def test_gaps_in_an_array_can_be_filled_or_dropped():
    gappy = np.column_stack([SPEED, OPEN]).astype(float)
    gappy[3, 0] = np.nan
    full = np.where(np.isnan(gappy), np.nanmedian(gappy[:, 0]), gappy)
    filled = make(impute=True).fit(gappy, Y)
    np.testing.assert_array_equal(filled.predict(gappy), make().fit(full, Y).predict(full))
    dropped = make(drop_missing=True).fit(gappy, Y)
    keep = np.arange(N) != 3
    np.testing.assert_array_equal(dropped.predict(full), make().fit(gappy[keep], Y[keep]).predict(full))


# ---- what does not fit is named ----


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"speed": [*RAW["speed"][1:], "fast"]}, "'speed' must hold a number.*row 40 holds 'fast'"),
        ({"open": ["perhaps"] * N}, "'open' must hold true or false.*row 1 holds 'perhaps'"),
        ({"day": ["31/12/2024"] * N}, "'day' must hold a date such as.*row 1 holds '31/12/2024'"),
        ({"day": [17.0] * N}, "'day' must hold dates as in training, but holds numbers"),
        ({"speed": [np.inf] * N}, "'speed' has 40 infinite entries, the first in row 1"),
        ({"colour": [[1]] * N}, "'colour' holds a list"),
        ({"speed": [1j] * N}, "'speed' holds a complex"),
    ],
)
def test_a_column_that_does_not_fit_the_model_is_named(column, words):
    with pytest.raises(TableError, match=words):
        fitted().predict({**RAW, **column})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"id": [f"person {i}" for i in range(80)]}, "'id' has 80 different texts.*--exclude"),
        ({"a": [1, 1], "b": ["x", "x"]}, "Every column is constant.*'a', 'b'"),
        ({"a": [1.0, np.inf]}, "'a' has 1 infinite"),
        ({"a": pd.Series(pd.to_timedelta([1, 2], unit="s"))}, "'a' holds durations"),
    ],
)
def test_a_training_table_that_cannot_be_used_says_why(table, words):
    with pytest.raises(TableError, match=words):
        Encoding.learn(Table.of(table))


def test_names_that_repeat_are_refused():
    with pytest.raises(TableError, match="more than once: 'a'"):
        Table.of(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_a_text_that_is_new_is_none_of_the_known_ones_and_is_reported():
    rows = {name: values[:2] for name, values in RAW.items()}
    with pytest.warns(UserWarning, match="colour has texts that training did not have: 'mauve'"):
        mean = fitted().predict({**rows, "colour": ["mauve", "red"]})
    assert np.isfinite(mean).all()
    inputs, _ = fitted().encoding_.encode(
        fitted().encoding_.read(Table.of({**rows, "colour": ["mauve", "red"]}))
    )
    np.testing.assert_array_equal(inputs[:, 1:4], [[0, 0, 0], [0, 0, 1]])


# ---- single columns ----


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", " 2.5", "NA", ""], Kind.NUMBER, [1.0, 2.5, np.nan, np.nan]),
        (["1e3", "-0", "null"], Kind.NUMBER, [1000.0, 0.0, np.nan]),
        (["true", "FALSE", "nan"], Kind.BOOLEAN, [1.0, 0.0, np.nan]),
        (["1970-01-02", "1970-01-01T12:00:00"], Kind.DATE, [1.0, 0.5]),
        (["1970-01-01T12:00:00+12:00"], Kind.DATE, [0.0]),
        (["1", "x"], Kind.TEXT, ["1", "x"]),
        (["1_000"], Kind.TEXT, ["1_000"]),
        (["2024-13-01"], Kind.TEXT, ["2024-13-01"]),
    ],
)
def test_texts_are_what_they_look_like(texts, kind, values):
    column = Column.of("c", texts)
    assert column.kind is kind
    np.testing.assert_array_equal(column.values, np.array(values, dtype=column.values.dtype))


def test_numbers_among_texts_are_texts():
    column = Column.of("c", [1, 2.5, "x", None, True])
    assert column.values.tolist() == ["1", "2.5", "x", None, "True"]


def test_categories_that_look_like_numbers_today_are_still_categories():
    model = make().fit({"c": ["1", "2", "x"] * 10, "z": list(range(30))}, np.arange(30.0))
    as_numbers = model.predict({"c": [1, 2, 1], "z": [1, 2, 3]})
    np.testing.assert_array_equal(as_numbers, model.predict({"c": ["1", "2", "1"], "z": [1, 2, 3]}))


def test_importing_cglb_loads_no_library_for_tables_or_plots():
    program = (
        "import sys, cglb; "  # scikit-learn imports pandas where it is installed, and that pyarrow
        "found = {'polars', 'matplotlib', 'typer', 'rich'} & set(sys.modules); "
        "sys.exit(str(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
