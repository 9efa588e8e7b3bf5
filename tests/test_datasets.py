"""Claims about the data sets. Downloads are served by a thread of this test, never the network."""

import gzip
import hashlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsRegressor

from cglb.core.errors import DatasetError
from cglb.data import arm, datasets
from cglb.data.datasets import Dataset

SHAPES = {
    "airfoil": (1503, 5),
    "bike": (17379, 17),
    "concrete": (1030, 8),
    "elevators": (16599, 18),
    "energy": (768, 8),
    "kin40k": (40000, 8),
    "pol": (15000, 26),
    "protein": (45730, 9),
    "pumadyn32nm": (8192, 32),
    "wine": (1599, 11),
    "yacht": (308, 6),
}
TABLE = np.array([[0.1, 2.0, -3.5], [4.0, 0.25, 1e-3], [7.0, 8.0, 9.0]])
CSV = "\n".join(",".join(map(repr, row)) for row in TABLE.tolist()).encode()
GOOD = gzip.compress(CSV, mtime=0)


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A made-up set "tiny", an empty cache folder, no CGLB_DATA, and an address with no server."""
    numbers = hashlib.sha256(b"3x3" + TABLE.astype("<f8").tobytes()).hexdigest()
    monkeypatch.setitem(datasets._FILE_SHA256, "tiny", hashlib.sha256(GOOD).hexdigest())
    monkeypatch.setitem(datasets._NUMBERS_SHA256, "tiny", numbers)
    monkeypatch.delenv("CGLB_DATA", raising=False)
    monkeypatch.setenv("CGLB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("CGLB_DATA_URL", f"http://127.0.0.1:{port}/{{name}}.csv.gz")
    return tmp_path / "cache" / "tiny.csv.gz"


@pytest.fixture
def server(tiny, monkeypatch):
    """A server at CGLB_DATA_URL; ``answer`` is the status, announced length and body it sends."""
    state = SimpleNamespace(asked=[], answer=(200, len(GOOD), GOOD))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.asked.append(self.path)
            status, length, body = state.answer
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            """Keep the test output quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        port = http.server_address[1]
        monkeypatch.setenv("CGLB_DATA_URL", f"http://127.0.0.1:{port}/sets/{{name}}/data.csv.gz")
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield state
        http.shutdown()


def assert_is_tiny(data: Dataset):
    np.testing.assert_array_equal(np.column_stack([data.X, data.y]), TABLE)
    assert data.feature_names == ("x1", "x2")


def test_a_download_is_cached_and_not_repeated(tiny, server):
    assert not datasets.available("tiny")
    assert_is_tiny(datasets.load("tiny", progress=False))
    assert datasets.available("tiny")
    assert_is_tiny(datasets.load("tiny"))
    assert server.asked == ["/sets/tiny/data.csv.gz"]
    assert tiny.read_bytes() == GOOD
    assert [path.name for path in tiny.parent.iterdir()] == ["tiny.csv.gz"]


def test_progress_goes_to_the_error_stream_only(server, capsys):
    assert_is_tiny(datasets.load("tiny", progress=True))
    assert capsys.readouterr().out == ""


def test_the_same_numbers_compressed_or_written_anew_are_accepted(server):
    body = gzip.compress(CSV.replace(b"4.0,", b"4,").replace(b"\n", b"\r\n"), 1, mtime=7)
    assert body != GOOD
    server.answer = (200, len(body), body)
    assert_is_tiny(datasets.load("tiny", progress=False))


