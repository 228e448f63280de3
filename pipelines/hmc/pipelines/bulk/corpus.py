"""The lines of a corpus: plain text, gzip, JSONL with a field, Parquet with a column; one file after the other.

Files lie at a path of this machine, or at a URL of a store that fsspec knows, such as s3://bucket/corpus.txt. A line
that cannot be read is a line all the same: it keeps its number, and has a problem in place of a text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.git_lfs import refuse_pointer
from hmc.artifact.storage.rows import (
    TEXTS,
    conversion,
    has_lone_surrogate,
    json_row,
    needs,
    null_bytes,
    parquet_batches,
    parquet_table,
    unpacked,
)
from hmc.engine.requests.checks import decode_line, other_form

URL = re.compile(r"[a-z][a-z0-9+.-]*://")


def is_url(place: str) -> bool:
    """Whether it names a store, and not a path on this machine. `file://` is a path."""
    return URL.match(place) is not None and not place.startswith("file://")


def local_path(place: str) -> Path:
    """The path of a place that is no URL of a store."""
    return Path(place.removeprefix("file://"))


@contextmanager
def opened(place: str) -> Iterator[BinaryIO]:
    """Opens a file to read. Raises InvalidRequestError if it is missing or cannot be read."""
    try:
        file = _open_stored(place) if is_url(place) else local_path(place).open("rb")
    except FileNotFoundError as error:
        hint = "" if is_url(place) else " (paths are relative to the working directory)"
        raise InvalidRequestError(f"{place}: no such file{hint}") from error
    except OSError as error:
        raise InvalidRequestError(f"{place}: cannot be read: {error.strerror or error}") from error
    with file:
        yield file


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path there. Raises InvalidRequestError for a malformed URL, or for a missing
    package, with the command that installs it."""
    fsspec = needs("fsspec", f"{url} is on a store")
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url))
    except (ImportError, ValueError) as error:  # the package of one store, or no such store
        raise InvalidRequestError(f"{url}: {error}; the pages of fsspec list the stores that it knows") from error


def _open_stored(url: str) -> BinaryIO:
    system, path = file_system(url)
    return cast(BinaryIO, system.open(path, "rb"))


