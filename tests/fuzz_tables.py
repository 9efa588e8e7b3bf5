"""Broken and odd tables through the command line: a message and exit code 2, or a whole result.

`make fuzz` tries 5,000 of them; tests/test_fuzz.py tries some. `python tests/fuzz_tables.py --seed 17
--tables 1` repeats one.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import decimal
import gzip
import io
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

import cglb.cli
from cglb import GPRegressor

COLUMNS = ("speed", "colour", "open", "day")
ODD = (
    "", "NA", "inf", "-inf", "nan", "1e400", "-1e308", "0x10", "1_000", "1,5", "２", "=1+1", "☃", "true",
    "2024-02-30", "9999-12-31", "0001-01-01", "2024-01-01T00:00:00+99:00", " ", "'", '"', "\\", "None",
    "x" * 3000, "1e-320", "--", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "٣", "1 000",
)  # fmt: skip
FIT_EVERY = 50  # a fit takes seconds where the table is good


def good_table(rng: np.random.Generator, rows: int) -> dict[str, list]:
    start = datetime.date(2024, 1, 1)
    return {
        "speed": [round(float(v), 3) for v in rng.normal(size=rows)],
        "colour": [str(v) for v in rng.choice(["red", "green", "blue"], size=rows)],
        "open": [bool(v) for v in rng.random(rows) < 0.5],
        "day": [start + datetime.timedelta(days=int(v)) for v in rng.integers(0, 300, size=rows)],
        "y": [round(float(v), 3) for v in rng.normal(size=rows)],
    }


# ---- CSV ----


def csv_file(rng: np.random.Generator) -> bytes:
    table = good_table(rng, int(rng.integers(0, 40)))
    names = list(table)
    if rng.random() < 0.2:
        rng.shuffle(names)
    if rng.random() < 0.1:
        names = names[: rng.integers(0, len(names))]
    rows = [[str(table[name][i]) for name in names] for i in range(len(table["y"]))]
    for _ in range(rng.integers(0, 4)):
        if rows and names and rng.random() < 0.7:
            rows[rng.integers(len(rows))][rng.integers(len(names))] = str(rng.choice(ODD))
    if rng.random() < 0.08 and names:
        names[rng.integers(len(names))] = str(rng.choice(["", "speed", "☃", "a,b", 'q"q', "1"]))
    if rng.random() < 0.08 and rows:
        row = rows[rng.integers(len(rows))]
        if rng.random() < 0.5:
            row.append("more")
        else:
            del row[1:]
    text = io.StringIO()
    delimiter = str(rng.choice(list(",,,,;\t|")))
    ending = str(rng.choice(["\n", "\r\n", "\r"], p=[0.8, 0.15, 0.05]))
    writer = csv.writer(text, delimiter=delimiter, lineterminator=ending)
    if rng.random() < 0.95:
        writer.writerow(names)
    writer.writerows(rows)
    coding = str(rng.choice(["utf-8", "utf-8-sig", "utf-16", "latin-1"], p=[0.85, 0.07, 0.04, 0.04]))
    content = text.getvalue().encode(coding, errors="replace")
    content = damaged(rng, content)
    if rng.random() < 0.15:
        content = gzip.compress(content, mtime=0)
        content = damaged(rng, content)
    return content


def damaged(rng: np.random.Generator, content: bytes) -> bytes:
    chance = rng.random()
    if chance < 0.6 or not content:
        return content
    place = int(rng.integers(len(content)))
    if chance < 0.7:
        return content[:place]
    if chance < 0.8:
        return content[:place] + bytes(rng.integers(0, 256, size=3, dtype=np.uint8)) + content[place:]
    if chance < 0.87:
        return content[:place] + b'"' + content[place:]
    if chance < 0.91:
        return content[:place] + b"\x00" + content[place:]
    if chance < 0.94:
        return content[:place] + b"z" * 200_000 + content[place:]
    return content[:place] + content[place + 5 :]


# ---- Parquet ----


def odd_columns(rng: np.random.Generator, rows: int) -> dict[str, pa.Array]:
    whole = rng.integers(0, 100, size=rows)
    moments = pa.array(whole.tolist(), pa.int64())
    return {
        "lists": pa.array([[1.0]] * rows),
        "structs": pa.array([{"a": 1}] * rows),
        "decimal": pa.array([decimal.Decimal("1.5")] * rows),
        "zoned": moments.cast(pa.timestamp("us", tz="Europe/Berlin")),
        "duration": moments.cast(pa.duration("s")),
        "binary": pa.array([b"\xff"] * rows),
        "dictionary": pa.array(["a"] * rows).dictionary_encode(),
        "null": pa.nulls(rows),
        "uint64": pa.array([2**64 - 1] * rows, pa.uint64()),
        "half": pa.array(whole.astype(np.float16)),
        "time": moments.cast(pa.int32()).cast(pa.time32("s")),
        "infinite": pa.array([np.inf] * rows),
        "gaps": pa.array([None if v < 30 else float(v) for v in whole]),
        "huge dates": pa.array([2**62] * rows, pa.int64()).cast(pa.timestamp("us"), safe=False),
    }


def parquet_file(rng: np.random.Generator) -> bytes:
    rows = int(rng.integers(0, 40))
    table: dict = {name: pa.array(values) for name, values in good_table(rng, rows).items()}
    odd = odd_columns(rng, rows)
    for name in COLUMNS:
        if rng.random() < 0.25:
            table[name] = odd[str(rng.choice(list(odd)))]
    if rng.random() < 0.1:
        del table[str(rng.choice(COLUMNS))]
    file = io.BytesIO()
    parquet.write_table(pa.table(table), file)
    return damaged(rng, file.getvalue())


# ---- one table ----


def command(*arguments: str) -> tuple[int | str | None, str, str]:
    """The program in this process: exit code, standard output and standard error."""
    out, error = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    previous = sys.argv
    sys.argv = ["cglb", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            try:
                cglb.cli.main()
                code: int | str | None = 0
            except SystemExit as stop:
                code = stop.code
        out.flush()
    finally:
        sys.argv = previous
    return code, out.buffer.getvalue().decode(), error.getvalue()


def try_table(seed: int, folder: Path, model: Path) -> str:
    """One table: what became of it. An exception, or a result that is not whole, is an error.

    Raises:
        AssertionError: with the seed.
    """
    rng = np.random.default_rng(seed)
    path = folder / "table"
    path.write_bytes(csv_file(rng) if rng.random() < 0.7 else parquet_file(rng))
    before = {file.name for file in folder.iterdir()}
    result = folder / "result"
    if seed % FIT_EVERY == 0:
        what = "fit"
        settings = ("--method", "exact", "--max-steps", "1")
        code, _, error = command("fit", str(path), "--target", "y", "--model", str(result), *settings)
    else:
        what = "predict"
        skip = ("--skip-missing",) if rng.random() < 0.3 else ()
        keep = ("--keep", "*") if rng.random() < 0.2 else ()
        code, _, error = command("predict", str(model), str(path), "--output", str(result), *skip, *keep)
    after = {file.name for file in folder.iterdir()}
    assert "Traceback" not in error, (seed, error)
    if code == 0:
        assert after == {*before, "result"}, (seed, after)
        if what == "fit":
            GPRegressor.load(result)
        else:
            lines = list(csv.reader(result.open(newline="")))
            assert lines[0][-4:] == ["mean", "std", "lower", "upper"], seed
            assert all(np.isfinite(float(cell)) for line in lines[1:] for cell in line[-4:] if cell), (
                seed
            )
            assert f"{len(lines) - 1} rows predicted" in error, (seed, error)
        result.unlink()
        return f"{what}: done"
    assert code == 2, (seed, code, error)
    assert error.startswith("Error: "), (seed, error)
    assert len(error) > len("Error: \n"), seed
    assert after == before, (seed, after)
    return f"{what}: refused"


def make_model(folder: Path) -> Path:
    """A model of a good table."""
    rng = np.random.default_rng(0)
    table = good_table(rng, 40)
    y = table.pop("y")
    path = folder / "model"
    GPRegressor("exact", max_steps=1).fit(table, y).save(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the counts")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        model = make_model(Path(name))
        folder = Path(name) / "work"
        folder.mkdir()
        for seed in range(options.seed, options.seed + options.tables):
            counts[try_table(seed, folder, model)] += 1
            if counts.total() % 500 == 0:
                print(f"{counts.total():6d}  so far", flush=True)
    if options.json is not None:
        settings = {"tables": options.tables, "seed": options.seed}
        options.json.write_text(json.dumps({"settings": settings, "counts": counts}, indent=1) + "\n")
    for outcome, count in sorted(counts.items()):
        print(f"{count:6d}  {outcome}")
    print(f"{counts.total():6d}  tables, no traceback and no partial file")


if __name__ == "__main__":
    main()
