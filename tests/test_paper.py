"""The paper's experiments: runs that survive anything, tables and figures that say what they hold."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from rich.console import Console
from typer.testing import CliRunner

import cglb
from cglb import cli
from cglb.compute import assemble
from cglb.core import cache as compiled
from cglb.experiments import execute, figures, runs, spec, table, watch, workers
from cglb.experiments.execute import Options
from cglb.experiments.runs import Run
from cglb.experiments.spec import Budget, Method, Spec
from cglb.linalg import dense
from cglb.posteriors import cholesky
from cglb.training.problem import Problem

STEPS = 6
DATA = "diabetes"  # ships with scikit-learn: 295 rows for training
METHODS = "sgpr-16,chain-16,exact"
SGPR = Spec(DATA, 0, Method("sgpr", 16))
TIMES = ("seconds", "scoring_seconds", "peak_memory_gb")


def command(*arguments):
    """A call of the program, in this process."""
    return CliRunner().invoke(cli.app, ["paper", *map(str, arguments)], catch_exceptions=False)


def run_command(store, *more, methods=METHODS, steps=STEPS):
    settings = ("--data", DATA, "--methods", methods, "--split", 0, "--max-steps", steps)
    return command("run", *settings, "--evaluate-every", 3, "--store", store, *more)


def untimed(metrics):
    return {name: value for name, value in metrics.items() if name not in TIMES}


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("CGLB_COMPILED", "off")  # it is a switch of the whole process


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One split of three methods, made from nothing."""
    root = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("strict"):
        patch.setenv("CGLB_COMPILED", "off")
        with jax.numpy_rank_promotion("raise"):
            result = run_command(root)
    assert result.exit_code == 0, result.output
    return root


# ---- specs ----


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
    assert len(spec.parse_methods("iterative-grid, iterative")) == 4


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


def test_a_spec_comes_back_from_json():
    one = Spec("pol", 3, Method.parse("iterative-lr0.01-floor1e-6"), 0.64, 7, True)
    assert Spec.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert one.name.startswith("pol-split3-iterative-lr0.01-floor1e-06-")


# ---- the exact process in one array ----


def test_the_exact_posterior_is_that_of_dense_formulas():
    X, y, _ = problems.data(n=2 * assemble.SIZES[-1] + 1, d=2)
    gp = cglb.GP(cglb.Matern32([0.8, 1.7], 1.3), 0.05, 0.2)
    rows = np.random.default_rng(1).normal(size=(cholesky.BATCH_ROWS + 3, 2))
    found, K_hat = cglb.posteriors.exact(gp, X, y), problems.dense(gp, X)
    with cglb.float64():
        cross = np.asarray(gp.kernel(jnp.asarray(X), jnp.asarray(rows)))
    np.testing.assert_allclose(found.lml, problems.log_likelihood(gp, X, y), rtol=1e-9)
    mean = 0.2 + cross.T @ np.linalg.solve(K_hat, y - 0.2)
    variance = 1.3 - np.einsum("ij,ij->j", cross, np.linalg.solve(K_hat, cross))
    np.testing.assert_allclose(found.mean(rows), mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.variance(rows), variance, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n", [40, 2 * assemble.SIZES[-1] + 1])
def test_one_array_gives_the_gradient_of_the_exact_likelihood(n):
    X, y, _ = problems.data(n=n, d=2)
    kernel = cglb.Matern32([0.8, 1.7], 1.3) + cglb.Linear(0.3).on([1])
    with cglb.float64():
        gp = jax.tree.map(jnp.asarray, cglb.GP(kernel, 0.05, 0.2))
        quadratic, logdet, found = dense.value_and_gradient(gp, jnp.asarray(X), jnp.asarray(y))
        terms = cglb.bounds.exact(gp, X, y)
        # under a trace XLA computes all of it: none of the code that is tested here
        expected = jax.jit(jax.grad(lambda gp: cglb.bounds.exact(gp, X, y).value))(gp)
    np.testing.assert_allclose(-0.5 * float(quadratic), terms.quadratic, rtol=1e-10)
    np.testing.assert_allclose(-0.5 * float(logdet), terms.logdet, rtol=1e-10)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-8)


