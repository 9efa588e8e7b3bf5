"""Only `cglb.compute` knows the machine: the source of every other module, read as a syntax tree."""

import ast
from pathlib import Path

import pytest

import cglb

PACKAGE = Path(cglb.__file__).parent
# programs around the library may ask for threads and report the machine; they compute nothing
MACHINE = ("compute", "experiments")
MODULES = sorted(
    path.relative_to(PACKAGE)
    for path in PACKAGE.rglob("*.py")
    if path.relative_to(PACKAGE).parts[0] not in MACHINE
)
IMPORTS = (
    "threading",
    "concurrent",
    "multiprocessing",
    "threadpoolctl",
    "scipy.linalg.blas",
    "scipy.linalg.lapack",
)
NAMES = ("get_blas_funcs", "get_lapack_funcs", "default_backend", "optimization_barrier")
INSIDE = ("cglb.compute.cpu",)  # the CPU's own routines are reached through a backend


def offences(source: str) -> list[str]:
    """What a module imports or names that only `compute` may."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if is_machine(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [alias.name for alias in node.names]
            found += [module] if is_machine(module) else []
            found += [name for name in names if name in NAMES or is_machine(f"{module}.{name}")]
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            found.append(node.attr)
    return found


def is_machine(module: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in (*IMPORTS, *INSIDE))


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_mathematical_module_knows_the_machine(module):
    assert offences((PACKAGE / module).read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "import threading",
        "import concurrent.futures as futures",
        "from concurrent.futures import ThreadPoolExecutor",
        "from concurrent import futures",
        "from threadpoolctl import threadpool_limits",
        "from scipy.linalg import get_blas_funcs",
        "import scipy\nscipy.linalg.get_lapack_funcs(('potrf',))",
        "from scipy.linalg import blas",
        "import jax\njax.default_backend()",
        "from jax import default_backend",
        "from jax import lax\nlax.optimization_barrier(x)",
        "from cglb.compute.cpu import blas",
        "from cglb.compute.cpu.cholesky import cholesky",
    ],
)
def test_the_rule_finds_what_it_forbids(line):
    assert offences(line)


def test_linear_algebra_does_not_import_what_is_above_it():
    above = ("cglb.bounds", "cglb.posteriors", "cglb.methods", "cglb.training", "cglb.experiments")
    for path in (*(PACKAGE / "linalg").rglob("*.py"), *(PACKAGE / "compute").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith(above), (path, node.module)
