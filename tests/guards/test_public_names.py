"""Public names of the packages: described, seen alike by people, type checkers and the import system."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = (
    "hmc.artifact",
    "hmc.benchmark",
    "hmc.compiler",
    "hmc.pipelines",
    "hmc.serving",
    "hmc.serving.client",
    "hmc.training",
)
FILES = ("hmc.artifact.errors", "hmc.artifact.bundle.manifest", "hmc.training.runs.recipe")
"""Modules that the page of the API describes for what users see of them: errors, and files that they write or read."""


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names(package: str) -> None:
    module = import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    home = {
        alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert sorted(home) == sorted(module.__all__)
    for name, where in home.items():
        value = getattr(module, name)
        assert value is getattr(import_module(where), name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__ == where
            assert (value.__doc__ or "").strip(), f"{package}.{name} has no docstring"
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'no_such_name'"):
        module.no_such_name  # noqa: B018


def test_the_page_of_the_api_has_public_names_alone(repository: Path) -> None:
    page = (repository / "docs" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: (\S+)\.(\w+)$", page, flags=re.MULTILINE)
    assert len(shown) == len(set(shown)) >= 50
    for package, name in shown:
        public = f"{package}.{name}" in FILES or name in import_module(package).__all__
        assert public, f"{package}.{name} is internal"
    of_callers = {name for package, name in shown if package in {"hmc.serving", "hmc.serving.client"}}
    exported = set(import_module("hmc.serving").__all__) | set(import_module("hmc.serving.client").__all__)
    errors = {name for name in exported if getattr(import_module("hmc.artifact.errors"), name, None) is not None}
    assert of_callers == exported - errors, "the page has a section of all errors"


@pytest.mark.parametrize("package", ["hmc.serving", "hmc.serving.client"])
def test_every_error_of_a_call_can_be_imported_beside_it(package: str) -> None:
    module = import_module("hmc.artifact.errors")
    errors = {name for name, value in vars(module).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert errors <= set(import_module(package).__all__)
