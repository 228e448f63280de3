"""Plain source text: one sentence a line, in any number of files, plain or gzip."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.rows import text_lines


@dataclass(frozen=True)
class SourceFile:
    """A file of source text, and the identity of its text."""

    path: Path
    lines: int
    sha256: str
    """Of the text, so that a file may be packed or unpacked."""

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """Reads the file once. Raises InvalidRequestError as `text_lines`."""
        digest = hashlib.sha256()
        lines = 0
        for line in text_lines(path):
            digest.update(f"{line}\n".encode())
            lines += 1
        return cls(path, lines, digest.hexdigest())

    def identity(self) -> dict[str, Any]:
        """Returns the properties of the file on which translations depend, as JSON values. Its path is not among
        them."""
        found = asdict(self)
        del found["path"]
        return found


@dataclass(frozen=True)
class SourceLine:
    """One line of the source text."""

    number: int
    """Position in all files together, from 0."""
    text: str
    place: str
    """File and line, for messages."""


def read_sources(paths: Sequence[Path]) -> list[SourceFile]:
    """Reads every file once. Raises InvalidRequestError for a file that cannot be read, and if there is no text."""
    files = [SourceFile.read(path) for path in paths]
    if not sum(file.lines for file in files):
        raise InvalidRequestError(
            "sources: the files hold no line to translate; give files of source text, one sentence a line"
        )
    return files


def read_references(paths: Sequence[Path], sources: Sequence[SourceFile]) -> list[SourceFile]:
    """Reads the references of source files, one for each or none. Raises InvalidRequestError if they do not fit."""
    if paths and len(paths) != len(sources):
        raise InvalidRequestError(
            f"references: {len(paths)} files for {len(sources)} of source text; give one for each, in the same order"
        )
    files = [SourceFile.read(path) for path in paths]
    for file, source in zip(files, sources, strict=False):
        if file.lines != source.lines:
            raise InvalidRequestError(
                f"{file.path} has {file.lines:,} lines, and {source.path} {source.lines:,}: references have the "
                "translation of each source line on the same line"
            )
    return files


def all_lines(paths: Sequence[Path]) -> Iterator[SourceLine]:
    """Yields the lines of all files, one file after the other."""
    number = 0
    for path in paths:
        for here, text in enumerate(text_lines(path), 1):
            yield SourceLine(number, text, f"{path} line {here}")
            number += 1


def sample(paths: Sequence[Path], lines: int, number: int) -> list[str]:
    """Returns about `number` texts, spread evenly over all `lines` lines; blank ones are left out."""
    stride = max(1, lines // number)
    return [line.text for line in islice(all_lines(paths), 0, None, stride) if line.text.strip()]
