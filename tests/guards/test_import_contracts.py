"""The import contracts hold, and a planted violation of any of them is reported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = {
    "v1": "protos",
    "artifact": "compiler",
    "training": "training",
    "compiler": "compiler",
    "serving": "serving",
    "benchmark": "benchmark",
    "cli": "cli",
}
ALLOWED = {
    "v1": set(),
    "artifact": set(),
    "training": {"artifact", "torch"},
    "compiler": {"artifact", "onnx", "onnxruntime"},
    "serving": {"artifact", "v1", "onnxruntime"},
    "benchmark": {"serving", "artifact"},
}
EXTERNAL = {
    "artifact": {"torch", "onnx", "onnxruntime"},
    "compiler": {"torch"},
    "serving": {"torch", "onnx"},
}


def lint(config: Path, roots: list[Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter's verdict on the rooms under `roots`."""
    program = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    path = os.pathsep.join(str(root) for root in roots)
    environment = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", program, "--config", str(config), "--no-cache"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def test_contracts_hold(repository: Path) -> None:
    roots = sorted({repository / root for root in ROOMS.values()})
    verdict = lint(repository / "pyproject.toml", roots, repository)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_every_forbidden_import_is_reported(repository: Path, tmp_path: Path, room: str) -> None:
    """One module a room imports everything it must not: the report names each of them."""
    for name, root in ROOMS.items():
        package = tmp_path / root / "hmc" / name
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    forbidden = sorted(f"hmc.{name}" for name in ROOMS if name not in {room, *ALLOWED[room]})
    forbidden += sorted(EXTERNAL.get(room, set()))
    planted = tmp_path / ROOMS[room] / "hmc" / room / "planted.py"
    planted.write_text("".join(f"import {name}\n" for name in forbidden), encoding="utf-8")

    verdict = lint(repository / "pyproject.toml", [tmp_path / root for root in set(ROOMS.values())], tmp_path)

    assert verdict.returncode == 1, verdict.stdout + verdict.stderr
    missed = [name for name in forbidden if f"hmc.{room}.planted -> {name}" not in verdict.stdout]
    assert not missed, verdict.stdout


def test_allowed_imports_pass(repository: Path, tmp_path: Path) -> None:
    for name, root in ROOMS.items():
        package = tmp_path / root / "hmc" / name
        package.mkdir(parents=True)
        allowed = ALLOWED.get(name, set(ROOMS) - {"cli"})
        lines = [f"import hmc.{other}\n" if other in ROOMS else f"import {other}\n" for other in sorted(allowed)]
        (package / "__init__.py").write_text("".join(lines), encoding="utf-8")

    verdict = lint(repository / "pyproject.toml", [tmp_path / root for root in set(ROOMS.values())], tmp_path)

    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
