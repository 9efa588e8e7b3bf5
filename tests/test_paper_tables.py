"""Tables, figures and reports of the paper's experiments say what their stores hold."""

import csv
import io
import json
from pathlib import Path

import pytest
from papers import command, handmade
from rich.console import Console

from cglb.experiments import figures, kinds, runs, spec, table, watch
from cglb.experiments.kinds import Method
from cglb.experiments.runs import Run
from cglb.experiments.spec import Budget, Spec

pytestmark = pytest.mark.usefixtures("no_cache")


def test_the_table_holds_medians_next_to_the_papers_figures(tmp_path):
    for split, (bound, rmse) in enumerate([(-3.0, 0.3), (-1.0, 0.5), (-2.5, 0.1)]):
        handmade(
            tmp_path, Spec("pol", split, Method.parse("cglb-1024")), 40 + split, bound=bound, rmse=rmse
        )
    handmade(tmp_path, Spec("pol", 0, Method.parse("cglb-8")), cholesky=False)
    found = table.make(runs.find(tmp_path))
    rows = {row.method: row for row in found.rows}
    assert list(rows) == ["iterative", "sgpr-4096", "cglb-4096", "cglb-2048", "cglb-1024", "cglb-8"]
    ours = rows["cglb-1024"]
    assert (ours.splits, ours.steps, ours.n) == (3, (40, 42), 1000)
    assert ours.minutes == pytest.approx(82 / 60)
    assert ours.values == {"lml": -2.5, "nlpd": pytest.approx(-0.7), "rmse": 0.3}
    assert ours.cholesky == {"lml": 17.5, "nlpd": pytest.approx(-0.8), "rmse": pytest.approx(0.2)}
    assert ours.paper["cholesky"] == {"lml": 8694.2, "nlpd": -1.098, "rmse": 0.083}
    assert rows["cglb-8"].cholesky == {"lml": None, "nlpd": None, "rmse": None}
    assert rows["sgpr-4096"].splits == 0
    text = table.to_markdown(found)
    assert "| pol | cglb-1024 | -2.5 (7250.7) | 17.5 (8694.2) |" in text
    assert "| 95.0 % | 3 | 40 to 42 | 1.4 |" in text
    assert "| pol | sgpr-4096 | – (9057.7) |" in text
    assert json.loads(table.to_json(found))["rows"][4]["values"]["lml"] == -2.5
    lines = list(csv.DictReader(io.StringIO(table.to_csv(found))))
    assert (lines[4]["lml"], lines[4]["paper_rmse_cholesky"], lines[5]["paper_lml"]) == (
        "-2.5",
        "0.083",
        "",
    )


def test_a_median_needs_every_split(tmp_path):
    method = Method.parse("cglb-8")
    handmade(tmp_path, Spec("pol", 0, method))
    handmade(tmp_path, Spec("pol", 1, method), cholesky=False)
    (row,) = [row for row in table.make(runs.find(tmp_path)).rows if row.splits]
    assert row.values["lml"] == -100.0
    assert row.cholesky["lml"] is None


def test_bounds_out_of_order_are_shown(tmp_path):
    good = {"sgpr": -9.0, "cglb": -8.0, "chain": -7.0, "exact": -7.0}
    handmade(tmp_path, Spec("wine", 0, Method.parse("cglb-8")), order=good)
    handmade(tmp_path, Spec("wine", 1, Method.parse("cglb-8")), order={**good, "chain": -6.9})
    handmade(tmp_path, Spec("wine", 2, Method.parse("cglb-8")), order={**good, "exact": None})
    found = table.make(runs.find(tmp_path))
    assert [row.holds for row in found.order] == [True, False, True]
    assert "| wine | cglb-8 | 1 | -9.0 | -8.0 | -6.9 | -7.0 | NO |" in table.to_markdown(found)


def test_what_is_not_alike_is_not_averaged(tmp_path):
    method = Method.parse("chain-8")
    handmade(tmp_path, Spec("wine", 0, method), steps=31)  # cut off in an early stage
    handmade(tmp_path, Spec("wine", 0, method, 0.5), stage="chain(block=64)")
    found = table.make(runs.find(tmp_path))
    assert [row.splits for row in found.rows] == [1, 1]
    assert [row.variant for row in found.rows] == ["", "0.5 for training"]
    early = [note for note in found.notes if "before the stage with its own bound" in note]
    assert len(early) == 1
    assert "31 steps" in early[0]
    assert "amgm" in early[0]


