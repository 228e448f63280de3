"""What every analysis writes: data as JSON, with the model, the text and the versions that it came from."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hmc.artifact.errors import InvalidRequestError

SCHEMA_VERSION = 1


class CheckpointSource(BaseModel):
    """A checkpoint that was analysed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Its path as it was given."""
    digest: str
    """`checkpoint_digest`: sha256 over config and weights."""
    heads: int
    """Open heads."""


class CorpusSource(BaseModel):
    """A text that was read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """The corpus as it was given."""
    sentences: int
    sha256: str
    """Over the sentences that were used, so that a limit on their number changes it."""


def corpus_source(name: str, sentences: Iterable[str | tuple[str, ...]]) -> CorpusSource:
    """Digest of sentences, or of tuples of aligned sentences (one line each, sides separated by TAB)."""
    digest, count = hashlib.sha256(), 0
    for count, sentence in enumerate(sentences, 1):  # noqa: B007
        line = sentence if isinstance(sentence, str) else "\t".join(sentence)
        digest.update(f"{line}\n".encode())
    return CorpusSource(name=name, sentences=count, sha256=digest.hexdigest())


def versions() -> dict[str, str]:
    """Versions of what numbers depend on; of hmc only where it is installed, not run from its sources."""
    found = {"python": python_version()}
    for name in ("hmc", "torch", "numpy", "sacrebleu", "sentencepiece"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


class Result(BaseModel):
    """Contents of `COMMAND.json`. The same inputs and versions give the same bytes: no times, no machine names."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA_VERSION
    command: str
    """The subcommand of `hmc analyze`."""
    checkpoints: list[CheckpointSource] = []
    corpora: list[CorpusSource] = []
    settings: dict[str, Any] = {}
    """Options that change the numbers, the seed among them."""
    versions: dict[str, str] = {}
    data: dict[str, Any]

    def to_json(self) -> str:
        """JSON text; NaN and infinity become null."""
        return json.dumps(_plain(self.model_dump(mode="json")), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def write_result(result: Result, folder: Path) -> Path:
    """Writes `folder / COMMAND.json`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.command}.json"
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(result.to_json())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def read_result(path: Path, commands: Sequence[str] = ()) -> Result:
    """Reads what `write_result` wrote. Raises InvalidRequestError; `commands`: those the caller can use."""
    try:
        result = Result.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, ValidationError) as error:
        detail = (
            "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            if isinstance(error, ValidationError)
            else str(error)
        )
        raise InvalidRequestError(f"{path}: not a result of `hmc analyze`: {detail}") from error
    if result.schema_version != SCHEMA_VERSION:
        raise InvalidRequestError(
            f"{path}: schema version {result.schema_version}; this hmc reads {SCHEMA_VERSION}: run the analysis again"
        )
    if commands and result.command not in commands:
        raise InvalidRequestError(f"{path} is a result of {result.command}; needed is one of {', '.join(commands)}")
    return result


@dataclass(frozen=True)
class Summary:
    """A short table for people; cells are text already."""

    title: str
    columns: tuple[str, ...]
    """The first column is text, the others are numbers."""
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Lines under the table."""

    def markdown(self) -> str:
        """The table, then its notes, as Markdown; the title is left to the reader's heading."""
        rule = tuple("---:" if number else "---" for number in range(len(self.columns)))
        lines = [self.columns, rule, *self.rows]
        table = "".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |\n" for line in lines)
        return table + "".join(f"\n{note}\n" for note in self.notes)
