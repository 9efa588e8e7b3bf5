"""Files: what was written comes back to the bit, and anything else is refused in plain words."""

import functools
import importlib
import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
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
from cglb import Exact, GPRegressor
from cglb.bounds.logdet import Auto, Chain, Hadamard
from cglb.core.errors import StoreError
from cglb.io import tensorfile as store
from cglb.io.kernel_json import kernel_from_json, kernel_to_json
from cglb.kernels import Power, Product, Scaled, Sum
from cglb.methods import Conditioned
from cglb.methods import base as methods_base
from cglb.posteriors.base import Posterior

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
    with pytest.raises(StoreError, match="is not a regular file"):
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
        later(Sum, inner, inner),
        later(Product, inner, inner),
        later(Scaled, inner, positive),
        later(Power, inner, st.integers(1, 3)),
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
    """A kernel of one's own, without parameters."""

    def between(self, X1, X2):
        return jnp.cos(X1[:, :1] - X2[:, :1].T)

    def diag(self, X):
        return jnp.ones(X.shape[0], dtype=X.dtype)


class Held(cglb.Kernel):
    """A kernel with fields of every kind, and a constructor that takes other arguments."""

    parts: tuple
    named: dict
    scales: Any
    order: int = eqx.field(static=True)
    label: str | None = eqx.field(static=True)
    flags: tuple = eqx.field(static=True)
    levels: list = eqx.field(static=True)

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.parts = (cglb.RBF(rng.uniform(size=2)), Cosine())
        self.named = {"line": cglb.Linear(rng.uniform()), "none": []}
        self.scales = rng.uniform(size=(2, 0)), rng.uniform(size=(2, 2)).astype(np.float32)
        self.order, self.label, self.flags, self.levels = 3, None, (True, "a", (1, 0.1)), [1, [2]]

    def between(self, X1, X2):
        return sum(part(X1, X2) for part in (*self.parts, self.named["line"]))

    def diag(self, X):
        return sum(part.diag(X) for part in (*self.parts, self.named["line"]))


# known under another name, so that "rbf" still means cglb's
class RBF(cglb.RBF, known_as="rbf of the tests"):
    """Not cglb's, whatever its name."""


@pytest.mark.parametrize("kernel", [Cosine(), cglb.RBF(1.0) + 2.0 * Cosine(), RBF(0.7), Held(0)])
def test_a_kernel_of_ones_own_survives_json_to_the_bit(kernel):
    again = kernel_from_json(json.loads(json.dumps(kernel_to_json(kernel))))
    assert type(again) is type(kernel)
    assert jax.tree.structure(again) == jax.tree.structure(kernel)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(kernel), strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def test_files_of_cglbs_kernels_do_not_depend_on_how_the_package_is_cut():
    assert kernel_to_json(cglb.RBF(1.0))["module"] == "cglb.kernels"
    assert kernel_to_json(RBF(1.0))["module"] == __name__


@pytest.mark.parametrize("value", [np.sin, 1j, np.array(["a"]), {1: 2}, (object(),)])
def test_a_field_that_no_file_can_hold_is_named(value):
    class Odd(Cosine):
        odd: Any

    with pytest.raises(StoreError, match=r"Odd cannot be saved: its field 'odd' holds an? \w+"):
        kernel_to_json(cglb.RBF(1.0) + Odd(value))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("cglb.kernels", "Unheard"),
        ("cglb.kernels", "relevance"),
        ("os", "system"),
        ("no.such.module", "Cosine"),
    ],
)
def test_a_file_cannot_call_for_anything_but_a_kernel(module, name):
    with pytest.raises(StoreError, match=f"{name}.*{module}.*Import the module that defines it"):
        kernel_from_json({"kernel": name, "module": module, "fields": {}})


def test_a_class_whose_fields_have_changed_is_refused():
    document = kernel_to_json(cglb.RBF(1.0))
    document["fields"]["width"] = document["fields"].pop("lengthscale")
    with pytest.raises(StoreError, match=r"'RBF' with the fields \['variance', 'width'\].*lengthscale"):
        kernel_from_json(document)


MODULE = """
import jax.numpy as jnp
import cglb
from cglb.core.parameters import parameter

class Slope(cglb.Kernel):
    parts: tuple
    scale: object = parameter(1.0)

    def between(self, X1, X2):
        return self.scale * (X1 @ X2.T) + sum(part(X1, X2) for part in self.parts)

    def diag(self, X):
        return self.scale * jnp.sum(X * X, axis=1) + sum(part.diag(X) for part in self.parts)
"""
LOAD = """
import sys
import numpy as np
import cglb
if sys.argv[1:]:
    import slopes
try:
    model = cglb.GPRegressor.load("model")
except cglb.core.errors.StoreError as error:
    assert "slopes" not in sys.modules  # a file does not decide what is imported
    sys.exit(str(error))
np.save("predicted.npy", model.predict(np.load("new.npy"), return_std=True))
"""


