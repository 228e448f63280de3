"""Text files as they come: plain or gzip, with or without a byte order mark."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError


def text_lines(path: Path, kind: str = "corpus file") -> Iterator[str]:
    """Lines without their ends. Raises InvalidRequestError with what to do, where a file is missing (`kind`: what it
    was to be), is not UTF-8 or is no whole gzip file."""
    if not path.is_file():
        raise InvalidRequestError(f"{kind} {path} does not exist (paths are relative to the working directory)")
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="\n") as handle:  # no other character ends a line
            for line in handle:
                yield line.removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is not UTF-8: {error}; convert it first, e.g. with iconv") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidRequestError(f"{path}: not a whole gzip file ({error}); copy it again, or unpack it") from error
    except OSError as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error.strerror}") from error
