"""Files: what was written comes back to the bit, and anything else is refused in plain words."""

import functools
import json
import os
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.exceptions import NotFittedError

import cglb
from cglb import GPRegressor, store
from cglb.kernels import Product, Scaled, Sum
from cglb.store import StoreError, kernel_from_json, kernel_to_json

X, Y, _ = problems.data(n=40, d=2, m=8)
NEW = np.random.default_rng(3).normal(size=(7, 2))
METHODS = ("cglb", "sgpr", "exact")


# ---- the format ----

text = st.text(max_size=8)
documents = st.dictionaries(
    text,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)
arrays = st.dictionaries(
    st.text("abc._", min_size=1, max_size=6),
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.int64]),
        hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4),
    ),
    max_size=3,
)


@given(documents, arrays)
def test_a_file_gives_back_what_was_written_to_the_bit(tmp_path, document, arrays):
    store.write(tmp_path / "file", "model", 1, document, arrays)
    found, found_arrays = store.read(tmp_path / "file", "model", 1)
    assert found == document
    assert found_arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found_arrays[name].dtype == array.dtype
        assert found_arrays[name].shape == array.shape
        assert found_arrays[name].tobytes() == array.tobytes()


def test_an_array_that_is_a_view_is_written_in_order(tmp_path):
    array = np.arange(12.0).reshape(3, 4).T[::2]
    store.write(tmp_path / "file", "model", 1, {}, {"a": array})
    np.testing.assert_array_equal(store.read(tmp_path / "file", "model", 1)[1]["a"], array)


SMALL = ({"bound": -1.5, "name": "ü"}, {"a": np.linspace(0.0, 1.0, 5), "b": np.arange(3)})


@pytest.fixture
def path(tmp_path):
    store.write(tmp_path / "file", "model", 1, *SMALL)
    return tmp_path / "file"


@given(st.data())
def test_no_damaged_byte_goes_unnoticed(path, data):
    store.write(path, "model", 1, *SMALL)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(content))
    try:
        document, found = store.read(path, "model", 1)
    except StoreError:
        return
    # only a space between values of the header may change without a change in what it says
    assert chr(content[position]).isspace()
    assert document == SMALL[0]
    for name, array in SMALL[1].items():
        np.testing.assert_array_equal(found[name], array)


@given(st.floats(0.0, 1.0, exclude_max=True))
def test_a_truncated_file_is_refused(path, share):
    store.write(path, "model", 1, *SMALL)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(StoreError, match="damaged"):
        store.read(path, "model", 1)


def test_changed_numbers_are_damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"damaged.*checksum"):
        store.read(path, "model", 1)


def test_another_kind_is_named(path):
    with pytest.raises(StoreError, match="not a cglb checkpoint: found model"):
        store.read(path, "checkpoint", 1)


def test_another_version_says_which_one_it_is_and_which_one_is_read(path):
    with pytest.raises(StoreError, match=r"version 1.*reads version 2"):
        store.read(path, "model", 2)


def test_the_safetensors_file_of_another_program_is_foreign(tmp_path):
    save_file({"weights": np.ones(3)}, tmp_path / "other", {"format": "pt"})
    with pytest.raises(StoreError, match="not a cglb model"):
        store.read(tmp_path / "other", "model", 1)


@pytest.mark.parametrize("content", [b"", b"hello", b"\0" * 64, pickle.dumps({"a": 1})])
def test_other_content_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(StoreError, match="damaged or not a safetensors file"):
        store.read(tmp_path / "file", "model", 1)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        store.read(tmp_path / "nowhere", "model", 1)
    with pytest.raises(FileNotFoundError):
        store.read(tmp_path, "model", 1)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_alone(path, moment, monkeypatch):
    before = path.read_bytes()

    def broken(*args):
        raise OSError("broken")

    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (type(path), "replace")}[moment], broken)
    with pytest.raises(OSError, match="broken"):
        store.write(path, "model", 1, {"new": True}, {})
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_folders_are_made(tmp_path):
    store.write(tmp_path / "a" / "b" / "file", "model", 1, *SMALL)
    assert store.read(tmp_path / "a" / "b" / "file", "model", 1)[0] == SMALL[0]


# ---- kernels ----


def later(build, *parts):
    """A strategy of functions that build a kernel: the test calls them, not the strategy."""
    return st.tuples(*parts).map(lambda p: lambda: build(*(q() if callable(q) else q for q in p)))


positive = st.floats(1e-6, 1e6)
pair = st.tuples(positive, positive).map(np.array)
stationary = (cglb.RBF, cglb.Matern12, cglb.Matern32, cglb.Matern52)
simple = st.one_of(
    *(later(kind, positive | pair, positive) for kind in stationary),
    later(cglb.RationalQuadratic, positive, positive, positive),
    later(cglb.Periodic, positive, positive, positive),
    later(cglb.Linear, pair),
    later(cglb.Constant, positive),
    later(lambda length, column: cglb.RBF(length).on([column]), positive, st.integers(0, 1)),
)
kernels = st.recursive(
    simple,
    lambda inner: st.one_of(
        later(Sum, inner, inner), later(Product, inner, inner), later(Scaled, inner, positive)
    ),
    max_leaves=4,
)


@given(kernels)
def test_every_kernel_survives_json_to_the_bit(build):
    kernel = build()
    again = kernel_from_json(json.loads(json.dumps(kernel_to_json(kernel))))
    assert jax.tree.structure(again) == jax.tree.structure(kernel)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(kernel), strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


class Cosine(cglb.Kernel):
    """A kernel of one's own."""

    def between(self, X1, X2):
        return jnp.cos(X1[:, :1] - X2[:, :1].T)

    def diag(self, X):
        return jnp.ones(X.shape[0], dtype=X.dtype)


