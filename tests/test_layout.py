"""How the package is put together. That layers are not crossed is a contract in pyproject.toml."""

import importlib
import inspect
import pkgutil

import pytest

import cglb

PACKAGES = ["cglb"] + [
    module.name for module in pkgutil.walk_packages(cglb.__path__, "cglb.") if module.ispkg
]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_or_class_hides_a_module(package):
    """`from cglb.train import train` in cglb/__init__.py would make cglb.train.X unreachable."""
    package = importlib.import_module(package)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    hidden = {
        name
        for name, found in vars(package).items()
        if name in modules and (inspect.isroutine(found) or inspect.isclass(found))
    }
    assert not hidden


def test_every_exported_name_exists_once():
    assert len(set(cglb.__all__)) == len(cglb.__all__)
    assert all(hasattr(cglb, name) for name in cglb.__all__)
