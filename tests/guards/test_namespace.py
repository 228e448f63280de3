"""`hmc` is a PEP 420 namespace over several roots, and every tool knows every root."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOTS = ("protos", "compiler", "training", "engine", "serving", "benchmark", "pipelines", "cli")
ROOMS = (
    "protos/hmc/v1",
    "compiler/hmc/artifact",
    "compiler/hmc/compiler",
    "training/hmc/training",
    "engine/hmc/engine",
    "serving/hmc/serving",
    "benchmark/hmc/benchmark",
    "pipelines/hmc/pipelines",
    "cli/hmc/cli",
)


@pytest.fixture(scope="module")
def pyproject(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("root", ROOTS)
def test_no_root_holds_an_init_that_hides_the_others(repository: Path, root: str) -> None:
    assert not (repository / root / "hmc" / "__init__.py").exists(), f"delete {root}/hmc/__init__.py"


def test_the_roots_are_all_the_roots(repository: Path) -> None:
    assert sorted(path.parent.name for path in repository.glob("*/hmc")) == sorted(ROOTS)


def test_the_rooms_are_all_the_rooms(repository: Path) -> None:
    found = [path.relative_to(repository).as_posix() for path in repository.glob("*/hmc/*") if path.is_dir()]
    assert sorted(room for room in found if not room.endswith("__pycache__")) == sorted(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_a_typed_package(repository: Path, room: str) -> None:
    assert (repository / room / "__init__.py").is_file()
    assert (repository / room / "py.typed").is_file()


def test_every_tool_knows_every_root(pyproject: dict[str, Any]) -> None:
    tool = pyproject["tool"]
    assert tuple(tool["hatch"]["build"]["dev-mode-dirs"]) == ROOTS
    assert tuple(tool["hatch"]["build"]["targets"]["wheel"]["packages"]) == (
        "protos/hmc",
        "protos/buf",
        *(f"{root}/hmc" for root in ROOTS[1:]),
    )
    assert tuple(tool["pytest"]["ini_options"]["pythonpath"]) == (".", *ROOTS)  # and `tests`
    assert tuple(tool["mypy"]["mypy_path"]) == ROOTS
    assert tuple(tool["ruff"]["src"]) == ROOTS


def test_every_room_is_under_an_import_contract(pyproject: dict[str, Any]) -> None:
    names = sorted("hmc." + room.rsplit("/", 1)[1] for room in ROOMS)
    linter = pyproject["tool"]["importlinter"]
    assert sorted(linter["root_packages"]) == names
    sources = {source for contract in linter["contracts"] for source in contract.get("source_modules", ())}
    assert sources == set(names) - {"hmc.cli"}  # the command may import every room
