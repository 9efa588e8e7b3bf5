"""Bad files, two users of one file, forks and odd budgets: one documented error, and nothing is lost."""

import copy
import gzip
import os
import threading
import warnings

import numpy as np
import problems
import pytest
from safetensors.numpy import save as to_bytes

import cglb
from cglb.core.errors import DatasetError, StoreError
from cglb.data import datasets
from cglb.experiments import runs
from cglb.experiments.kinds import parse_methods
from cglb.experiments.spec import Budget, plan
from cglb.io import tensorfile
from cglb.io.lock import exclusive
from cglb.regressor.file import KIND, VERSION
from cglb.training import checkpoint

X, Y, _ = problems.data()
GP = cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01)


@pytest.fixture(scope="module")
def model():
    return cglb.GPRegressor("cglb", num_inducing=8, max_steps=2, schedule="direct").fit(X, Y)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    model.save(path)
    return tensorfile.read(path, KIND, VERSION)


# ---- model files that something else wrote ----

HOSTILE = (None, "x", -1.0, float("nan"), 0, [], {}, [1.0, 2.0], {"kind": "tuple"}, 1e400, True)


def leaves(document, place=()):
    """The places of all values in nested tables and lists."""
    yield place
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from leaves(value, (*place, key))


def with_value(document, place, value):
    changed = copy.deepcopy(document)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def loads_as_saved_or_refused(path, model, document, arrays):
    """Write a whole file with a valid checksum; it must be refused, or predict as the model did."""
    tensorfile.write(path, KIND, VERSION, document, arrays)
    try:
        found = cglb.GPRegressor.load(path)
    except StoreError:
        return "refused"
    mean, std = found.predict(X, return_std=True)
    expected = model.predict(X, return_std=True)
    return (
        "as saved" if np.array_equal(mean, expected[0]) and np.array_equal(std, expected[1]) else "wrong"
    )


def test_a_document_with_any_other_value_is_refused_or_predicts_as_saved(model, saved, tmp_path):
    document, arrays = saved
    rng = np.random.default_rng(0)
    # what predictions do not use may be anything: the report, the history, settings
    used = ("method", "model", "posterior", "y_scale_", "n_features_in_", "n_iter_")
    places = [place for place in leaves(document) if place and place[0] in used]
    outcomes = []
    for number in rng.permutation(len(places))[:60]:
        value = HOSTILE[rng.integers(len(HOSTILE))]
        changed = with_value(document, places[number], value)
        outcomes.append(loads_as_saved_or_refused(tmp_path / "m", model, changed, arrays))
    assert outcomes.count("refused") > 40
    assert loads_as_saved_or_refused(tmp_path / "m", model, document, arrays) == "as saved"
    assert "wrong" not in outcomes


@pytest.mark.parametrize(
    "name", ["_X", "_y", "X_scale_", "_Z", "_v", "posterior.weights", "posterior.LB"]
)
@pytest.mark.parametrize("spoil", ["shape", "dtype", "nan", "huge", "empty"])
def test_arrays_of_other_shapes_dtypes_and_ranges_are_refused(saved, tmp_path, name, spoil):
    document, arrays = saved
    array = arrays[name]
    changed = {
        "shape": np.concatenate([array, array[:1]]),
        "dtype": array.astype(np.float32),
        "nan": np.where(np.arange(array.size).reshape(array.shape) == 0, np.nan, array),
        "huge": np.full(array.shape, 1e308),  # its square is infinite
        "empty": array[:0],
    }[spoil]
    tensorfile.write(tmp_path / "m", KIND, VERSION, document, {**arrays, name: changed})
    with pytest.raises(StoreError, match=r"Save the model again"):
        cglb.GPRegressor.load(tmp_path / "m")


@pytest.mark.parametrize("place", [("noise",), ("mean",), ("kernel", "fields", "variance", "array", 0)])
def test_a_truth_value_is_no_number(saved, tmp_path, place):
    document, arrays = saved
    changed = with_value(document, ("model", *place), True)
    tensorfile.write(tmp_path / "m", KIND, VERSION, changed, arrays)
    with pytest.raises(StoreError, match="number"):
        cglb.GPRegressor.load(tmp_path / "m")


@pytest.mark.parametrize("name", ["_X", "_y", "X_scale_", "posterior.weights"])
def test_a_missing_array_and_a_negative_scale_are_refused(saved, tmp_path, name):
    document, arrays = saved
    kept = {key: array for key, array in arrays.items() if key != name}
    if name == "X_scale_":
        kept[name] = -arrays[name]
    tensorfile.write(tmp_path / "m", KIND, VERSION, document, kept)
    with pytest.raises(StoreError, match="Save"):
        cglb.GPRegressor.load(tmp_path / "m")


def test_a_document_that_is_not_a_table_or_too_deep_is_refused(saved, tmp_path):
    arrays = saved[1]
    for text in ("[1]", '{"settings": null}', "[" * 100_000, "{"):
        header = {"format": "cglb", "kind": KIND, "version": str(VERSION), "document": text}
        header["sha256"] = tensorfile._checksum(text, arrays)
        (tmp_path / "m").write_bytes(to_bytes(arrays, header))
        with pytest.raises(StoreError):
            cglb.GPRegressor.load(tmp_path / "m")


