"""Lines of text files, and rows of JSONL and Parquet files: what training text and corpora to translate share.

Text is UTF-8 with or without a byte order mark, plain or gzip, and its lines end with LF or CRLF.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.git_lfs import refuse_pointer, why

if TYPE_CHECKING:
    from types import ModuleType

TEXTS = ("string", "large_string", "string_view")
"""Names of Arrow's types of text."""
BATCH_ROWS = 1024
"""Rows of a Parquet file that are in memory at once."""
BUFFER = 1 << 18
"""Bytes read at once of each column. Else pyarrow reads a column of a whole row group, which may be the whole file."""


def text_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a file without their ends, and reads no further than it is asked. A file whose name ends in
    `.gz` is unpacked. Only LF and CRLF end a line.

    Raises InvalidRequestError for a file that is missing, cannot be read, is damaged, or is not UTF-8, with the number
    of the line.
    """
    try:
        with path.open("rb") as file, unpacked(file, str(path)) as lines:
            for number, raw in enumerate(lines, 1):
                yield _decoded(raw, path, number).removesuffix("\n").removesuffix("\r")
    except FileNotFoundError as error:
        raise InvalidRequestError(f"{path}: no such file (paths are relative to the working directory)") from error
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error.strerror}") from error


@contextmanager
def unpacked(file: BinaryIO, place: str) -> Iterator[BinaryIO]:
    """Yields the file, unpacked if its name ends in `.gz`. place: its name.

    Raises InvalidRequestError if it is damaged, also later.
    """
    if not place.endswith(".gz"):
        yield file
        return
    try:
        with gzip.open(file) as content:
            yield content  # type: ignore[misc]  # it reads as a binary file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        wrong = why(Path(place), f"is not a whole gzip file ({error}); copy it again, or unpack it")
        raise InvalidRequestError(f"{place} {wrong}") from error


MARKS = {
    b"\xff\xfe\x00\x00": "convert it: iconv -f UTF-32 -t UTF-8",
    b"\x00\x00\xfe\xff": "convert it: iconv -f UTF-32 -t UTF-8",
    b"\xff\xfe": "convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "convert it: iconv -f UTF-16 -t UTF-8",
    b"\x1f\x8b": "it is packed by gzip: give it a name that ends in .gz",
    b"\x1f\x9d": "it is packed by compress: unpack it first",
    b"\xfd7zXZ": "it is packed by xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "it is packed by zstd: unpack it first",
    b"\x04\x22\x4d\x18": "it is packed by lz4: unpack it first",
    **{b"BZh%d1AY&SY" % level: "it is packed by bzip2: unpack it first" for level in range(1, 10)},
    b"PK\x03\x04": "it is a zip archive, or a document in one: unpack it, or save it as plain text, first",
    b"PK\x05\x06": "it is an empty zip archive: pack it again",
    b"7z\xbc\xaf\x27\x1c": "it is a 7z archive: unpack it first",
    b"Rar!\x1a\x07": "it is a rar archive: unpack it first",
    b"%PDF-1.": "it is a PDF document: save it as plain text first",
    b"PAR1\x15": "it is Parquet: give it a name that ends in .parquet",
}
"""How files of other forms begin → what to do with them."""
NULLS = (
    "null bytes, as UTF-16 without a byte order mark has them: convert it, iconv -f UTF-16LE -t UTF-8 (or UTF-16BE); "
    "single ones are removed by tr -d '\\000'"
)
"""What a file has in which bytes are 0, though they are UTF-8, and what to do about it."""


_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x19\x1c-\x1f]")
"""Bytes that text has in no encoding that is written byte by byte."""


def other_form(begin: bytes) -> str | None:
    """Advice for a file of another form, from its first bytes."""
    return next((advice for mark, advice in MARKS.items() if begin.startswith(mark)), None)


def conversion(raw: bytes) -> str:
    """What to do with bytes that are not UTF-8."""
    if _CONTROL.search(raw):
        return "it is no text in any encoding: give the text that it was made of"
    return "convert it first, for example `iconv -f ISO-8859-1 -t UTF-8`"


def null_bytes(raw: bytes) -> str | None:
    """The problem of a line with null bytes, and what to do. None for a line without null bytes."""
    if b"\0" not in raw:
        return None
    if _CONTROL.search(raw.replace(b"\0", b"")):
        return "null and control bytes: it is no text in any encoding; give the text that it was made of"
    return NULLS


def _decoded(raw: bytes, path: Path, number: int) -> str:
    if number == 1:
        refuse_pointer(raw, str(path))
        if advice := other_form(raw):
            raise InvalidRequestError(f"{path} is not UTF-8: {advice}")
    if problem := null_bytes(raw):
        raise InvalidRequestError(f"{path}: line {number} has {problem}")
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{path}: line {number} is not UTF-8 (byte {raw[error.start]:#04x}); {conversion(raw)}"
        ) from error


def json_row(line: str) -> dict[str, Any]:
    """The object in a line of JSONL. Raises ValueError, which says why the line has no row."""
    try:
        values = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("not JSON that can be read: too deep") from error
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    return values


def has_lone_surrogate(text: str) -> bool:
    """Whether a text holds half a character, as `\\ud800` in JSON is. It cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


@contextmanager
def parquet_table(file: BinaryIO | Path, place: str) -> Iterator[Any]:
    """The `pyarrow.parquet.ParquetFile` of a file. place: its name for messages.

    Raises InvalidRequestError if it is damaged, also later, and where pyarrow is not installed.
    """
    parquet = needs("pyarrow.parquet", f"{place} is Parquet")
    from pyarrow import ArrowException

    try:
        with parquet.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER) as table:
            yield table
    except (ArrowException, OSError, UnicodeDecodeError) as error:  # OSError: damaged pages; UnicodeDecodeError: text
        wrong = why(Path(place), f"is no Parquet file that can be read ({error}); copy it again")
        raise InvalidRequestError(f"{place} {wrong}") from error


def parquet_batches(table: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yields the rows of some columns as `pyarrow.RecordBatch`; no more than BATCH_ROWS are in memory at once.

    columns: names; `outer.inner` is a field of a struct. No other column is read.
    """
    yield from table.iter_batches(BATCH_ROWS, columns=list(columns))


def needs(module: str, why: str) -> ModuleType:
    """Imports a module of the extra `bulk`. Raises InvalidRequestError with the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise InvalidRequestError(f"{why}, and that needs {package}: {how_to_install('bulk')}") from error
