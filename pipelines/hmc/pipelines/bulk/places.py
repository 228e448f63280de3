"""Where files lie: a path of this machine, or a URL of a store that fsspec knows, such as s3://bucket/corpus.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.rows import needs

URL = re.compile(r"[a-z][a-z0-9+.-]*://")


def is_url(place: str) -> bool:
    """Whether it names a store, and not a path here. `file://` is a path."""
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
    """The file system of a URL, and the path there. Raises InvalidRequestError, with the command that installs what is
    missing, or for a URL that is none."""
    fsspec = needs("fsspec", f"{url} is on a store")
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url))
    except (ImportError, ValueError) as error:  # the package of one store, or no such store
        raise InvalidRequestError(f"{url}: {error}; stores are those of fsspec") from error


def _open_stored(url: str) -> BinaryIO:
    system, path = file_system(url)
    return cast(BinaryIO, system.open(path, "rb"))
