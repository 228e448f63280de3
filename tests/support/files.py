"""Texts that tests write, an object that must not be unpickled, and what a folder holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Writes a text, one line for each; returns its path."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_pair(folder: Path, sources: Sequence[str], targets: Sequence[str] | None = None, name: str = "t") -> str:
    """Writes NAME.en and NAME.de into `folder`, which is made; returns "SRC TGT". targets: default: the sources in
    capitals, which a small model learns soon."""
    folder.mkdir(exist_ok=True)
    pair = {"en": sources, "de": [line.upper() for line in sources] if targets is None else targets}
    return " ".join(str(write_lines(folder / f"{name}.{side}", lines)) for side, lines in pair.items())


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Path below `folder` → content, of every file."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Hostile:
    """Its pickle creates the file `target` when it is read."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.target,)