LONGEST = 1 << 20
"""Most bytes of a line. A longer one is no sentence; the file may be no text at all."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class CorpusLine:
    """One line of the corpus."""

    text: str | None
    """None if it cannot be read."""
    problem: str | None = None
    """Why it cannot be read."""


@dataclass(frozen=True)
class CorpusFile:
    """A file of the corpus: its place, its lines, and the identity of its content."""

    place: str
    lines: int
    sha256: str
    """Of the bytes, unpacked; a text file may be packed or unpacked between two runs."""

    def identity(self) -> dict[str, Any]:
        """Returns the properties of the file on which translations depend, as JSON values. Its path is not among
        them."""
        return {"lines": self.lines, "sha256": self.sha256}


Raw = Callable[[], CorpusLine]
"""Makes the line of what was read. Lines that are not translated again are never made."""


class Corpus:
    """Several files, read as one."""

    def __init__(self, places: Sequence[str], field: str | None) -> None:
        """field: the field of JSONL, or the column of Parquet. None: the lines are text.

        Raises InvalidRequestError for a file that is missing, cannot be read or has no such field, and if there is no
        line. Every file is read once, for its digest.
        """
        self._field = field
        self.sources = [self._source(place) for place in places]
        self.lines = sum(source.lines for source in self.sources)
        if not self.lines:
            raise InvalidRequestError(f"{', '.join(places)}: holds no line to translate")

    def shards(self, size: int) -> Iterator[tuple[int, list[Raw]]]:
        """Yields the number and the lines of each part of `size` lines."""
        lines = chain.from_iterable(self._raw(source.place) for source in self.sources)
        number = 0
        part = list[Raw]()
        for line in lines:
            part.append(line)
            if len(part) == size:
                yield number, part
                number = number + 1
                part = []
        if part:
            yield number, part

    def _source(self, place: str) -> CorpusFile:
        if place.endswith(".parquet"):
            return self._parquet_source(place)
        digest = hashlib.sha256()
        lines = 0
        last = b"\n"
        with opened(place) as packed, unpacked(packed, place) as file:
            while chunk := file.read(CHUNK):
                if not lines and last == b"\n":
                    refuse_pointer(chunk, place)
                if not lines and last == b"\n" and (advice := _other_form(chunk)):  # the first one
                    raise InvalidRequestError(f"{place} is not UTF-8: {advice}")
                digest.update(chunk)
                lines += chunk.count(b"\n")
                last = chunk[-1:]
        if self._field is not None:
            self._check_first(place)
        return CorpusFile(place, lines + (last != b"\n"), digest.hexdigest())

    def _check_first(self, place: str) -> None:
        """Raises InvalidRequestError if the first line has no such field: it is then a wrong option, not a bad line."""
        if (raw := next(_raw_lines(place), None)) is None:
            return
        line = _json_line(raw, 1, place, self._field)
        if line.problem is not None:
            raise InvalidRequestError(f"{place} line 1: {line.problem}. Is it JSONL, and is text_field right?")

    def _parquet_source(self, place: str) -> CorpusFile:
        if self._field is None:
            raise InvalidRequestError(f"{place}: name the column that holds the text with text_field")
        with opened(place) as file, parquet_table(file, place) as table:
            schema = table.schema_arrow
            if self._field not in schema.names:
                raise InvalidRequestError(f"{place} has no column {self._field!r}; it has {', '.join(schema.names)}")
            if str(schema.field(self._field).type) not in TEXTS:
                raise InvalidRequestError(
                    f"{place}: column {self._field!r} holds {schema.field(self._field).type}, not strings"
                )
            lines = table.metadata.num_rows
        digest = hashlib.sha256()
        with opened(place) as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        return CorpusFile(place, lines, digest.hexdigest())

    def _raw(self, place: str) -> Iterator[Raw]:
        if place.endswith(".parquet"):
            yield from _rows(place, self._field or "")
            return
        for number, raw in enumerate(_raw_lines(place), 1):
            yield _Read(raw, number, place, self._field)


@dataclass(frozen=True)
class _Read:
    """A line of a text file as it was read."""

    raw: bytes
    number: int
    place: str
    field: str | None

    def __call__(self) -> CorpusLine:
        if self.field is not None:
            return _json_line(self.raw, self.number, self.place, self.field)
        return _text_line(self.raw, self.number, self.place)


def _other_form(begin: bytes) -> str | None:
    """What to do with a file that begins so and is no text in UTF-8."""
    nulls = null_bytes(begin.partition(b"\n")[0])
    return other_form(begin) or (f"it has {nulls}" if nulls else None)


def _text_line(raw: bytes, number: int, place: str) -> CorpusLine:
    if len(raw) > LONGEST:
        return CorpusLine(None, f"longer than {LONGEST:,} bytes; divide it into sentences")
    try:
        return CorpusLine(decode_line(raw, number, 0, place))
    except InvalidRequestError:
        if problem := null_bytes(raw):
            return CorpusLine(None, f"has {problem}")
        return CorpusLine(None, f"not UTF-8; {conversion(raw)}")


def _json_line(raw: bytes, number: int, place: str, field: str | None) -> CorpusLine:
    line = _text_line(raw, number, place)
    if line.text is None:
        return line
    try:
        values = json_row(line.text)
    except ValueError as error:
        return CorpusLine(None, str(error))
    text = values.get(field or "")
    if not isinstance(text, str):
        found = f"is {type(text).__name__}" if field in values else f"is missing; there are {', '.join(values)[:200]}"
        return CorpusLine(None, f"field {field!r} {found}")
    return (
        CorpusLine(None, "it holds a lone surrogate, which is no character")
        if has_lone_surrogate(text)
        else CorpusLine(text)
    )


def _raw_lines(place: str) -> Iterator[bytes]:
    """Yields every line with its end. Of one that is too long, only the beginning is kept."""
    with opened(place) as packed, unpacked(packed, place) as file:
        while raw := file.readline(LONGEST + 1):
            whole = raw
            while not whole.endswith(b"\n") and (rest := file.readline(LONGEST)):
                whole = rest
            yield raw


def _rows(place: str, column: str) -> Iterator[Raw]:
    with opened(place) as file, parquet_table(file, place) as table:
        for batch in parquet_batches(table, [column]):
            for value in batch.column(0):
                yield _Cell(value)


@dataclass(frozen=True)
class _Cell:
    """A value of a column."""

    value: Any

    def __call__(self) -> CorpusLine:
        try:
            text = self.value.as_py()
        except UnicodeDecodeError:
            return CorpusLine(None, "not UTF-8")
        return CorpusLine(None, "null in this column") if text is None else CorpusLine(text)