def test_the_array_is_factored_in_its_place(monkeypatch):
    filled = []
    fill = assemble.upper_triangle
    monkeypatch.setattr(
        assemble, "upper_triangle", lambda *args: filled.append(fill(*args)) or filled[0]
    )
    X, y, _ = problems.data(n=40, d=2)
    with cglb.float64():
        gp, X, y = jax.tree.map(jnp.asarray, (cglb.GP(cglb.RBF(1.0), 0.1), X, y))
        found = dense.factor(gp, X, y)
    assert np.shares_memory(found.factor.L, filled[0])


def test_a_matrix_that_cannot_be_factored_is_an_error():
    X = np.zeros((4, 1))
    gp = cglb.GP(cglb.RBF(1.0), 1e-300)
    with pytest.raises(np.linalg.LinAlgError, match="noise"):
        cglb.posteriors.exact(gp, X, np.ones(4))


# ---- runs ----


def test_a_run_from_nothing_to_a_table(store):
    found = {run.spec.method.kind: run.metrics() for run in runs.find(store)}
    assert set(found) == {"sgpr", "chain", "exact"}
    for metrics in found.values():
        assert (metrics["n"], metrics["n_test"]) == (295, 147)
        assert metrics["steps"] - metrics["extra_steps"] == STEPS
        assert 0.5 < metrics["rmse"] < 1.0
        assert 0.8 < metrics["coverage"] <= 1.0
        assert metrics["bound"] <= metrics["cholesky"]["lml"] + 1e-6
        assert metrics["machine"]["cores"] >= 1
        assert metrics["versions"]["cglb"] == cglb.__version__
    assert found["exact"]["bound"] == pytest.approx(found["exact"]["cholesky"]["lml"], rel=1e-9)
    assert found["exact"]["nlpd"] == found["exact"]["cholesky"]["nlpd"]
    for kind in ("sgpr", "chain"):
        order = found[kind]["order"]
        assert order["sgpr"] < order["cglb"] < order["chain"] <= order["exact"]
    assert found["sgpr"]["bound"] == pytest.approx(found["sgpr"]["order"]["sgpr"], rel=1e-9)
    assert found["chain"]["logdet_bound"].startswith("chain")
    text = command("table", "--store", store).output
    assert "| diabetes | chain-16 |" in text
    assert "NO" not in text


def test_nothing_in_the_results_names_a_place(store):
    for run in runs.find(store):
        text = (run.folder / "metrics.json").read_text()
        assert str(store) not in text
        assert str(Path.home()) not in text


def test_a_stage_without_cg_has_no_cg_steps_and_hides_no_others(tmp_path):
    staged, none = (Run(tmp_path, Spec("wine", 0, Method.parse(name))) for name in ("cglb-8", "sgpr-8"))
    for run, last in ((staged, 3), (none, None)):
        run.register(Budget(2))
        for step, steps in ((1, None), (2, last)):
            run.append("history", {"step": step, "cg_steps": steps})
    assert figures.Series("", "", [staged, none], {}).cg_steps() == [[[0], [3]]]


def test_bounds_on_a_part_of_the_rows_are_not_drawn_beside_those_on_all(tmp_path):
    run = Run(tmp_path, Spec("wine", 0, Method.parse("cglb-8")))
    run.register(Budget(2))
    for step, rows in ((1, 10), (2, 10), (3, 100), (4, 100)):
        run.append("history", {"step": step, "rows": rows, "bound": -float(rows)})
    ((steps, bounds),) = figures.Series("", "", [run], {}).history("bound")
    assert (steps.tolist(), bounds.tolist()) == ([3.0, 4.0], [-100.0, -100.0])


def test_cg_steps_are_those_of_every_evaluation_that_a_row_tells_of():
    assert runs.cg_steps({"cg_steps": 3, "cg_steps_by_evaluation": [5, 0, 3]}) == [5, 0, 3]
    assert runs.cg_steps({"cg_steps": 3}) == [3]
    assert runs.cg_steps({"cg_steps": None, "cg_steps_by_evaluation": None}) == []


