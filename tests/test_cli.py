"""The command line on files: fit, predict, ask, compare; exit codes; files are whole or absent."""

import csv
import gzip
import io
import json
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import test_tables
from typer.testing import CliRunner

import cglb.cli
from cglb import GPRegressor
from cglb.cli.common import Talk

N = test_tables.N
RAW = {**test_tables.RAW, "y": test_tables.Y}
QUICK = ("--method", "exact", "--max-steps", 2)


def run(*arguments, standard_input=None):
    """The program in this process: exit code, standard output, standard error."""
    result = CliRunner().invoke(cglb.cli.app, list(map(str, arguments)), input=standard_input)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        with pytest.raises(SystemExit) as stop:
            _main(result.exception)
        return SimpleNamespace(code=stop.value.code, out=result.stdout, error=str(result.exception))
    return SimpleNamespace(code=result.exit_code, out=result.stdout, error=result.stderr)


def _main(exception):
    """What `main` makes of an exception; it passes on what is a bug."""

    def app():
        raise exception

    original, cglb.cli.app = cglb.cli.app, app
    try:
        cglb.cli.main()
    finally:
        cglb.cli.app = original


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the table in every format, and a model of it."""
    folder = tmp_path_factory.mktemp("cli")
    frame = pd.DataFrame(RAW)
    frame.to_csv(folder / "raw.csv", index=False)
    frame.to_csv(folder / "raw.csv.gz", index=False)
    frame.to_csv(folder / "semicolon.csv", index=False, sep=";")
    frame.to_parquet(folder / "raw.parquet")
    done = run("fit", folder / "raw.csv", "--target", "y", "--model", folder / "model", *QUICK)
    assert done.code == 0
    assert "colour holds text" in done.error
    assert "place is constant" in done.error
    assert "The log marginal likelihood is" in done.out
    return folder


def predictions(text):
    rows = list(csv.DictReader(io.StringIO(text)))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


@pytest.fixture(scope="module")
def expected():
    frame = pd.DataFrame(RAW).drop(columns="y")
    model = GPRegressor("exact", max_steps=2).fit(frame, RAW["y"])
    mean, std = model.predict(frame, return_std=True)
    low, high = model.predict_interval(frame)
    return {"mean": mean, "std": std, "lower": low, "upper": high}


@pytest.mark.parametrize("name", ["raw.csv", "raw.csv.gz", "semicolon.csv", "raw.parquet"])
def test_predictions_from_any_file_are_those_of_python(folder, expected, name):
    done = run("predict", folder / "model", folder / name)
    assert done.code == 0
    found = predictions(done.out)
    for column, values in expected.items():
        np.testing.assert_array_equal(found[column], values)


@pytest.mark.parametrize("name", ["raw.csv", "raw.parquet"])
def test_standard_input_is_a_file_too(folder, expected, name):
    done = run("predict", folder / "model", "-", standard_input=(folder / name).read_bytes())
    np.testing.assert_array_equal(predictions(done.out)["mean"], expected["mean"])


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "out.parquet"])
def test_predictions_go_to_any_file(folder, expected, name, tmp_path):
    done = run("predict", folder / "model", folder / "raw.csv", "--output", tmp_path / name)
    assert done.code == 0
    read = pd.read_parquet if name.endswith("parquet") else pd.read_csv
    found = read(tmp_path / name)
    np.testing.assert_array_equal(found["mean"], expected["mean"])
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_chunks_change_nothing(folder, expected, monkeypatch):
    monkeypatch.setattr("cglb.data.files.CHUNK_ROWS", 7)
    done = run("predict", folder / "model", folder / "raw.csv")
    # BLAS adds up in another order for another number of rows, and little noise makes large weights
    np.testing.assert_allclose(predictions(done.out)["mean"], expected["mean"], rtol=1e-8)


def test_a_raw_table_goes_round_as_in_python(gappy, tmp_path):
    """Text, booleans, dates, gaps and a constant: fitted here, predicted in another process."""
    model = tmp_path / "model"
    assert run("fit", gappy, "-t", "y", "-o", model, "--impute", *QUICK).code == 0
    command = [sys.executable, "-m", "cglb", "predict", str(model), str(gappy)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    frame = pd.read_csv(gappy)
    inputs = frame.drop(columns="y")
    assert inputs.isna().sum().sum() == 2
    same = GPRegressor("exact", max_steps=2, impute=True).fit(inputs, frame["y"])
    mean, std = same.predict(inputs, return_std=True)
    found = predictions(done.stdout)
    np.testing.assert_array_equal(found["mean"], mean)
    np.testing.assert_array_equal(found["std"], std)
    np.testing.assert_array_equal(GPRegressor.load(model).predict(inputs), mean)


# ---- what is printed ----


def test_results_as_json(folder):
    found = json.loads(run("evidence", folder / "model", "--json").out)
    assert found["lower"] <= found["upper"]
    facts = json.loads(run("info", folder / "model", "--json").out)
    assert facts["target"] == "y"
    assert facts["columns"]["colour"] == "text"
    assert max(facts["relevance"].values()) == 1.0
    text = run("info", folder / "model").out
    assert "target y" in text
    assert "colour" in text


def test_predictions_as_json(folder, expected, tmp_path, gappy):
    rows = json.loads(run("predict", folder / "model", folder / "raw.csv", "--json").out)
    assert [row["mean"] for row in rows] == expected["mean"].tolist()
    skipped = run("predict", folder / "model", gappy, "--skip-missing", "--json")
    assert json.loads(skipped.out)[0] == dict.fromkeys(("mean", "std", "lower", "upper"))
    out = tmp_path / "out.csv"
    done = run("predict", folder / "model", folder / "raw.csv", "-o", out, "--json", "--quiet")
    facts = json.loads(done.out)
    assert facts["rows"] == N
    assert facts["output"] == str(out)
    assert out.read_text().startswith("mean,std,lower,upper\n")


@pytest.mark.parametrize("name", ["raw.csv", "raw.parquet"])
def test_columns_are_copied_next_to_their_predictions(folder, expected, name, tmp_path):
    arguments = ("predict", folder / "model", folder / name, "--keep", "day", "-k", "c*")
    found = pd.read_csv(io.StringIO(run(*arguments).out))
    assert list(found) == ["colour", "day", "count", "mean", "std", "lower", "upper"]
    assert found["colour"].tolist() == RAW["colour"]
    assert found["day"].tolist() == [str(day) for day in RAW["day"]]
    np.testing.assert_array_equal(found["mean"], expected["mean"])
    assert run(*arguments, "-o", tmp_path / "out.parquet").code == 0
    assert pd.read_parquet(tmp_path / "out.parquet")["colour"].tolist() == RAW["colour"]
    assert "--keep 'q' fits no column" in run(*arguments, "--keep", "q").error


def test_every_command_that_prints_a_result_knows_json():
    for command in cglb.cli.app.registered_commands:
        assert "--json" in run(command.callback.__name__, "--help").out


def test_the_version_and_completion_are_there():
    assert run("--version").out == f"cglb {cglb.__version__}\n"
    assert "--install-completion" in run("--help").out
    asked = {"_CGLB_COMPLETE": "complete_bash", "COMP_WORDS": "cglb co", "COMP_CWORD": "1"}
    assert CliRunner().invoke(cglb.cli.app, [], prog_name="cglb", env=asked).output == "compare\n"


def test_a_number_that_is_not_finite_is_null(capsys):
    Talk(json=True).result({"lower": -np.inf, "fit": {"x": [np.nan, 1.5]}}, "")
    assert json.loads(capsys.readouterr().out) == {"lower": None, "fit": {"x": [None, 1.5]}}


def test_a_tolerance_that_is_not_reached_is_exit_code_1(folder):
    again = folder / "sparse"
    few = ("--method", "cglb", "--num-inducing", 4, "--max-steps", 1)
    assert (
        run("fit", folder / "raw.csv", "-t", "y", "-o", again, "-c", "speed", "-c", "c*", *few).code == 0
    )
    assert run("evidence", again, "--tolerance", 1e9).code == 0
    done = run("evidence", again, "--tolerance", 1e-300, "--max-seconds", 1e-9)
    assert done.code == 1
    assert "Wider than --tolerance" in done.error


def test_models_are_ranked(folder):
    arguments = ("compare", folder / "raw.csv", "-t", "y", "-c", "speed", *QUICK)
    done = run(*arguments, "--kernels", "matern32,RBF", "--json")
    found = json.loads(done.out)
    assert {entry["kernel"] for entry in found["ranking"]} == {"matern32", "RBF"}
    assert "Fitting RBF" in done.error
    assert run(*arguments, "--kernels", "matern32").code == 2


def test_quiet_prints_results_only(folder, tmp_path):
    model = tmp_path / "model"
    done = run(
        "fit", folder / "raw.csv", "-t", "y", "-o", model, "-c", "colour", *QUICK, "--quiet", "--json"
    )
    assert done.error == ""
    assert json.loads(done.out)["columns"] == ["colour"]


def test_columns_are_chosen_by_name_and_glob(folder, tmp_path):
    choose = ("--columns", "s*", "--columns", "o*", "--exclude", "o*")
    done = run("fit", folder / "raw.csv", "-t", "y", "-o", tmp_path / "m", *choose, *QUICK, "--json")
    assert json.loads(done.out)["columns"] == ["speed"]


def test_a_time_budget_ends_training(folder, tmp_path):
    arguments = ("fit", folder / "raw.csv", "-t", "y", "-o", tmp_path / "m", "-c", "speed")
    done = run(*arguments, *QUICK[:2], "--max-seconds", 1e-9, "--json")
    assert json.loads(done.out)["fit"]["stop"] == "time limit"


def test_a_report_of_held_out_rows_is_written(folder, tmp_path):
    page = tmp_path / "report.html"
    arguments = ("report", folder / "model", "--data", folder / "raw.csv", "--output", page, "--json")
    found = json.loads(run(*arguments).out)
    assert found["how"] == f"{N} rows that training did not see"
    assert page.read_text().endswith("</html>\n")
    assert run(*arguments, "--target", "colour").code == 2


def test_the_demo_runs_and_shows_its_commands(tmp_path):
    done = run("demo", "--output", tmp_path / "demo", "--rows", 45, "--max-steps", 2)
    assert done.code == 0
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    assert names == {"arm-train.csv", "arm-test.csv", "arm.model", "predictions.csv", "report.html"}
    assert [line.split()[2] for line in done.out.splitlines() if line.startswith("$")] == [
        "fit",
        "predict",
        "report",
    ]
    files = json.loads(
        run("demo", "-o", tmp_path / "demo", "--rows", 45, "--max-steps", 2, "--json").out
    )
    assert files["model"] == str(tmp_path / "demo" / "arm.model")


# ---- gaps ----


@pytest.fixture
def gappy(tmp_path):
    path = tmp_path / "gappy.csv"
    gaps = {"speed": [None, *RAW["speed"][1:]], "colour": [None, *RAW["colour"][1:]]}
    pd.DataFrame({**RAW, **gaps}).to_csv(path, index=False)
    return path


def test_gaps_are_named_dropped_or_filled(gappy, tmp_path):
    arguments = ("fit", gappy, "-t", "y", "-o", tmp_path / "model", *QUICK)
    done = run(*arguments)
    assert done.code == 2
    assert "speed (1), colour (1)" in done.error
    assert "--impute" in done.error
    assert not (tmp_path / "model").exists()
    assert json.loads(run(*arguments, "--drop-missing", "--json").out)["rows"] == N - 1
    assert json.loads(run(*arguments, "--impute", "--json").out)["rows"] == N
    assert run("predict", tmp_path / "model", gappy).code == 0


def test_rows_with_gaps_are_skipped_on_request(folder, gappy):
    refused = run("predict", folder / "model", gappy)
    assert (refused.code, refused.out) == (2, "")
    assert "--skip-missing" in refused.error
    done = run("predict", folder / "model", gappy, "--skip-missing")
    lines = done.out.splitlines()
    assert lines[1] == ",,,"
    assert len(lines) == N + 1
    assert "" not in lines[2].split(",")
    assert f"{N} rows predicted, 1 of them skipped" in done.error


def test_a_gap_in_the_target_is_counted_or_dropped(folder, tmp_path):
    table = tmp_path / "gap.csv"
    pd.DataFrame({**RAW, "y": [None, *RAW["y"][1:]]}).to_csv(table, index=False)
    arguments = ("-t", "y", "-c", "speed", *QUICK)
    done = run("fit", table, *arguments, "-o", tmp_path / "m")
    assert done.code == 2
    assert f"1 of {N} targets are missing" in done.error
    found = run("fit", table, *arguments, "-o", tmp_path / "m", "--drop-missing", "--json")
    assert json.loads(found.out)["rows"] == N - 1
    assert "drop-missing" in run("compare", table, *arguments).error
    assert run("compare", table, *arguments, "--drop-missing").code == 0


# ---- what cannot be used ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fit", "absent.csv", "-t", "y", "-o", "m"), "absent.csv cannot be read"),
        (("fit", "raw.csv", "-t", "z", "-o", "m"), "--target 'z'.*no such column.*'speed'"),
        (("fit", "raw.csv", "-t", "colour", "-o", "m"), "--target 'colour' holds texts"),
        (("fit", "raw.csv", "-t", "y", "-o", "m", "-x", "q*"), r"--exclude 'q\*' fits no column"),
        (("fit", "raw.csv", "-t", "y", "-o", "m", "-x", "*"), "No column is left"),
        (("fit", "raw.csv", "-t", "y", "-o", "m", "--kernel", "nonsense"), "no kernel called"),
        (("fit", "raw.csv", "-t", "y", "-o", "m", "--resume"), "no checkpoint"),
        (("fit", "raw.csv", "-t", "y", "-o", "no/such/m"), "no folder"),
        (("predict", "raw.csv", "raw.csv"), "raw.csv is damaged or not a safetensors file"),
        (("predict", "model", "narrow.csv"), "no column 'speed', 'colour'"),
        (("predict", "model", "raw.csv", "--level", "2"), "--level must lie between"),
        (("predict", "model", "raw.csv", "--variance", "broad"), "variance must be one of.*'broad'"),
        (("predict", "model", "raw.csv", "-o", "no/such/file"), "cannot be written"),
        (("evidence", "absent"), "There is no file"),
    ],
)
def test_what_cannot_be_used_is_named_and_exit_code_2(folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    (folder / "narrow.csv").write_text("a\n1\n")
    before = sorted(path.name for path in folder.iterdir())
    done = run(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert re.search(words, done.error.replace("\n", " "))
    assert sorted(path.name for path in folder.iterdir()) == before


def test_an_error_in_a_later_chunk_leaves_no_file(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("cglb.data.files.CHUNK_ROWS", 10)
    lines = (folder / "raw.csv").read_text().splitlines()
    lines[25] = lines[25].replace(lines[25].split(",")[0], "fast", 1)
    (tmp_path / "bad.csv").write_text("\n".join(lines))
    out = tmp_path / "out.csv"
    out.write_text("old")
    done = run("predict", folder / "model", tmp_path / "bad.csv", "-o", out)
    assert done.code == 2
    assert "'speed' must hold a number" in done.error
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "out.csv"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"a,b\n", "no rows"),
        (b"a,b\n1,2\n3\n", "Line 3 of .* has 1 fields, but there are 2"),
        (b"a,a\n1,2\n", "more than one column 'a'"),
        (b"1,2\n3,4\n", "only numbers.*--no-header"),
        (b"a,b\n\xff\xfe,2\n", "not UTF-8"),
        (gzip.compress(b"a,b\n1,2\n" * 100, mtime=0)[:-20], "not a whole gzip file"),
        (b"PAR1 and nothing else", "cannot be read as a Parquet file"),
        (b'a,b\n"1,2\n', "Line 2 of"),
    ],
)
def test_a_file_that_is_not_a_table_says_why(tmp_path, content, words):
    (tmp_path / "file").write_bytes(content)
    done = run("fit", tmp_path / "file", "-t", "b", "-o", tmp_path / "m", *QUICK)
    assert done.code == 2
    assert re.search(words, done.error)
    assert not (tmp_path / "m").exists()


def test_a_file_without_names(tmp_path):
    np.savetxt(tmp_path / "rows.csv", np.random.default_rng(0).normal(size=(20, 3)), delimiter=",")
    arguments = ("fit", tmp_path / "rows.csv", "-t", "x3", "-o", tmp_path / "m", "--no-header", *QUICK)
    found = json.loads(run(*arguments, "--json").out)
    assert found["columns"] == ["x1", "x2"]
    assert found["rows"] == 20
    assert run("predict", tmp_path / "m", tmp_path / "rows.csv", "--no-header").out.count("\n") == 21


def test_a_bug_is_not_hidden():
    with pytest.raises(TypeError):
        _main(TypeError("a bug"))


# ---- interruption ----


def test_an_interrupted_fit_leaves_a_checkpoint_and_resumes(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(
        y=np.sin(X[:, 0]) + 0.1 * rng.normal(size=300)
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    model, checkpoint = tmp_path / "m", tmp_path / "m.checkpoint"
    command = [sys.executable, "-m", "cglb", "fit", str(tmp_path / "t.csv"), "-t", "y", "-o", str(model)]
    command += ["--max-steps", "100000", "--num-inducing", "20", "--kernel", "rbf"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    if process.returncode == 0:
        pytest.skip("the fit was over before it could be interrupted")
    assert process.returncode == 1, error
    assert "--resume" in error
    assert checkpoint.exists()
    assert not model.exists()
    again = run(*command[3:9], "--max-steps", "3", "--num-inducing", "20", "--kernel", "rbf", "--resume")
    assert again.code == 0, again.error
    assert model.exists()
    assert not checkpoint.exists()


# ---- kernels of one's own ----

OWN = '''
from cglb.kernels import Stationary


class Cauchy(Stationary, known_as="cauchy_of_mine"):
    """k(x, x') = variance / (1 + r²)."""

    def profile(self, r2):
        return 1.0 / (1.0 + r2)
'''


def test_a_model_with_a_kernel_of_ones_own_needs_its_module(folder, tmp_path, monkeypatch):
    """A file never decides what is imported; the user may."""
    (tmp_path / "cauchy_of_mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    kernel = ("--kernel", "cauchy_of_mine")
    fit = ("fit", folder / "raw.csv", "--target", "y", "--model", "model", *kernel, *QUICK)
    assert run("--import", "cauchy_of_mine", *fit).code == 0

    def elsewhere(*arguments):
        command = [sys.executable, "-m", "cglb", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    refused = elsewhere("info", "model")
    assert refused.returncode == 2
    assert "--import" in refused.stderr
    shown = elsewhere("--import", "cauchy_of_mine", "info", "model")
    assert shown.returncode == 0, shown.stderr
    assert "Cauchy" in shown.stdout
    unknown = run("--import", "there_is_no_such_module", "info", "model")
    assert unknown.code == 2
    assert "there_is_no_such_module" in unknown.error
