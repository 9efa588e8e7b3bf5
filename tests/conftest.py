"""What all tests share: shapes and dtypes are checked at every call, promotion is an error, and
compiling, which takes most of the time of small problems, is quick and done once for all processes.
Files about whole programs run without these checks, as users do; what they call is checked elsewhere."""

import hashlib
import importlib.metadata
import importlib.util
import mmap
import os
import tempfile
from collections import Counter
from pathlib import Path

# ---- before JAX is imported: one core per worker, quick compilation, shared compiled code ----

# Nothing in the tests is large enough to gain from optimised code.
# `CGLB_TEST_XLA=full` compiles as for users.
QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
USERS_FLAGS = os.environ.setdefault("CGLB_TEST_USERS_XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
FULL_EFFORT = ("test_memory.py",)  # its subprocess is about optimised code on many rows
CACHE_LIMIT = 1 << 30  # bytes of compiled code kept from one run to the next


def one_core_per_worker() -> None:
    """Pin worker k of xdist to the k-th core: lanes, XLA's pool and BLAS all count one core.

    Subprocesses inherit it. A test about several lanes asks for them by number.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw"):
        return
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker[2:]) % len(cores)]})


def quick_flags() -> str:
    """The user's XLA flags, and those of `QUICK` that this jaxlib knows. An unknown one is fatal."""
    if os.environ.get("CGLB_TEST_XLA") == "full":
        return USERS_FLAGS
    spec = importlib.util.find_spec("jaxlib")
    folders = (spec and spec.submodule_search_locations) or []
    known = set()
    for library in (path for folder in folders for path in Path(folder).glob("libjax_common.*")):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
            known |= {flag for flag in QUICK if code.find(flag[2:].split("=")[0].encode() + b"\0") >= 0}
    # of two settings the last counts: the user's
    return " ".join([*(flag for flag in QUICK if flag in known), *USERS_FLAGS.split()])


def compiled_folder(flags: str) -> Path:
    """A folder of this user's outside the checkout, for this JAX and these flags."""
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    root = Path(tempfile.gettempdir()) / f"cglb-tests-{user}"
    root.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and root.stat().st_uid != os.getuid():
        root = Path(tempfile.mkdtemp(prefix="cglb-tests-"))  # run no code that somebody else compiled
    name = f"jax-{importlib.metadata.version('jax')}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"
    (root / name).mkdir(exist_ok=True)
    return root / name


one_core_per_worker()
# `CGLB_TEST_DEVICES=4`: a mesh of four virtual devices for every test, without BLAS and threads
DEVICES = os.environ.get("CGLB_TEST_DEVICES")
os.environ["XLA_FLAGS"] = quick_flags()
if DEVICES:
    os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={DEVICES}"
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled_folder(os.environ["XLA_FLAGS"]))
    os.environ["CGLB_TEST_PRUNE"] = str(Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).parent)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# before the first import of cglb: every function's jaxtyping signature is enforced by beartype
jaxtyping.install_import_hook("cglb", "typecheck.checked")

SHARED = {
    "deadline": None,  # the first call of a shape compiles
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("fixed", max_examples=15, derandomize=True, **SHARED)
settings.register_profile("explore", max_examples=300, print_blob=True, **SHARED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# ---- for every test ----

# Whole programs: commands, pages, stores, fits that are cut off and resumed.
AS_USERS_RUN = (
    *("docs", "paper", "cli", "checkpoint", "pictures", "hard_data", "tables", "interruptions"),
    *("choices", "kernel_choice", "faults", "store", "memory", "regressor", "certificate", "row_noise"),
    *("progressive", "extend", "rounding", "own_kernels", "system", "stored_bounds", "reference"),
    *("cases", "paper_specs", "paper_tables", "compile_cache"),
)

# Files by the time they take, longest first, so that no worker is left alone with a long one at the end.
# `make durations` prints what the order should be. Files that are not here follow in alphabetical order.
LONGEST_FIRST = (
    "distributed",
    *("docs", "hard_data", "certificate", "checkpoint", "row_noise", "train", "regressor", "paper"),
    *("iterative", "chain", "progressive", "cli", "variance", "choices", "bounds", "rounding"),
    *("operator", "store", "kernel_choice", "stored_bounds", "tables", "backends", "system", "memory"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; within a file nothing moves, so what a module caches is made once."""
    place = {f"test_{name}.py": number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With `CGLB_TEST_DURATIONS`: seconds per file, longest first, to keep `LONGEST_FIRST` true."""
    if "CGLB_TEST_DURATIONS" not in os.environ:
        return
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.split("::")[0]] += report.duration
    terminalreporter.section("seconds per file")
    for name, total in seconds.most_common():
        terminalreporter.write_line(f"{total:8.1f}  {name}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep our folder of compiled code small: once, after all workers."""
    if "CGLB_TEST_PRUNE" in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        from cglb.core.cache import prune

        prune(Path(os.environ["CGLB_TEST_PRUNE"]), CACHE_LIMIT)


@pytest.fixture(autouse=True)
def strict_jax():
    """No silent change of dtype or rank anywhere in the package."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(autouse=True)
def devices():
    """With `CGLB_TEST_DEVICES`: everything that is not traced runs on a mesh, by XLA alone."""
    if not DEVICES:
        yield
        return
    from cglb.compute.backend import using
    from cglb.compute.mesh import Mesh
    from cglb.compute.xla import XLA

    with using(Mesh.of(local=XLA())):
        yield


@pytest.fixture
def no_cache(monkeypatch):
    """Commands leave the cache of compiled code alone: it is a switch of the whole process."""
    monkeypatch.setenv("CGLB_COMPILED", "off")


@pytest.hookimpl(tryfirst=True)  # before fixtures, of which some fit a model
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Signatures are checked, but not in whole programs."""
    unchecked = item.path.name in {f"test_{name}.py" for name in AS_USERS_RUN}
    jaxtyping.config.update("jaxtyping_disable", unchecked)


@pytest.fixture(autouse=True)
def effort_of_subprocesses(request, monkeypatch):
    """Subprocesses compile as this process does, so that bits agree; not those about optimised code."""
    if request.path.name in FULL_EFFORT:
        monkeypatch.setenv("XLA_FLAGS", USERS_FLAGS)