OTHER = gzip.compress(CSV.replace(b"9.0", b"9.1"), mtime=0)
RESHAPED = gzip.compress(CSV.replace(b"\n", b","), mtime=0)
HALF = GOOD[: len(GOOD) // 2]
BAD_ANSWERS = {
    "one changed digit": (200, OTHER, None, "expected SHA-256 .* found .*"),
    "the same numbers in one row": (200, RESHAPED, None, "expected SHA-256 .* found .*"),
    "a page instead of a file": (200, b"<html>sign in</html>", None, "not a complete gzip'd CSV file"),
    "text instead of numbers": (200, gzip.compress(b"a,b"), None, "not a complete gzip'd CSV file"),
    "a truncated file": (200, HALF, None, "not a complete gzip'd CSV file"),
    "an interrupted download": (200, HALF, len(GOOD), f"cut short: {len(HALF)} of {len(GOOD)}"),
    "a missing file": (404, b"", None, "404"),
    "a broken server": (500, b"", None, "500"),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_a_bad_download_is_refused_and_leaves_nothing_behind(tiny, server, case):
    status, body, announced, message = BAD_ANSWERS[case]
    server.answer = (status, len(body) if announced is None else announced, body)
    with pytest.raises(DatasetError, match=message) as caught:
        datasets.load("tiny", progress=False)
    for part in ("tiny", "CGLB_DATA", str(tiny), "http://127.0.0.1"):
        assert part in str(caught.value)
    assert not tiny.parent.exists()


def test_offline_the_error_says_where_it_looked_and_what_to_do(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("CGLB_DATA", str(tmp_path / "mine"))
    with pytest.raises(DatasetError) as caught:
        datasets.load("tiny", progress=False)
    for part in ("tiny", str(tmp_path / "mine"), str(tiny), "Set CGLB_DATA to a folder with tiny"):
        assert part in str(caught.value)


def test_a_cache_that_cannot_be_written_is_named(server, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CGLB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DatasetError, match=r"to .*file.cache.* failed.*CGLB_CACHE to another"):
        datasets.load("tiny", progress=False)


def test_folders_are_searched_in_order(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("CGLB_DATA", str(tmp_path / "mine"))
    mine = tmp_path / "mine" / "tiny.csv.gz"
    assert datasets.places("tiny") == [mine, tiny]
    assert datasets.places("tiny", tmp_path) == [tmp_path / "tiny.csv.gz", tiny]
    tiny.parent.mkdir()
    tiny.write_bytes(GOOD)
    assert_is_tiny(datasets.load("tiny"))  # CGLB_DATA has no such folder: the cache serves
    mine.parent.mkdir()
    mine.write_bytes(OTHER)
    with pytest.raises(DatasetError, match=r"mine.tiny.csv.gz is not the data set tiny.*Delete"):
        datasets.load("tiny")  # a wrong file of the user's is an error, not passed over in silence
    mine.write_bytes(GOOD)
    assert_is_tiny(datasets.load("tiny"))


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    for variable in ("CGLB_DATA", "CGLB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert datasets.places("pol") == [tmp_path / "cglb" / "pol.csv.gz"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert datasets.places("pol") == [tmp_path / ".cache" / "cglb" / "pol.csv.gz"]


@pytest.mark.parametrize("address", ["https://example.org/data.csv.gz", "file:///{name}"])
def test_an_address_without_a_place_for_the_name_is_refused(tiny, monkeypatch, address):
    monkeypatch.setenv("CGLB_DATA_URL", address)
    with pytest.raises(ValueError, match=r"CGLB_DATA_URL=.*\{name\}"):
        datasets.load("tiny")


def test_an_unknown_name_lists_the_known_ones():
    for call in (datasets.load, datasets.available, datasets.places):
        with pytest.raises(ValueError, match=r"'poll'.*kin40k.*pol, .*diabetes"):
            call("poll")
    with pytest.raises(ValueError, match="diabetes"):
        datasets.bundled("pol")
    assert set(datasets.names()) == {*SHAPES, "diabetes"}


@pytest.mark.parametrize("name", SHAPES)
def test_a_real_set_has_its_shape(name):
    if not datasets.available(name):
        looked = ", ".join(map(str, datasets.places(name)))
        pytest.skip(f"data set {name} is not on this machine; looked for {looked}")
    data = datasets.load(name)
    assert data.X.shape == SHAPES[name]
    path = next(path for path in datasets.places(name) if path.is_file())
    table = np.loadtxt(path, delimiter=",")
    shape = f"{table.shape[0]}x{table.shape[1]}".encode()
    numbers = hashlib.sha256(shape + table.astype("<f8").tobytes()).hexdigest()
    assert numbers == datasets._NUMBERS_SHA256[name]  # load accepts either sum: check this one too


def test_diabetes_comes_without_any_file(tiny):
    data = datasets.load("diabetes")
    assert data.X.shape == (442, 10)
    assert data.feature_names[2] == "bmi"
    assert datasets.available("diabetes")


@given(n=st.integers(2, 60), fraction=st.floats(0.05, 0.95), seed=st.integers(0, 2**32 - 1))
def test_a_split_is_a_partition_that_its_seed_decides(n, fraction, seed):
    X, y = np.arange(2.0 * n).reshape(n, 2), np.arange(float(n))
    data = Dataset("count", X, y)
    if not 0 < round(fraction * n) < n:
        with pytest.raises(ValueError, match="fraction="):
            data.split(fraction, seed)
        return
    part, again = data.split(fraction, seed), data.split(fraction, seed)
    assert len(part.y_train) == round(fraction * n)
    assert sorted([*part.y_train, *part.y_test]) == list(y)
    np.testing.assert_array_equal(part.X_train[:, 0], 2 * part.y_train)
    np.testing.assert_array_equal(part.X_test[:, 1], 2 * part.y_test + 1)
    np.testing.assert_array_equal(part.y_train, again.y_train)


@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(1e-6, 1e6), shift=st.floats(-1e3, 1e3))
def test_standardising_uses_the_training_part_and_can_be_undone(seed, scale, shift):
    rng = np.random.default_rng(seed)
    X = shift + scale * rng.standard_normal((30, 3))
    raw = Dataset("random", X, X @ [1.0, 2.0, 3.0]).split(seed=seed)
    part, close = raw.standardised(), 1e-9 * (1 + abs(shift) + scale)
    for column in (part.X_train, part.y_train):
        np.testing.assert_allclose(column.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(column.std(axis=0), 1, rtol=1e-5)
    for new in (part, part.standardised()):  # twice is as good as once
        np.testing.assert_allclose(new.X_shift + new.X_scale * new.X_test, raw.X_test, atol=close)
        np.testing.assert_allclose(new.y_shift + new.y_scale * new.y_test, raw.y_test, atol=close)


def test_a_constant_column_is_centred_and_keeps_its_scale():
    X = np.column_stack([np.full(12, 0.1), np.arange(12.0)])
    part = Dataset("flat", X, np.full(12, 7.0)).split().standardised()
    assert part.X_scale[0] == part.y_scale == 1
    np.testing.assert_allclose(part.X_test[:, 0], 0, atol=1e-15)
    np.testing.assert_array_equal(part.y_test, 0)


def test_data_of_the_wrong_form_are_refused_by_name():
    X, y = np.zeros((3, 2)), np.zeros(3)
    wrongs: list[Any] = [(y, y), (X, X), (X, y[:2]), (X, y, ("one",))]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"mine: X must be \[n, d\]"):
            Dataset("mine", *wrong)
    with pytest.raises(ValueError, match=r"mine: 1 rows .* first is row 2"):
        Dataset("mine", X, np.array([0, 1, np.nan]))


def test_the_robot_arm_is_repeatable_of_any_size_and_has_the_noise_asked_for():
    for n in (1, 2, 1000):
        first, again, other = (datasets.robot_arm(n, seed=seed) for seed in (0, 0, 1))
        assert first.X.shape == (n, 8)
        np.testing.assert_array_equal(first.y, again.y)
        assert np.all(first.y != other.y)
    clean, noisy = datasets.robot_arm(20_000, noise=0), datasets.robot_arm(20_000, noise=0.1)
    np.testing.assert_array_equal(clean.X, noisy.X)
    assert np.std(noisy.y - clean.y) == pytest.approx(0.1 * np.std(clean.y), rel=0.03)
    assert clean.y.min() >= 0


def test_the_robot_arm_matches_the_product_of_its_link_matrices():
    angles = np.random.default_rng(1).uniform(-2, 2, size=(5, 8))
    for row, tip in zip(angles, arm._tip(angles), strict=True):
        pose = np.eye(4)
        links = zip(row, arm._LENGTHS, arm._OFFSETS, arm._TWISTS, strict=True)
        for t, a, d, twist in links:
            c, s, ca, sa = (
                np.cos(t),
                np.sin(t),
                np.cos(twist * np.pi / 2),
                np.sin(twist * np.pi / 2),
            )
            top = [[c, -s * ca, s * sa, a * c], [s, c * ca, -c * sa, a * s]]
            pose = pose @ np.array([*top, [0, sa, ca, d], [0, 0, 0, 1]])
        np.testing.assert_allclose(pose[:3, 3], tip, atol=1e-12)


def test_the_robot_arm_is_neither_linear_nor_local():
    part = datasets.robot_arm(2000).split().standardised()
    for model, least in ((LinearRegression(), 0.6), (KNeighborsRegressor(10), 0.4)):
        guess = model.fit(part.X_train, part.y_train).predict(part.X_test)
        assert np.sqrt(np.mean((guess - part.y_test) ** 2)) > least


@pytest.mark.parametrize("wrong", [{"n": 0}, {"noise": -1}, {"noise": np.nan}])
def test_an_impossible_robot_arm_is_refused(wrong):
    with pytest.raises(ValueError, match="robot_arm needs"):
        datasets.robot_arm(**wrong)
