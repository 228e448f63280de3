"""Directories are replaced whole or not at all, even when something comes in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmc.artifact.files import replace_directory


def contents(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def rewrite(place: Path, *, stop: bool = False) -> None:
    with replace_directory(place) as folder:
        (folder / "weights").write_text("new")
        if stop:
            raise KeyboardInterrupt


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("old")
    return tmp_path / "model"


def test_replaced(place: Path) -> None:
    rewrite(place)
    assert contents(place.parent) == {"model/weights": "new"}


@pytest.mark.parametrize("interrupted", ["while it is written", "between the renames"])
def test_an_interrupt_leaves_what_was(place: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str) -> None:
    rename, calls = Path.replace, []

    def replace(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        rewrite(place, stop=interrupted == "while it is written")
    assert contents(place.parent) == {"model/weights": "old"}
    assert len(calls) == (0 if interrupted == "while it is written" else 3)