def test_the_report_says_what_the_runs_hold_and_a_copy_gives_the_same_one(tmp_path):
    store, copy = tmp_path / "store", tmp_path / "copy"
    order = {"sgpr": -9.0, "cglb": -8.0, "chain": -7.0, "exact": -7.0}
    for split in range(3):
        handmade(store, Spec("pol", split, Method.parse("exact")), bound=30.0, stage=None)
        for name, rmse in (("chain-8", 0.05), ("cglb-1024", 0.3 + 0.1 * split)):
            one = Spec("pol", split, Method.parse(name))
            handmade(store, one, bound=split, rmse=rmse, order=order, stage=LAST[name])
    letter = Spec("pol", 0, Method.parse("cglb-1024"), optimize_inducing=True)
    handmade(store, letter, bound=7000.0, order={**order, "exact": None}, stage="amgm")
    Run(store, Spec("pol", 3, Method.parse("exact"))).register(Budget(2))  # no result yet
    assert command("report", "--store", store).exit_code == 0
    text = (store / "report" / "results.md").read_text()
    # 20 nats above the bound by Cholesky, exact training 30: medians over the splits
    assert "| pol | chain-8 | 3 | 0 | 1 [0, 2] | 21 | 9 | -0.950 [-0.950, -0.950] |" in text
    assert (
        "| pol | cglb-1024 | 3 | 0 | 1 [0, 2] (7251) | 21 (8694) | 9 | -0.600 [-0.650, -0.550]" in text
    )
    assert "CGLB-4096 in NLPD on 0 of\n1 data sets" in text
    assert "holds in 7 of 7 runs; the exact value is\nknown in 6." in text
    assert "| pol | chain-8 | 2 | 1 | 0 |" in text
    # 7,250.7 in the paper
    assert "| 7000.0 (7250.7) | -0.500 (-1.057) | 0.5000 (0.0830) | 7020.0 (8694.2) |" in text
    assert "| -3.5 % |" in text
    assert text.count("7000") == 1
    assert "![CG steps per evaluation: pol](figures/pol-cg-steps.png)" in text
    assert (store / "report" / "figures" / "pol-cg-steps.png").exists()

    assert "10 finished runs" in command("export", "--store", store, "--output", copy).output
    assert command("report", "--store", copy, "--output", tmp_path / "again").exit_code == 0
    assert (tmp_path / "again" / "results.md").read_text() == text
    assert not list(copy.rglob("checkpoint*"))


LAST = {"chain-8": "chain(block=64)", "cglb-1024": "amgm"}


def test_the_reference_is_table_1():
    data = table.reference()["table"]["data"]
    assert list(data) == list(spec.PAPER_DATA)
    for name, entry in data.items():
        assert set(entry["methods"]) == set(kinds.PAPER_METHODS)
        assert all(
            (row["cholesky"] is None) == (name in ("kin40k", "protein"))
            for row in entry["methods"].values()
        )
    assert data["pol"]["methods"]["cglb-1024"]["rmse"] == 0.083
    assert data["elevators"]["methods"]["cglb-1024"]["nlpd"] == 0.392


def test_status_shows_what_is_left(tmp_path):
    stopped = handmade(tmp_path, Spec("wine", 0, Method.parse("cglb-8")), 40, budget=Budget(100))
    (stopped.folder / "metrics.json").unlink()
    timed = handmade(tmp_path, Spec("wine", 1, Method.parse("cglb-8")), 40, budget=Budget(100, 1.5))
    (timed.folder / "metrics.json").unlink()
    Run(tmp_path, Spec("wine", 2, Method.parse("cglb-8"))).register(Budget(100))
    states = [runs.look(run) for run in runs.find(tmp_path)]
    assert [state.phase for state in states] == ["stopped", "stopped", "waiting"]
    assert [state.step for state in states] == [40, 40, 0]
    assert [state.seconds_left for state in states] == [120.0, 10.0, None]
    console = Console(width=120, file=io.StringIO())
    console.print(watch.status_table(states))
    text = console.file.getvalue()
    assert "40/100" in text
    assert "2:00 min" in text
    assert "-100.0" in text
    assert command("status", "--store", tmp_path).exit_code == 0


def test_figures_are_drawn_for_what_there_is(tmp_path):
    methods = ["exact", "sgpr-512", "cglb-512", "chain-512"]
    for split in (0, 1, 2):
        for number, name in enumerate(methods):
            settings = {"bound": -100 + 9 * number, "rmse": 0.6 - 0.03 * number}
            handmade(tmp_path, Spec("pol", split, Method.parse(name)), **settings)
        for number, method in enumerate(kinds.parse_methods("iterative-grid")):
            handmade(tmp_path, Spec("pol", split, method), rmse=0.5 + 0.1 * number)
    handmade(tmp_path, Spec("wine", 0, Method.parse("sgpr-8")), cholesky=False)
    Run(tmp_path, Spec("wine", 1, Method.parse("sgpr-8"))).register(Budget())  # no step yet
    written = command("figures", "--store", tmp_path, "--output", tmp_path / "out").output.split()
    names = {Path(name).name for name in written}
    pol = {f"pol-{name}" for name in ("rmse-nlpd", "cg-steps", "bound", "iterative-grid")}
    wine = {"wine-rmse-nlpd", "wine-bound"}  # nothing there runs CG
    assert names == {f"{name}.{ending}" for name in pol | wine for ending in ("svg", "png")}
    for path in (tmp_path / "out").iterdir():
        assert path.stat().st_size > 5000
    assert b"<svg" in (tmp_path / "out" / "pol-bound.svg").read_bytes()[:1000]
    assert "wine, 1 split" in (tmp_path / "out" / "wine-rmse-nlpd.svg").read_text()
    only_wine = [run for run in runs.find(tmp_path) if run.spec.data == "wine"]
    again = figures.draw(only_wine, tmp_path / "again")
    assert len(again) == 4
    assert all(path.read_bytes() == (tmp_path / "out" / path.name).read_bytes() for path in again)
