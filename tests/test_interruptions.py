"""A model is whole or unchanged; a full disk, a vanished folder and other cores cost next to nothing."""

import copy
import functools
import resource
import shutil
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import cglb
from cglb.compute.backend import using
from cglb.compute.cpu.backend import CPU
from cglb.io import tensorfile
from cglb.training import checkpoint

X, Y, Z = problems.data()
GP = cglb.GP(cglb.Matern32([0.8, 1.2]), 0.01)


@functools.cache
def fitted():
    return cglb.GPRegressor("cglb", num_inducing=8, max_steps=2, schedule="direct").fit(X, Y)


# ---- whole or unchanged ----


@pytest.mark.parametrize("moment", ["evaluate", "condition"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_refit_that_is_cut_off_leaves_the_estimator_as_it_was(monkeypatch, moment, error):
    """On data in other units: half of the new scaling with the old posterior once gave −1,935."""
    model = copy.deepcopy(fitted())
    before, expected = dict(vars(model)), model.predict(X, return_std=True)

    def cut_off(*_, **__):
        raise error

    monkeypatch.setattr(cglb.CGLB, moment, cut_off)
    with pytest.raises(error):
        model.fit(1000.0 * X + 5.0, 300.0 * Y - 7.0)
    monkeypatch.undo()
    assert vars(model).keys() == before.keys()
    for found, old in zip(model.predict(X, return_std=True), expected, strict=True):
        np.testing.assert_array_equal(found, old)


def test_a_refit_on_data_that_are_refused_leaves_the_estimator_as_it_was():
    model = copy.deepcopy(fitted())
    expected = model.predict(X)
    for bad in ((np.full((40, 3), np.nan), Y), (X, np.full(40, np.inf)), (X[:, :1], Y[:-1])):
        with pytest.raises(ValueError, match=r"NaN|infinity|inconsistent|missing"):
            model.fit(*bad)
    np.testing.assert_array_equal(model.predict(X), expected)


# ---- disks and folders ----


@contextmanager
def full_disk(most):
    """No file may grow beyond so many bytes, as on a disk that is full."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk_leaves_the_last_good_model(tmp_path):
    path = tmp_path / "model"
    fitted().save(path)
    content = path.read_bytes()
    with full_disk(len(content) // 2), pytest.raises(OSError, match="too large"):
        fitted().save(path)
    assert path.read_bytes() == content
    assert [found.name for found in tmp_path.iterdir()] == ["model"]


def train(path, **options):
    settings = {"num_inducing": 8, "max_steps": 3, "schedule": "direct", "checkpoint_seconds": 0.0}
    return cglb.train(GP, X, Y, "cglb", checkpoint=path, **{**settings, **options})


def bits(fit):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((fit.gp, fit.Z, fit.v, fit.bound))]


def test_training_goes_on_on_a_full_disk_and_the_last_checkpoint_stays(tmp_path):
    path = tmp_path / "checkpoint"
    expected = train(None)

    class Enough(Exception):
        pass

    def stop(row, current):
        raise Enough

    with pytest.raises(Enough):
        train(path, callback=stop)
    content = path.read_bytes()
    with full_disk(1000), pytest.warns(UserWarning, match="could not be written.*Training goes on"):
        assert bits(train(path)) == bits(expected)
    assert path.read_bytes() == content
    assert bits(train(path)) == bits(expected)


def test_a_folder_that_vanishes_is_made_again(tmp_path):
    folder = tmp_path / "folder"
    found = train(folder / "checkpoint", callback=lambda row, current: shutil.rmtree(folder))
    assert bits(found) == bits(train(None))
    document, _ = tensorfile.read(folder / "checkpoint", checkpoint.KIND, checkpoint.VERSION)
    assert len(document["history"]) == len(found.history)


# ---- cores ----


def value(width):
    """A bound on log p(y), and K̂v, with so many threads on tiles of 10 rows."""
    method = cglb.CGLB(logdet="amgm")
    with cglb.float64(), using(CPU(width=width, tile_rows=10)):
        gp, x, y, z = jax.tree.map(jnp.asarray, (GP, X, Y, Z))
        system = method.system(gp, x, z)
        found = method.evaluate(method.prepare(system), system, y)
        return found.value, np.asarray(system.operator @ y)


def test_the_number_of_cores_changes_no_more_than_the_last_digits():
    """The same number gives the same bits; another one 1e-13 of the result at most (docs/bounds.md)."""
    bound, product = value(1)
    again, same = value(1)
    assert (bound, product.tobytes()) == (again, same.tobytes())
    for width in (2, 3):
        other, split = value(width)
        assert other == pytest.approx(bound, rel=1e-13)
        np.testing.assert_allclose(split, product, rtol=0.0, atol=1e-13 * np.abs(product).max())


def test_a_checkpoint_from_another_number_of_cores_resumes_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    train(path, max_steps=1)
    monkeypatch.setattr(checkpoint, "cores", lambda: range(64))
    with pytest.warns(UserWarning, match=r"written on \d+ cores, and this run has 64.*by rounding"):
        train(path)
