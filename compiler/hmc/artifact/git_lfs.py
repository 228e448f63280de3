"""Pointers of Git LFS: a clone without `git lfs pull` holds a short text in place of each large file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError

BEGIN = b"version https://git-lfs.github.com/spec/"
IS_POINTER = "is a Git LFS pointer: run `git lfs pull` in its repository, or download the file itself"


def is_pointer(content: Path | bytes) -> bool:
    """Whether a file, or the content that was read of one, is a pointer. Any path may be asked about."""
    if isinstance(content, bytes):
        return content.startswith(BEGIN)
    with suppress(OSError), content.open("rb") as file:
        return file.read(len(BEGIN)) == BEGIN
    return False


def why(content: Path | bytes, otherwise: str) -> str:
    """The problem of a file that could not be used, for a message after its name: it is a pointer, or else
    `otherwise`."""
    return IS_POINTER if is_pointer(content) else otherwise


def refuse_pointer(content: Path | bytes, name: str) -> None:
    """Raises InvalidRequestError for a pointer, which would pass for a text. name: of the file."""
    if is_pointer(content):
        raise InvalidRequestError(f"{name} {IS_POINTER}")