class RBF(cglb.RBF):
    """Not cglb's, whatever its name."""


@pytest.mark.parametrize("kernel", [Cosine(), cglb.RBF(1.0) + 2.0 * Cosine(), RBF(1.0)])
def test_a_kernel_of_ones_own_cannot_be_written_and_the_error_says_what_to_do(kernel):
    with pytest.raises(StoreError, match=r"kernel of your own.*construct"):
        kernel_to_json(kernel)


@pytest.mark.parametrize("name", ["Unheard", "parameter", "as_parameter"])
def test_a_file_cannot_call_for_anything_but_a_kernel(name):
    with pytest.raises(StoreError, match=name):
        kernel_from_json({"kernel": name, "fields": {}})


# ---- models ----


@functools.cache
def fitted(method):
    return GPRegressor(method, num_inducing=8, max_steps=3, random_state=0).fit(X, Y)


def reloaded(model, path):
    model.save(path)
    return GPRegressor.load(path)


@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_model_predicts_the_same_bits(method, tmp_path):
    model = fitted(method)
    again = reloaded(model, tmp_path / "model")
    for answer in (
        lambda m: m.predict(NEW),
        lambda m: m.predict(NEW, return_std=True),
        lambda m: m.predict(NEW, return_cov=True),
        lambda m: m.predict_f(NEW, return_std=True),
        lambda m: m.predict_interval(NEW),
        lambda m: m.sample_y(NEW, 3, random_state=1),
    ):
        for one, other in zip(
            jax.tree.leaves(answer(again)), jax.tree.leaves(answer(model)), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    assert again.evidence() == model.evidence()


@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_model_knows_all_that_it_knew(method, tmp_path):
    model = fitted(method)
    again = reloaded(model, tmp_path / "model")
    assert again.get_params() == model.get_params()
    assert again.history_ == model.history_
    assert again.fit_report_ == model.fit_report_
    assert str(again.fit_report_) == str(model.fit_report_)
    assert again.relevance_ == model.relevance_
    assert (again.n_iter_, again.n_features_in_) == (model.n_iter_, model.n_features_in_)


def test_a_loaded_model_can_be_updated(tmp_path):
    model, again = (reloaded(fitted("cglb"), tmp_path / "model") for _ in range(2))
    y = np.sin(NEW[:, 0])
    again.save(tmp_path / "again")
    model.update(NEW, y)
    again = GPRegressor.load(tmp_path / "again").update(NEW, y)
    np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))
    assert not np.array_equal(model.predict(NEW), fitted("cglb").predict(NEW))


def test_an_updated_model_keeps_its_rows_in_the_file(tmp_path):
    model = reloaded(fitted("exact"), tmp_path / "model").update(NEW, np.sin(NEW[:, 0]))
    again = reloaded(model, tmp_path / "updated")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_feature_names_and_a_composite_kernel_survive(tmp_path):
    import pandas as pd

    kernel = 0.5 * cglb.RBF([1.0, 2.0]) + cglb.Linear([0.3, 0.4]) * cglb.Matern32(1.0).on([1])
    table = pd.DataFrame(X, columns=["length", "width"])
    generator = np.random.RandomState(0)
    model = GPRegressor("exact", kernel, max_steps=1, random_state=generator).fit(table, Y)
    again = reloaded(model, tmp_path / "model")
    assert list(again.feature_names_in_) == ["length", "width"]
    assert again.relevance_ == model.relevance_
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
    assert kernel_to_json(again.kernel) == kernel_to_json(kernel)
    assert again.random_state is None  # a generator has no place in a file
    with pytest.raises(ValueError, match="feature names"):
        again.predict(table.rename(columns={"width": "depth"}))


def test_a_subclass_loads_as_itself(tmp_path):
    class Mine(GPRegressor):
        pass

    fitted("exact").save(tmp_path / "model")
    assert type(Mine.load(tmp_path / "model")) is Mine


def test_a_model_with_a_kernel_of_ones_own_is_refused_before_anything_is_written(tmp_path):
    model = GPRegressor("exact", Cosine() + cglb.RBF(1.0), max_steps=1).fit(X, Y)
    with pytest.raises(StoreError, match="kernel of your own"):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_only_a_fitted_model_can_be_saved(tmp_path):
    with pytest.raises(NotFittedError):
        GPRegressor().save(tmp_path / "model")


def test_a_model_file_is_data_and_not_a_program(tmp_path, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("pickle")

    for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    again = reloaded(fitted("sgpr"), tmp_path / "model")
    np.testing.assert_array_equal(again.predict(NEW), fitted("sgpr").predict(NEW))
    with safe_open(tmp_path / "model", framework="numpy") as file:
        header = file.metadata()
    assert {"format": "cglb", "kind": "model", "version": "1"}.items() <= header.items()
    assert json.loads(header["document"])["settings"]["method"] == "sgpr"


def test_damage_to_a_model_file_is_an_error_and_not_a_wrong_prediction(tmp_path):
    fitted("cglb").save(tmp_path / "model")
    content = bytearray((tmp_path / "model").read_bytes())
    content[-100] ^= 0x10
    (tmp_path / "model").write_bytes(bytes(content))
    with pytest.raises(StoreError, match="damaged"):
        GPRegressor.load(tmp_path / "model")


def test_a_checkpoint_is_not_a_model(tmp_path):
    GPRegressor("exact", max_steps=1, checkpoint=tmp_path / "fit").fit(X, Y)
    with pytest.raises(StoreError, match="not a cglb model: found checkpoint"):
        GPRegressor.load(tmp_path / "fit")
