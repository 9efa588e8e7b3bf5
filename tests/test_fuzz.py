"""A fixed part of what `make fuzz` tries: broken and odd tables through the command line."""

import functools
from collections import Counter

import fuzz_tables
import pytest

TABLES = 150


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fuzz_tables.make_model(tmp_path_factory.mktemp("model"))


def test_no_table_gives_a_traceback_or_a_partial_file(model, tmp_path):
    once = functools.partial(fuzz_tables.try_table, folder=tmp_path, model=model)
    counts = Counter(once(seed) for seed in range(1, TABLES) if seed % fuzz_tables.FIT_EVERY)
    # both outcomes occur: neither is everything refused, nor is nothing broken
    assert counts["predict: done"] > TABLES // 10
    assert counts["predict: refused"] > TABLES // 10


def test_a_traceback_would_be_seen(model, tmp_path, monkeypatch):
    def broken(*arguments):
        raise TypeError("a bug")

    monkeypatch.setattr("cglb.cli.predicting.open_table", broken)
    with pytest.raises(TypeError, match="a bug"):
        fuzz_tables.try_table(1, tmp_path, model)