def test_scores_are_made_at_intervals(store):
    run = Run(store, SGPR)
    assert [row["step"] for row in run.history()] == list(range(1, STEPS + 1))
    assert [row["step"] for row in run.scores()] == [1, 3, 6, 6]
    assert [row["exact_lml"] is not None for row in run.scores()] == [True, False, False, True]
    assert run.scores()[-1]["rmse"] == run.metrics()["rmse"]


def test_a_finished_run_is_read_from_the_store(store, monkeypatch):
    def no_training(*args, **settings):
        raise AssertionError("There is nothing left to train.")

    monkeypatch.setattr(execute, "train", no_training)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    result = run_command(store)
    assert result.exit_code == 0
    assert result.output.count(" steps in ") == 3
    assert run_command(store, methods="sgpr-16,exact", steps=4).exit_code == 0  # has more than is asked
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_a_run_that_is_given_more_goes_on(store, tmp_path):
    run = Run(tmp_path, SGPR)
    options = Options(Budget(3), evaluate_every=3, cholesky=False)
    first = execute.execute(run, options)
    assert (first["steps"], first["cholesky"]) == (3, None)
    rows = run.history()
    whole = execute.execute(run, Options(Budget(STEPS), evaluate_every=3))
    assert run.history()[:3] == rows
    assert untimed(whole) == untimed(Run(store, SGPR).metrics())


def test_exact_figures_can_be_asked_for_later(store, tmp_path, monkeypatch):
    run = Run(tmp_path, SGPR)
    execute.execute(run, Options(Budget(STEPS), 0, 0, cholesky=False))
    monkeypatch.setattr(Problem, "evaluate", None)  # there is nothing left to evaluate
    again = execute.execute(run, Options(Budget(STEPS), 0, 0))
    assert untimed(again) == untimed(Run(store, SGPR).metrics())


# ends after the fourth row, with half of the fifth on the disk
KILLED = """
import os, signal, sys
from pathlib import Path
from cglb.experiments import execute, runs
from cglb.experiments.spec import Budget, Method, Spec

execute.CHECKPOINT_SECONDS = {False: 0.0, True: 0.0}
append = runs.Run.append

def deadly(run, name, row):
    if row["step"] == 5:
        with (run.folder / "history.jsonl").open("a") as file:
            file.write('{"step": 5, "bou')
        os.kill(os.getpid(), signal.SIGKILL)
    append(run, name, row)

runs.Run.append = deadly
run = runs.Run(Path(sys.argv[1]), Spec("diabetes", 0, Method("sgpr", 16)))
execute.execute(run, execute.Options(Budget(6), evaluate_every=3))
"""


