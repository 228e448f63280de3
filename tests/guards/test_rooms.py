"""The shape of the rooms: no import cycle between files, no crowded folder, and a docstring for every package."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOMS = (
    "hmc.v1",
    "hmc.artifact",
    "hmc.training",
    "hmc.compiler",
    "hmc.engine",
    "hmc.serving",
    "hmc.benchmark",
    "hmc.pipelines",
    "hmc.cli",
)
ROOTS = ("protos", "compiler", "training", "engine", "serving", "benchmark", "pipelines", "cli", "experiments")
MOST = 20
"""Modules of one folder."""
OF_ONE_KIND = ("hmc/cli", "hmc/cli/analyze", "hmc/training/analysis/figures")
"""Folders whose files are siblings of one kind, a command or a figure each: these may have more."""


def first_cycle(imports: dict[str, set[str]]) -> list[str]:
    """Module → modules that it imports: the first cycle found, empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def packages(repository: Path) -> list[Path]:
    """Every folder that holds modules of ours, tests left out."""
    files = [path for root in ROOTS for path in (repository / root).rglob("*.py")]
    return sorted({path.parent for path in files})


def test_no_import_cycle_between_files() -> None:
    """Imports inside functions and those for type checkers count too."""
    graph = grimp.build_graph(*ROOMS, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 250
    assert first_cycle(imports) == []


def test_a_cycle_would_be_found() -> None:
    assert first_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})


def test_no_folder_is_crowded(repository: Path) -> None:
    folders = packages(repository)
    assert len(folders) > 40
    crowded = {}
    for folder in folders:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py" and "_pb2" not in path.name]
        if len(modules) > MOST and not folder.as_posix().endswith(OF_ONE_KIND):
            crowded[folder.as_posix()] = len(modules)
    assert not crowded, "group the modules of these folders by subject"


def test_every_package_says_what_it_is_for(repository: Path) -> None:
    for folder in packages(repository):
        init = folder / "__init__.py"
        assert init.exists(), f"{folder} has no __init__.py"
        assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), f"{init} has no docstring"


def public_classes(source: str) -> list[str]:
    """Names of the classes of a module that do not begin with `_`."""
    found = (node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return [name for name in found if not name.startswith("_")]


def test_no_two_public_classes_share_a_name(repository: Path) -> None:
    """A name stands for one thing in all rooms."""
    places: dict[str, list[str]] = {}
    for folder in packages(repository):
        for path in folder.glob("*.py"):
            if "_pb2" not in path.name and "experiments" not in path.parts:
                for name in public_classes(path.read_text(encoding="utf-8")):
                    places.setdefault(name, []).append(str(path.relative_to(repository)))
    assert len(places) > 400
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def options_in_errors(source: str) -> list[str]:
    """Options of a command line that errors of a module name, but for commands in backticks."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise):
            constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            text = "".join(value for value in constants if isinstance(value, str))
            found += re.findall(r"--[a-z][a-z-]*", re.sub("`[^`]*`", "", text))
    return found


def test_only_the_command_names_options(repository: Path) -> None:
    """A caller in Python never typed one. Errors name fields, and the command line renders them as options."""
    named = {}
    for folder in packages(repository):
        if "cli" not in folder.parts and "experiments" not in folder.parts:
            for path in folder.glob("*.py"):
                if options := options_in_errors(path.read_text(encoding="utf-8")):
                    named[str(path.relative_to(repository))] = options
    assert named == {}


def test_an_option_in_an_error_is_found() -> None:
    source = 'def f(x):\n    raise E(f"--beam {x}: run `hmc a --b` or " "leave --max-rows out")\n"--other"'
    assert options_in_errors(source) == ["--beam", "--max-rows"]


def test_a_class_is_found_by_its_name() -> None:
    assert public_classes("class A:\n    class B: ...\nclass _C: ...\ndef d(): ...") == ["A"]
