"""Several devices and several processes give the same answers as one, and fail with a clear message."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("processes.py")
PATIENCE = 300  # seconds, on a busy machine
ROWS, POINTS = 30_001, 256  # of the job that looks at memory
MEMORY = {"n": ROWS, "m": POINTS}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(jobs: str, *options: str, **arguments: dict) -> subprocess.Popen:
    """A process that runs these jobs, with arguments by job."""
    command = [sys.executable, str(PROGRAM), jobs, "--arguments", json.dumps(arguments), *options]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(*children: subprocess.Popen) -> list[tuple[int, str, str]]:
    """(return code, standard output, standard error) of each; none is left running."""
    try:
        outputs = [child.communicate(timeout=PATIENCE) for child in children]
    finally:
        for child in children:
            child.kill()
    return [(child.returncode, *output) for child, output in zip(children, outputs, strict=True)]


def results(out: str) -> dict:
    """What the jobs of a process printed, by job."""
    lines = (line for line in out.splitlines() if line.startswith("{"))  # Gloo prints, too
    return {job: found for line in lines for job, found in json.loads(line).items()}


def alone(jobs: str, *options: str, **arguments: dict) -> dict:
    ((code, out, err),) = finish(start(jobs, *options, **arguments))
    assert code == 0, err
    return results(out)


@pytest.fixture(scope="module")
def one() -> dict:
    """What one process finds alone, by job."""
    return alone("everything,fitting,memory", memory=MEMORY)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    """What two processes leave behind, of which one was killed."""
    return str(tmp_path_factory.mktemp("killed") / "checkpoint")


@pytest.fixture(scope="module")
def two(checkpoint) -> list[tuple[int, dict, str]]:
    """Return code, results by job and standard error of two processes.

    To start them and to trace their programs takes longer than the jobs, so one pair does them all. The
    last job kills one of them.
    """
    settings = {"memory": MEMORY, "killed": {"checkpoint": checkpoint}}
    options = ("--port", str(free_port()), "--processes", "2")
    jobs = "everything,fitting,memory,killed"
    children = [start(jobs, *options, "--id", str(i), **settings) for i in range(2)]
    ended = [(code, results(out), err) for code, out, err in finish(*children)]
    assert all("memory" in found for _, found, _ in ended), [err for *_, err in ended]
    return ended


def assert_same(found: dict, wanted: dict) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        close = 1e-10 if name.startswith(("bound", "interval")) else 1e-8
        close = 1e-6 if name.startswith("solve") else close  # CG stops at a tolerance
        scale = np.max(np.abs(value))
        np.testing.assert_allclose(found[name], value, rtol=close, atol=close * scale, err_msg=name)


def test_virtual_devices_without_blas_and_threads_give_the_same_answers(one):
    found = alone("everything", "--devices", "4", "--xla")
    assert_same(found["everything"], one["everything"])


def test_two_processes_give_the_same_answers(one, two):
    first, second = (found["everything"] for _, found, _ in two)
    assert first == second
    assert_same(first, one["everything"])


def assert_same_fit(found: dict, wanted: dict) -> None:
    assert len(found["history"]) == len(wanted["history"])
    np.testing.assert_allclose(found["bound"], wanted["bound"], rtol=1e-8)
    np.testing.assert_allclose(found["mean"], wanted["mean"], rtol=1e-6, atol=1e-6)


def test_two_processes_fit_the_same_model(one, two):
    first, second = (found["fitting"] for _, found, _ in two)
    assert first == second
    assert_same_fit(first, one["fitting"])


def test_a_process_holds_its_share_of_the_factors(one, two):
    """Also at the peak of an evaluation, but for what does not depend on the number of rows."""
    alone, constant = one["memory"], 20 * 8 * POINTS**2
    assert alone["held"] == 8 * POINTS * ROWS
    for _, found, _ in two:
        assert found["memory"]["held"] == 8 * POINTS * (ROWS + 1) // 2
        assert found["memory"]["peak"] <= 0.5 * alone["peak"] + constant


def test_a_killed_process_ends_the_others_and_one_process_resumes(checkpoint, one, two):
    (code, found, err), (killed, *_) = two
    assert "killed" not in found
    assert killed == -signal.SIGKILL
    assert code not in (0, -signal.SIGKILL)
    assert "has ended or cannot be reached" in err
    assert "start again to resume" in err
    resumed = alone("fitting", fitting={"checkpoint": checkpoint})["fitting"]
    assert_same_fit(resumed, one["fitting"])


def test_an_unreachable_coordinator_is_an_error_with_its_address():
    program = (
        "import cglb; from cglb import distributed\n"
        f"distributed.initialize('127.0.0.1:{free_port()}', 2, 1, timeout=1)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    ((code, _, err),) = finish(child)
    assert code != 0
    assert "Process 0 cannot be reached at 127.0.0.1" in err


def test_different_data_are_an_error_in_every_process():
    port = str(free_port())
    options = ("--port", port, "--processes", "2")
    children = [start("fitting", *options, "--id", str(i), fitting={"steps": 1 + i}) for i in range(2)]
    for code, _, err in finish(*children):
        assert code != 0
        assert "All processes of a run must have the same data and settings" in err


def test_different_versions_are_an_error_in_every_process():
    """The second process claims another version of SciPy."""
    address = f"127.0.0.1:{free_port()}"
    program = (
        "import sys\nfrom importlib import metadata\nimport cglb\n"
        "real, pretend = metadata.version, {'1': {'scipy': '0.1'}}.get(sys.argv[1], {})\n"
        "metadata.version = lambda name: pretend.get(name) or real(name)\n"
        f"cglb.distributed.initialize('{address}', 2, int(sys.argv[1]), devices=1, timeout=60)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(i)], stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    ended = finish(*children)
    for code, _, err in ended:
        assert code != 0
        assert "versions" in err
    assert "scipy 0.1," in ended[1][2]  # each process names its own


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("127.0.0.1:1", 2, None), "or none of them"),
        (("127.0.0.1:1", 2, 2), "process_id must be from 0 to 1"),
        (("127.0.0.1", 2, 1), "an address and a port"),
    ],
)
def test_contradictory_arguments_are_refused(arguments, message):
    from cglb import distributed

    with pytest.raises(ValueError, match=message):
        distributed.initialize(*arguments)
