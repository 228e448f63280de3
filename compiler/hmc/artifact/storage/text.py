"""Lines of text files: UTF-8 with or without a byte order mark, plain or gzip, ending with LF or CRLF."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError


def text_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a file without their ends, and reads no further than it is asked. A file whose name ends in
    `.gz` is unpacked. Only LF and CRLF end a line.

    Raises InvalidRequestError for a file that is missing, cannot be read, is damaged, or is not UTF-8, with the number
    of the line.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                yield _decoded(raw, path, number).removesuffix("\n").removesuffix("\r")
    except FileNotFoundError as error:
        raise InvalidRequestError(f"{path}: no such file (paths are relative to the working directory)") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidRequestError(f"{path}: not a whole gzip file ({error}); copy it again, or unpack it") from error
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error.strerror}") from error


def _decoded(raw: bytes, path: Path, number: int) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{path}: line {number} is not UTF-8 (byte {raw[error.start]:#04x}); convert it: iconv -f LATIN1 -t UTF-8"
        ) from error
