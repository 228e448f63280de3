"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a file to write. On success it takes `path`'s place; otherwise `path` stays as it was, even if the machine
    stops meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    with whole_file(path) as file:
        file.write(content)
