"""buf finds no fault with the protocol, and nothing that would break a client of v1."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BUF = next(Path(__file__).with_name("node_modules").glob("@bufbuild/buf-*/bin/buf"), None)
BASELINE = Path("tests/data/hmc_v1.binpb")
pytestmark = pytest.mark.skipif(BUF is None, reason="needs buf: `npm ci` in tests/protos, on Linux")


def buf(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(BUF), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def copy(repository: Path, folder: Path, old: str, new: str) -> Path:
    """A copy of the protocol in which `old` is replaced."""
    shutil.copytree(repository / "protos", folder / "protos")
    shutil.copy(repository / "buf.yaml", folder)
    path = folder / "protos/hmc/v1/translation.proto"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return folder


def test_the_style_is_clean(repository: Path) -> None:
    ran = buf(repository, "lint")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_nothing_breaks_the_promise(repository: Path) -> None:
    ran = buf(repository, "breaking", "--against", str(BASELINE))
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("double score = 2;", "double score = 12;", "field"),
        ("optional int64 seed = 4", "optional int32 seed = 4", "type"),
        ("rpc ListLevels(ListLevelsRequest)", "rpc ShowLevels(ListLevelsRequest)", "ListLevels"),
    ],
)
def test_a_break_is_found(repository: Path, tmp_path: Path, old: str, new: str, reason: str) -> None:
    ran = buf(copy(repository, tmp_path, old, new), "breaking", "--against", str(repository / BASELINE))
    assert ran.returncode != 0
    assert reason in ran.stdout


def test_a_fault_of_style_is_found(repository: Path, tmp_path: Path) -> None:
    ran = buf(copy(repository, tmp_path, "HEAD_KIND_CROSS", "CROSS"), "lint")
    assert "should be prefixed" in ran.stdout