def test_a_model_with_a_kernel_of_ones_own_is_loaded_in_another_process(tmp_path, monkeypatch):
    """It must import the module of the class first: files are data, and an import runs code."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "slopes.py").write_text(MODULE)
    np.save(tmp_path / "new.npy", NEW)
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    kernel = importlib.import_module("slopes").Slope((cglb.RBF(0.8), cglb.Matern32([1.0, 2.0])), 0.3)
    model = GPRegressor("cglb", kernel, num_inducing=8, max_steps=1, schedule="direct").fit(X, Y)
    model.save(tmp_path / "model")
    source = str(Path(cglb.__file__).parents[1])
    path = os.pathsep.join([source, str(tmp_path / "library")])
    run = functools.partial(
        subprocess.run, cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    done = run([sys.executable, "-c", LOAD, "import"])
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(
        np.load(tmp_path / "predicted.npy"), model.predict(NEW, return_std=True)
    )
    refused = run([sys.executable, "-c", LOAD])
    assert "The file has a kernel 'Slope' of the module 'slopes', which is not known" in refused.stderr
    assert "Import the module that defines it before loading" in refused.stderr


# ---- models ----


@functools.cache
def fitted(method):
    return GPRegressor(method, num_inducing=8, max_steps=3, random_state=0, schedule="direct").fit(X, Y)


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


class Flat(Posterior):
    """The same mean and variance everywhere."""

    gp: cglb.GP
    level: Any
    label: str = eqx.field(static=True, default="flat")

    def _mean(self, X_star):
        return jnp.full(len(X_star), self.level)

    def _variance(self, X_star):
        return self.gp.kernel.diag(X_star)

    def _explained(self, X_star):
        return jnp.zeros((len(X_star), len(X_star)))


@dataclass(frozen=True)
class MeanOnly(Exact, name="mean-only"):
    """Trains as the exact method and predicts the mean of the targets."""

    share: float = 1.0
    bound: Any = "chain"

    def condition(self, system, y, v0=None):
        return Conditioned(Flat(system.gp, self.share * jnp.mean(y)))


@pytest.mark.parametrize("method", ["mean-only", MeanOnly(0.5, Chain(4, 2))])
def test_a_method_and_a_posterior_of_ones_own_are_saved_and_loaded(method, tmp_path):
    model = GPRegressor(method, max_steps=2).fit(X, Y + 3.0)
    again = reloaded(model, tmp_path / "model")
    assert again.method_ == model.method_
    assert again.get_params()["method"] == method
    assert type(again._posterior) is Flat
    assert again._posterior.label == "flat"
    for one, other in zip(again.predict(X, True), model.predict(X, True), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_file_names_what_must_be_defined_before_it_can_be_loaded(tmp_path, monkeypatch):
    GPRegressor("mean-only", max_steps=1).fit(X, Y).save(tmp_path / "model")
    monkeypatch.delitem(methods_base._METHODS, "mean-only")
    with pytest.raises(StoreError, match=r"mean-only.*Import the module"):
        GPRegressor.load(tmp_path / "model")


@pytest.mark.parametrize("logdet", [Chain(8, 4), Auto(8, 4), Hadamard()])
def test_log_det_bounds_given_as_objects_are_saved(logdet, tmp_path):
    model = GPRegressor(num_inducing=8, max_steps=2, logdet=logdet).fit(X, Y)
    again = reloaded(model, tmp_path / "model")
    name = getattr(again.logdet, "name", again.logdet)
    assert name == logdet.name
    np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))


def test_a_subclass_loads_as_itself(tmp_path):
    class Mine(GPRegressor):
        pass

    fitted("exact").save(tmp_path / "model")
    assert type(Mine.load(tmp_path / "model")) is Mine


def test_a_kernel_that_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    class Odd(Cosine):
        odd: Any = eqx.field(static=True)

    model = GPRegressor("exact", Odd(np.sin) + cglb.RBF(1.0), max_steps=1).fit(X, Y)
    with pytest.raises(StoreError, match="Odd cannot be saved"):
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
    assert {"format": "cglb", "kind": "model", "version": "4"}.items() <= header.items()
    assert json.loads(header["document"])["method"]["name"] == "sgpr"


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