# ---- where files are ----


def test_a_link_is_followed_and_stays(model, tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "model")
    model.save(link)
    assert link.is_symlink()
    assert (tmp_path / "real" / "model").is_file()
    np.testing.assert_array_equal(cglb.GPRegressor.load(link).predict(X), model.predict(X))


def test_special_files_are_refused_and_left_alone(model, tmp_path):
    pipe, circle = tmp_path / "pipe", tmp_path / "circle"
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    for path in (pipe, tmp_path, circle):
        with pytest.raises(StoreError, match="another path"):
            model.save(path)
        with pytest.raises(StoreError, match="another path"):
            cglb.GPRegressor.load(path)
    assert pipe.is_fifo()


def test_threads_that_write_one_file_leave_a_whole_one(tmp_path):
    contents = [bytes([number]) * 200_000 for number in range(4)]
    failures = []

    def write(content):
        try:
            for _ in range(10):
                tensorfile.replace_file(tmp_path / "file", content)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (tmp_path / "file").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---- checkpoints ----


def test_a_checkpoint_in_use_is_refused(tmp_path):
    path = tmp_path / "checkpoint"
    refused = []

    def again(row, fit):
        with pytest.raises(StoreError, match="in use by another fit"):
            train(path)
        refused.append(row["step"])

    train(path, callback=again)
    assert refused
    assert [found.name for found in tmp_path.iterdir()] == ["checkpoint"]
    with exclusive(path), pytest.raises(StoreError, match="in use"), exclusive(path):
        pass


def train(path, **options):
    settings = {"num_inducing": 8, "max_steps": 2, "schedule": "direct", **options}
    return cglb.train(GP, X, Y, "cglb", checkpoint=path, **settings)


def test_a_checkpoint_with_other_contents_is_one_error(tmp_path):
    path = tmp_path / "checkpoint"
    train(path)
    document, arrays = tensorfile.read(path, "checkpoint", checkpoint.VERSION)
    for name in ("free", "Z"):
        for changed in (None, arrays[name][:1] * np.nan, arrays[name].reshape(1, -1)):
            kept = {key: a for key, a in {**arrays, name: changed}.items() if a is not None}
            if name == "free":
                tensorfile.write(path, "checkpoint", checkpoint.VERSION, document, kept)
                with pytest.raises(StoreError, match="Delete it"):
                    train(path)
    for key in ("history", "ending", "seconds"):
        spoilt = (
            {**document, key: "x"}
            if key != "history"
            else {k: v for k, v in document.items() if k != key}
        )
        tensorfile.write(path, "checkpoint", checkpoint.VERSION, spoilt, arrays)
        with pytest.raises(StoreError, match="Delete it"):
            train(path)


# ---- data and stores ----


def test_a_small_file_of_a_huge_table_is_refused_early(monkeypatch):
    monkeypatch.setattr(datasets, "MOST_BYTES", 1 << 20)
    bomb = gzip.compress(b"1,2\n" * (1 << 21))
    with pytest.raises(DatasetError, match="more than 1 MB of text"):
        datasets._parse("pol", bomb, "there", "Get it again.")


def test_a_garbage_line_ends_one_run_and_names_its_file(tmp_path):
    specs = plan(["yacht", "energy"], parse_methods("cglb-64"), [0])
    good, bad = (runs.Run(tmp_path, spec) for spec in specs)
    for run in (good, bad):
        run.register(Budget(2))
        run.append("history", {"step": 1, "seconds": 1.0, "bound": 0.0, "rows": 200})
    with (bad.folder / "history.jsonl").open("a") as file:
        file.write("\x00garbage\n")
    assert runs.look(good).phase == "stopped"
    state = runs.look(bad)
    assert state.phase == "damaged"
    assert str(bad.folder / "history.jsonl") in state.note
    with pytest.warns(UserWarning, match=r"Left out.*history\.jsonl is damaged: line 2"):
        assert [run.folder for run in runs.find(tmp_path)] == [good.folder]


# ---- budgets, settings, processes ----


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_budget_must_be_positive(seconds):
    with pytest.raises(ValueError, match="max_seconds must be positive"):
        cglb.train(GP, X, Y, max_seconds=seconds)
    with pytest.raises(ValueError, match="max_seconds must be positive"):
        cglb.certify(GP, X, Y, max_seconds=seconds)
    with pytest.raises(ValueError, match="max_seconds must be positive"):
        cglb.compare([GP, GP], X, Y, max_seconds=seconds)


def test_settings_changed_after_a_fit_are_noticed_and_change_nothing(model):
    changed = copy.deepcopy(model)
    expected = model.predict(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X)
        changed.predict(X)
        changed.set_params(progress=True, memory_gb=2.0).predict(X)
    changed.set_params(method="exact", max_steps=7)
    with pytest.warns(
        UserWarning, match=r"method, max_steps changed after fit.*method='cglb'.*fit again"
    ):
        found = changed.predict(X)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:This process:DeprecationWarning")
def test_a_forked_process_is_told_what_to_do():
    with cglb.float64():
        pass
    child = os.fork()
    if child == 0:
        code = 1
        try:
            cglb.certify(GP, X, Y)
        except RuntimeError as error:
            code = 0 if "spawn" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
