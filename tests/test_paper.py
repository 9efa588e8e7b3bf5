"""The paper's experiments: runs that survive anything."""

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
import pytest
from papers import DATA, SGPR, STEPS, command, run_command, untimed

import cglb
from cglb.experiments import execute, figures, runs, workers
from cglb.experiments.execute import Options
from cglb.experiments.kinds import Method
from cglb.experiments.runs import Run
from cglb.experiments.spec import Budget, Spec
from cglb.training.problem import Problem

pytestmark = pytest.mark.usefixtures("no_cache")


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


def test_a_stage_without_cg_counts_no_evaluation_and_hides_no_others(tmp_path):
    staged, none = (Run(tmp_path, Spec("wine", 0, Method.parse(name))) for name in ("cglb-8", "sgpr-8"))
    for run, last in ((staged, 3), (none, None)):
        run.register(Budget(2))
        for step, steps in ((1, None), (2, last)):
            run.append("history", {"step": step, "cg_steps": steps})
    assert figures.Series("", "", [staged, none], {}).cg_steps() == [[[], [3]]]


def test_bounds_on_a_part_of_the_rows_are_not_drawn_with_those_on_all(tmp_path):
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
from cglb.experiments.kinds import Method
from cglb.experiments.spec import Budget, Spec

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
