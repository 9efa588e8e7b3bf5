"""Specs of the paper's experiments, what they train, and mistakes on the command line."""

import json
import sys

import pytest
from papers import SGPR, command, handmade

import cglb
from cglb import cli
from cglb.experiments import execute, kinds, spec, table
from cglb.experiments.kinds import Method
from cglb.experiments.spec import Budget, Spec

pytestmark = pytest.mark.usefixtures("no_cache")


@pytest.mark.parametrize(
    "name", ["exact", "sgpr-512", "cglb-1024", "chain-64", "iterative", "iterative-lr0.01-floor1e-06"]
)
def test_a_method_is_what_its_name_says(name):
    assert Method.parse(name).name == name


@pytest.mark.parametrize(
    "name",
    ["sgrp-12", "sgpr", "cglb-", "cglb-0", "exact-3", "iterative-lr-1", "iterative-lrfast", "CGLB-4"],
)
def test_an_unknown_method_is_named_with_what_there_is(name):
    with pytest.raises(ValueError, match=name):
        Method.parse(name)
    with pytest.raises(ValueError, match=r"chain-M|at least one"):
        Method.parse(name)


def test_the_defaults_are_the_papers_protocol():
    one = Spec("pol", 0, Method.parse("cglb-1024"))
    assert (one.fraction, one.variant, one.method.noise_floor) == (2 / 3, "", 1e-6)
    assert Budget() == Budget(2000, None)
    assert Method.parse("iterative") == Method("iterative", None, 1e-4, 0.1)
    assert len(kinds.parse_methods("iterative-grid, iterative")) == 4


def test_the_papers_count_for_protein_is_a_fraction_of_064():
    found = table.reference()["text"]
    assert round(45730 * found["protein_training_fraction"]) == found["protein_training_rows"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "whine"), "'whine'.*wine"),
        (("--methods", "sgrp-3"), "'sgrp-3'.*cglb-M"),
        (("--methods", ","), "No method.*exact"),
        (("--data", "wine", "--fraction", "1.5"), "1.5"),
        (("--data", "wine", "--max-steps", "0"), "found 0"),
        (("--data", "wine", "--max-minutes", "0"), "found 0"),
        (("--data", "wine", "--split", "-1"), "found -1"),
        (("--data", "wine", "--workers", "0"), "found 0"),
    ],
)
def test_a_mistake_on_the_command_line_says_what_was_found(arguments, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        command("run", *arguments, "--store", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_program_reports_mistakes_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["cglb", "paper", "table", "--store", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "There are no runs" in capsys.readouterr().err


def test_what_does_not_change_the_path_does_not_change_the_name():
    def names(kind, **settings):
        return [one.name for one in spec.plan(["pol"], [Method.parse(kind)], [0, 1], **settings)]

    assert len(set(names("cglb-8"))) == 2
    assert names("exact", steps_per_round=7, optimize_inducing=True) == names("exact")
    joint = names("cglb-8", optimize_inducing=True)
    assert joint == names("cglb-8", optimize_inducing=True, steps_per_round=7) != names("cglb-8")
    assert names("cglb-8", steps_per_round=7) != names("cglb-8") != names("cglb-8", fraction=0.64)


def test_a_setting_that_all_runs_of_a_method_have_is_part_of_the_name(monkeypatch):
    one = Spec("pol", 0, Method.parse("cglb-8"))
    before = one.name
    changed = kinds.Kind(cglb.CGLB("amgm", cg_tolerance=0.5))
    monkeypatch.setattr(kinds, "KINDS", {**kinds.KINDS, "cglb": changed})
    assert one.name != before


def test_a_spec_comes_back_from_json():
    one = Spec("pol", 3, Method.parse("iterative-lr0.01-floor1e-6"), 0.64, 7, True)
    assert Spec.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert one.name.startswith("pol-split3-iterative-lr0.01-floor1e-06-")


def test_only_with_joint_inducing_points_is_cglb_trained_to_the_letter_of_the_paper():
    method = Method.parse("cglb-8")
    letter, usual = method.as_trained(True), method.as_trained(False)
    assert (letter.cg_tolerance, letter.slopes, letter.logdet) == (1.0, "bound", "amgm")
    assert (usual.cg_tolerance, usual.slopes, usual.logdet) == (0.1, "solution", "amgm")
    assert letter.cg_max_steps == usual.cg_max_steps == 1000
    for name in ("sgpr-8", "chain-8", "exact", "iterative"):
        assert Method.parse(name).as_trained(True) == Method.parse(name).trained


def test_a_run_ends_when_twenty_steps_gain_too_little(tmp_path):
    run = handmade(tmp_path, SGPR, 40)  # which gains 1 nat per step
    assert not execute._gained_little(run, 0.0, 1000)
    assert not execute._gained_little(run, 20.0, 1000)
    assert execute._gained_little(run, 20.1, 1000)
    assert not execute._gained_little(run, 20.1, 999)  # those steps were on other rows
    with pytest.raises(ValueError, match="negative, found -1"):
        Budget(gain=-1)


def test_exact_training_on_many_rows_begins_where_the_chain_ends():
    assert execute._stages(Method("exact"), 500) is None
    assert execute._stages(Method("chain", 8), 20_000) is None
    *_, before, last = execute._stages(Method("exact"), 20_000)
    assert (before.method.logdet, before.rows) == ("chain", None)
    assert (type(last.method), last.rows, last.start) == (cglb.Exact, None, None)
