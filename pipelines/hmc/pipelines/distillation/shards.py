"""Files of translations: each holds those of a fixed part of the source lines, and is written whole or not at all.

A run that was killed goes on with the first file that is missing.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidArtifactError
from hmc.artifact.storage.files import whole_file
from hmc.pipelines.distillation.filters import Skipped

FOLDER = "translations"
FIX = "Delete this file, and run the command again: it is translated anew."


@dataclass(frozen=True)
class TeacherHypothesis:
    """One translation."""

    text: str
    score: float
    """log P / length ^ length_penalty (natural logarithm)."""
    tokens: int
    """Length with the end of the sentence."""
    unfinished: bool = False
    """True if the search stopped at its limit before the sentence ended."""


@dataclass(frozen=True)
class Record:
    """One source line with its translations."""

    line: int
    """Position in all source files together, from 0."""
    source: str
    source_tokens: int = 0
    """Length with the end of the sentence; 0 for a line that was not translated."""
    hypotheses: tuple[TeacherHypothesis, ...] = ()
    """Best first."""
    skipped: Skipped | None = None
    """Why the line was not translated."""

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values, without what does not apply."""
        if self.skipped:
            return {"line": self.line, "source": self.source, "skipped": self.skipped}
        found = asdict(self)
        del found["skipped"]
        return found

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Record:
        """The inverse of `to_json`. Raises TypeError or KeyError for other values."""
        hypotheses = tuple(TeacherHypothesis(**hypothesis) for hypothesis in values.pop("hypotheses", ()))
        return cls(**values, hypotheses=hypotheses)


def shard_path(folder: Path, number: int) -> Path:
    """Returns the path of a file of translations. folder: of the distillation. number: from 0."""
    return folder / FOLDER / f"{number:06d}.jsonl.gz"


def write_shard(path: Path, records: Sequence[Record]) -> None:
    """Writes the file whole or not at all. The same records give the same bytes."""
    with whole_file(path) as packed, gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
        for record in records:
            file.write(json.dumps(record.to_json(), ensure_ascii=False).encode() + b"\n")


def read_shard(path: Path) -> Iterator[Record]:
    """Yields the records of a file. Raises InvalidArtifactError if it is damaged."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
            for line in file:
                yield Record.from_json(json.loads(line))
    except (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArtifactError(f"translations {path}", [str(error) or type(error).__name__], FIX) from error