def test_a_killed_run_ends_as_if_it_had_not_been(store, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    run = Run(tmp_path, SGPR)
    state = runs.look(run)
    assert (state.phase, state.step, state.max_steps) == ("stopped", 4, STEPS)
    found = execute.execute(run, Options(Budget(STEPS), evaluate_every=3))
    assert untimed(found) == untimed(Run(store, SGPR).metrics())
    assert [row["step"] for row in run.history()] == list(range(1, STEPS + 1))
    one, other = ([untimed(row) for row in Run(root, SGPR).history()] for root in (tmp_path, store))
    assert one == other


def test_steps_on_a_part_of_the_rows_survive_a_kill_and_come_on_top_of_the_budget(tmp_path, monkeypatch):
    """Killed at the fourth step, and while the part lasts: nothing is lost, nothing counted twice."""
    one = Spec(DATA, 0, Method("cglb", 16))
    monkeypatch.setattr(execute, "train", partial(cglb.train, subset=100))
    monkeypatch.setattr(execute, "CHECKPOINT_SECONDS", {False: 0.0})
    options = Options(Budget(STEPS), evaluate_every=0, cholesky=False)
    whole = Run(tmp_path / "whole", one)
    metrics = execute.execute(whole, options)
    part = metrics["extra_steps"]
    assert 4 < part <= 20
    assert metrics["steps"] == part + STEPS
    assert runs.is_complete(metrics, Budget(STEPS), cholesky=False)
    assert not runs.is_complete(metrics, Budget(STEPS + 1), cholesky=False)
    state = runs.look(whole)
    assert (state.phase, state.step, state.max_steps) == ("done", part + STEPS, part + STEPS)

    killed, append = Run(tmp_path / "killed", one), Run.append

    def deadly(run, name, row):
        if row["step"] == 4:
            raise KeyboardInterrupt
        append(run, name, row)

    monkeypatch.setattr(Run, "append", deadly)
    with pytest.raises(KeyboardInterrupt):
        execute.execute(killed, options)
    monkeypatch.setattr(Run, "append", append)
    assert untimed(execute.execute(killed, options)) == untimed(metrics)
    one, other = ([untimed(row) for row in run.history()] for run in (killed, whole))
    assert one == other


def test_a_failure_is_told_and_does_not_stop_the_others(store, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the probes are gone")

    monkeypatch.setattr(cglb.Iterative, "evaluate", fail)
    result = run_command(tmp_path, "--no-cholesky", methods="iterative,sgpr-16", steps=1)
    assert result.exit_code == 1
    assert "the probes are gone" in " ".join(result.output.split())
    states = {run.spec.method.kind: runs.look(run).phase for run in runs.find(tmp_path)}
    assert states == {"iterative": "failed", "sgpr": "done"}


# ---- locks and workers ----

HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.write('{"pid": 1, "phase": "training"}')
file.flush()
print("held", flush=True)
time.sleep(600)
"""


def test_two_processes_never_take_the_same_run(tmp_path, monkeypatch):
    run = Run(tmp_path, SGPR)
    run.register(Budget(STEPS))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, run.folder / "lock"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        monkeypatch.setattr(execute, "_learn", None)
        assert execute.execute(run, Options(Budget(STEPS))) is None
        assert runs.look(run).phase == "training"
    finally:
        holder.kill()
        holder.wait()
    # the kernel has let go
    assert runs.look(run).phase == "waiting"
    with run.locked() as mine, run.locked() as another:
        assert (mine, another) == (True, False)
        assert runs.look(run).phase == "starting"


def test_looking_does_not_take_a_run_away(tmp_path):
    """A look holds the lock for an instant, in which a worker must not give up."""
    run = Run(tmp_path, SGPR)
    run.register(Budget(STEPS))
    over = threading.Event()

    def stare():
        while not over.is_set():
            runs.look(run)

    thread = threading.Thread(target=stare)
    thread.start()
    try:
        for _ in range(50):
            with run.locked() as mine:
                assert mine
    finally:
        over.set()
        thread.join()


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: [0, 1, 2, 3, 4])
    assert workers.shares(2) == [[0, 2, 4], [1, 3]]
    assert workers.shares(1) == [[0, 1, 2, 3, 4]]
    monkeypatch.setattr(workers, "cores", lambda: [2, 5])
    assert workers.shares(3) == [[2], [5], [2]]


def test_a_killed_worker_does_not_lose_the_others(tmp_path):
    wanted = [Run(tmp_path, Spec(DATA, split, Method("exact"))) for split in (0, 1)]
    for run in wanted:
        run.register(Budget(2))

    def kill():
        path, text = wanted[0].folder / "lock", ""
        while '"training"' not in text:
            time.sleep(0.05)
            text = path.read_text() if path.exists() else ""
        os.kill(json.loads(text)["pid"], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    options = Options(Budget(2), 0, 0, cholesky=False)
    trouble = workers.run_workers(wanted, options, 2, tmp_path)
    thread.join()
    assert len(trouble) == 1
    assert "signal 9" in trouble[0]
    assert wanted[1].metrics()["steps"] - wanted[1].metrics()["extra_steps"] == 2
    assert wanted[1].metrics()["machine"]["cores"] == len(workers.shares(2)[1])
    # the other worker may have come by when the run was free again
    assert runs.look(wanted[0]).phase in ("waiting", "stopped", "done")
    execute.work(wanted, options)
    assert [run.metrics()["steps"] - run.metrics()["extra_steps"] for run in wanted] == [2, 2]


# ---- stores made by hand ----


def handmade(
    root, one, steps=40, *, bound=-100.0, rmse=0.5, cholesky=True, order=None, budget=None, stage="amgm"
):
    """A run with a history that is easy to reckon with: 2 s a step, a bound that rises by 1."""
    run = Run(root, one)
    run.register(budget or Budget(steps))
    cg = one.method.kind in ("cglb", "chain", "iterative")
    for step in range(1, steps + 1):
        row = {"step": step, "rows": 1000, "seconds": 2.0 * step, "bound": bound - steps + step}
        row["cg_steps"] = round(400 / (step + 3)) if cg else None
        run.append("history", row)
        if step % 5 == 0:
            error = rmse + 0.5 * np.exp(-step / 10) + 0.02 * one.split
            exact = row["bound"] + 20 if cholesky else None
            scores = {"rmse": error, "nlpd": np.log(error), "coverage": 0.95, "exact_lml": exact}
            run.append("scores", {**row, **scores})
    exact = {"lml": bound + 20, "nlpd": rmse - 1.1, "rmse": rmse - 0.1, "coverage": 0.95}
    run.finish(
        {
            "n": 1000,
            "steps": steps,
            "stop": "step limit",
            "seconds": 2.0 * steps,
            "bound": bound,
            "logdet_bound": stage,
            "rmse": rmse,
            "nlpd": rmse - 1.0,
            "coverage": 0.95,
            "cholesky": exact if cholesky else None,
            "order": order,
            "machine": {"cores": 2, "processor": "a processor", "memory_gb": 8.0},
            "versions": {"cglb": "1", "jax": "2", "scipy": "3"},
        }
    )
    return run


def test_the_table_holds_medians_beside_the_papers_figures(tmp_path):
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


def test_only_with_joint_inducing_points_is_cglb_trained_to_the_letter_of_the_paper():
    method = Method.parse("cglb-8")
    letter, usual = method.as_trained(True), method.as_trained(False)
    assert (letter.cg_tolerance, letter.slopes, letter.logdet) == (1.0, "bound", "amgm")
    assert (usual.cg_tolerance, usual.slopes, usual.logdet) == (0.1, "solution", "amgm")
    for name in ("sgpr-8", "chain-8", "exact", "iterative"):
        assert Method.parse(name).as_trained(True) == Method.parse(name).trained


def test_the_report_says_what_the_runs_hold_and_a_copy_gives_the_same_one(tmp_path):
    store, copy = tmp_path / "store", tmp_path / "copy"
    order = {"sgpr": -9.0, "cglb": -8.0, "chain": -7.0, "exact": -7.0}
    for split in range(3):
        handmade(store, Spec("pol", split, Method.parse("exact")), bound=30.0, stage=None)
        for name, rmse in (("chain-8", 0.05), ("cglb-1024", 0.3 + 0.1 * split)):
            one = Spec("pol", split, Method.parse(name))
            handmade(store, one, bound=split, rmse=rmse, order=order, stage=LAST[name])
    Run(store, Spec("pol", 3, Method.parse("exact"))).register(Budget(2))  # no result yet
    assert command("report", "--store", store).exit_code == 0
    text = (store / "report" / "results.md").read_text()
    # 20 nats above the bound by Cholesky, exact training 30: medians over the splits
    assert "| pol | chain-8 | 3 | 0 | 1 [0, 2] | 21 | 9 | -0.950 [-0.950, -0.950] |" in text
    assert (
        "| pol | cglb-1024 | 3 | 0 | 1 [0, 2] (7251) | 21 (8694) | 9 | -0.600 [-0.650, -0.550]" in text
    )
    assert "CGLB-4096 in NLPD on 0 of\n1 data sets" in text
    assert "holds in 6 of 6 runs" in text
    assert "![CG steps per evaluation: pol](figures/pol-cg-steps.png)" in text
    assert (store / "report" / "figures" / "pol-cg-steps.png").exists()

    assert "9 finished runs" in command("export", "--store", store, "--output", copy).output
    assert command("report", "--store", copy, "--output", tmp_path / "again").exit_code == 0
    assert (tmp_path / "again" / "results.md").read_text() == text
    assert not list(copy.rglob("checkpoint*"))


LAST = {"chain-8": "chain(block=64)", "cglb-1024": "amgm"}


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


def test_the_reference_is_table_1():
    data = table.reference()["table"]["data"]
    assert list(data) == list(spec.PAPER_DATA)
    for name, entry in data.items():
        assert set(entry["methods"]) == set(spec.PAPER_METHODS)
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
        for number, method in enumerate(spec.parse_methods("iterative-grid")):
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


# ---- the compilation cache ----


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
