"""Several devices and several processes give the same answers as one, and fail with a clear message."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("processes.py")
PATIENCE = 300  # seconds, on a busy machine


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(job: str, *options: str, **arguments) -> subprocess.Popen:
    command = [sys.executable, str(PROGRAM), job, "--arguments", json.dumps(arguments), *options]
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


def alone(job: str, *options: str, **arguments) -> dict:
    ((code, out, err),) = finish(start(job, *options, **arguments))
    assert code == 0, err
    return json.loads(out)


def together(job: str, processes: int = 2, **arguments) -> list[dict]:
    ended = finish(*started(job, processes, **arguments))
    assert all(code == 0 for code, _, _ in ended), [err for _, _, err in ended]
    return [json.loads(out.splitlines()[-1]) for _, out, _ in ended]  # Gloo prints, too


def started(job: str, processes: int = 2, **arguments) -> list[subprocess.Popen]:
    port = str(free_port())
    options = ("--port", port, "--processes", str(processes))
    return [start(job, *options, "--id", str(i), **arguments) for i in range(processes)]


@pytest.fixture(scope="module")
def one_device() -> dict:
    return alone("everything")


@pytest.fixture(scope="module")
def one_fit() -> dict:
    return alone("fitting")


def assert_same(found: dict, wanted: dict) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        close = 1e-10 if name.startswith(("bound", "interval")) else 1e-8
        close = 1e-6 if name.startswith("solve") else close  # CG stops at a tolerance
        scale = np.max(np.abs(value))
        np.testing.assert_allclose(found[name], value, rtol=close, atol=close * scale, err_msg=name)


@pytest.mark.parametrize("devices", [2, 4])
def test_virtual_devices_without_blas_and_threads_give_the_same_answers(devices, one_device):
    assert_same(alone("everything", "--devices", str(devices), "--xla"), one_device)


def test_two_processes_give_the_same_answers(one_device):
    first, second = together("everything")
    assert first == second
    assert_same(first, one_device)


def test_two_processes_fit_the_same_model(one_fit):
    wanted = one_fit
    first, second = together("fitting")
    assert first == second
    np.testing.assert_allclose(first["bound"], wanted["bound"], rtol=1e-8)
    np.testing.assert_allclose(first["mean"], wanted["mean"], rtol=1e-6, atol=1e-6)


def test_a_process_holds_its_share_of_the_factors():
    n, m = 4001, 256
    for found in together("memory", n=n, m=m):
        assert found["held"] == 8 * m * (n + 1) // 2


def test_a_killed_process_ends_the_others_and_one_process_resumes(tmp_path, one_fit):
    wanted = one_fit
    path = str(tmp_path / "checkpoint")
    ended = finish(*started("fitting", checkpoint=path, die=1))
    assert ended[1][0] != 0
    code, _, err = ended[0]
    assert code != 0
    assert "has ended or cannot be reached" in err
    assert "start again to resume" in err
    found = alone("fitting", checkpoint=path)
    assert len(found["history"]) == len(wanted["history"])
    np.testing.assert_allclose(found["bound"], wanted["bound"], rtol=1e-8)
    np.testing.assert_allclose(found["mean"], wanted["mean"], rtol=1e-6, atol=1e-6)


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
    children = [start("fitting", *options, "--id", str(i), steps=1 + i) for i in range(2)]
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
