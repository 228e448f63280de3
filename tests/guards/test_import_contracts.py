"""The import contracts hold, and a planted violation of any of them is reported."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ROOMS = {
    "v1": "protos",
    "artifact": "compiler",
    "training": "training",
    "compiler": "compiler",
    "engine": "engine",
    "serving": "serving",
    "benchmark": "benchmark",
    "pipelines": "pipelines",
    "cli": "cli",
}
ALLOWED = {
    "v1": set(),
    "artifact": set(),
    "training": {"artifact", "torch"},
    "compiler": {"artifact", "onnx", "onnxruntime"},
    "engine": {"artifact", "onnxruntime"},
    "serving": {"artifact", "v1", "engine", "grpc"},
    "benchmark": {"serving", "artifact", "engine"},
    "pipelines": {"artifact", "training", "compiler", "engine", "serving", "benchmark"},
}
EXTERNAL = {
    "artifact": {"torch", "onnx", "onnxruntime"},
    "compiler": {"torch"},
    "engine": {"torch", "onnx", "grpc"},
    "serving": {"torch", "onnx"},
    "pipelines": {"torch", "onnx", "onnxruntime"},
}


def lint(config: Path, roots: list[Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter's verdict on the rooms under `roots`."""
    program = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    path = os.pathsep.join(str(root) for root in roots)
    environment = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", program, "--config", str(config), "--no-cache"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def contracts(kind: str) -> list[dict[str, Any]]:
    """The contracts of a kind: "layers" put the packages of one room, or of one package, in layers; "protected" are
    those of the edge."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    return [contract for contract in settings["tool"]["importlinter"]["contracts"] if contract["type"] == kind]


def layers(contract: dict[str, Any]) -> list[list[str]]:
    """Names of packages, top layer first; those of one layer may not import each other."""
    return [[name.strip(" ()") for name in layer.split("|")] for layer in contract["layers"]]


def skeleton(folder: Path) -> list[Path]:
    """Makes every room, and every package that a contract names, empty. Returns the roots."""
    names = [f"hmc.{room}" for room in ROOMS]
    for contract in contracts("layers"):
        names += contract["containers"]
    for contract in contracts("protected"):
        names += contract["protected_modules"] + contract["allowed_importers"]
    for name in names:
        _, room, *parts = name.split(".")
        package = folder / ROOMS[room] / "hmc"
        for part in [room, *parts]:
            package = package / part
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").touch()
    return [folder / root for root in sorted(set(ROOMS.values()))]


def test_contracts_hold(repository: Path) -> None:
    roots = sorted({repository / root for root in ROOMS.values()})
    verdict = lint(repository / "pyproject.toml", roots, repository)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_every_forbidden_import_is_reported(repository: Path, tmp_path: Path, room: str) -> None:
    """One module a room imports everything it must not: the report names each of them."""
    roots = skeleton(tmp_path)
    forbidden = sorted(f"hmc.{name}" for name in ROOMS if name not in {room, *ALLOWED[room]})
    forbidden += sorted(EXTERNAL.get(room, set()))
    planted = tmp_path / ROOMS[room] / "hmc" / room / "planted.py"
    planted.write_text("".join(f"import {name}\n" for name in forbidden), encoding="utf-8")

    verdict = lint(repository / "pyproject.toml", roots, tmp_path)

    assert verdict.returncode == 1, verdict.stdout + verdict.stderr
    missed = [name for name in forbidden if f"hmc.{room}.planted -> {name}" not in verdict.stdout]
    assert not missed, verdict.stdout


def test_allowed_imports_pass(repository: Path, tmp_path: Path) -> None:
    roots = skeleton(tmp_path)
    for name, root in ROOMS.items():
        package = tmp_path / root / "hmc" / name
        allowed = ALLOWED.get(name, set(ROOMS) - {"cli"})
        lines = [f"import hmc.{other}\n" if other in ROOMS else f"import {other}\n" for other in sorted(allowed)]
        (package / "__init__.py").write_text("".join(lines), encoding="utf-8")

    verdict = lint(repository / "pyproject.toml", roots, tmp_path)

    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


@pytest.mark.parametrize("contract", contracts("layers"), ids=lambda contract: contract["containers"][0])
def test_every_import_against_the_layers_is_reported(
    repository: Path, tmp_path: Path, contract: dict[str, Any]
) -> None:
    """Each package imports all that are above it, and those beside it: the report names each import."""
    roots = skeleton(tmp_path)
    (container,) = contract["containers"]
    inside = tmp_path / ROOMS[container.split(".")[1]] / container.replace(".", "/")
    expected, above = [], list[str]()
    for layer in layers(contract):
        for name in layer:
            forbidden = [*above, *(other for other in layer if other != name)]
            (inside / f"{name}.py").write_text(
                "".join(f"import {container}.{x}\n" for x in forbidden), encoding="utf-8"
            )
            expected += [f"{container}.{name} -> {container}.{other}" for other in forbidden]
        above += layer

    verdict = lint(repository / "pyproject.toml", roots, tmp_path)

    assert verdict.returncode == 1, verdict.stdout + verdict.stderr
    assert len(expected) > 2
    missed = [line for line in expected if f"- {line} (l." not in verdict.stdout]
    assert not missed, verdict.stdout


def test_every_import_of_the_edge_is_reported(repository: Path, tmp_path: Path) -> None:
    """The core imports all of the edge: the report names each import."""
    roots = skeleton(tmp_path)
    edge = [name for contract in contracts("protected") for name in contract["protected_modules"]]
    planted = tmp_path / "cli" / "hmc" / "cli" / "planted.py"
    planted.write_text("".join(f"import {name}\n" for name in edge), encoding="utf-8")

    verdict = lint(repository / "pyproject.toml", roots, tmp_path)

    assert verdict.returncode == 1, verdict.stdout + verdict.stderr
    missed = [name for name in edge if f"hmc.cli.planted -> {name} " not in verdict.stdout]
    assert not missed, verdict.stdout


def test_a_package_in_no_layer_is_reported(repository: Path, tmp_path: Path) -> None:
    roots = skeleton(tmp_path)
    for contract in contracts("layers"):
        (container,) = contract["containers"]
        inside = tmp_path / ROOMS[container.split(".")[1]] / container.replace(".", "/")
        (inside / "unheard_of.py").touch()

    verdict = lint(repository / "pyproject.toml", roots, tmp_path)

    assert verdict.returncode == 1
    assert verdict.stdout.count("unheard_of") >= len(contracts("layers")), verdict.stdout
