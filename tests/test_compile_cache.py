"""Compiled code is kept in the user's cache folder."""

import os
import subprocess
import sys

import pytest

from cglb.core import cache as compiled

pytestmark = pytest.mark.usefixtures("no_cache")


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(compiled.jax.config, "update", lambda name, value: seen.update({name: value}))
    assert compiled.use_compilation_cache() is None  # "off"
    assert seen == {}
    monkeypatch.setenv("CGLB_COMPILED", str(tmp_path / "mine"))
    assert compiled.use_compilation_cache() == tmp_path / "mine"
    assert seen["jax_compilation_cache_dir"] == str(tmp_path / "mine")
    monkeypatch.delenv("CGLB_COMPILED")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("CGLB_CACHE", str(tmp_path / "cache"))
    folder = compiled.use_compilation_cache()
    assert folder is not None
    assert folder.parent == tmp_path / "cache" / "compiled"


def test_users_of_the_library_have_the_cache_unless_jax_has_a_setting(tmp_path):
    """In new processes: a public call alone turns it on, at its first use and not at import."""
    code = """
import jax, cglb
assert jax.config.jax_compilation_cache_dir == BEFORE
cglb.inducing.greedy(cglb.RBF(), [[0.0], [1.0]], 1)
print(jax.config.jax_compilation_cache_dir)
"""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "CGLB_"))}
    clean |= {"CGLB_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    cases = {
        "default": ({}, None),
        "jax": ({"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax")}, str(tmp_path / "jax")),
        "off": ({"CGLB_COMPILED": "off"}, None),
    }
    found = {}
    for name, (more, before) in cases.items():
        run = [sys.executable, "-c", code.replace("BEFORE", repr(before))]
        done = subprocess.run(run, env=clean | more, capture_output=True, text=True, check=True)
        found[name] = done.stdout.strip()
    assert found["default"].startswith(str(tmp_path / "compiled"))
    assert any((tmp_path / "compiled").rglob("*-cache"))
    assert found["jax"] == str(tmp_path / "jax")
    assert found["off"] == "None"


def test_old_compiled_code_makes_room(tmp_path):
    for age in range(4):
        (tmp_path / str(age)).write_bytes(bytes(100))
        os.utime(tmp_path / str(age), (1000 - age, 1000 - age))
    compiled.prune(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
