"""Writing directories whole or not at all, and hashing files."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling of `path`; on success it takes `path`'s place, on error nothing changes."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    folder.chmod(0o755)
    try:
        yield folder
        for file in folder.rglob("*"):
            if file.is_file():
                _sync(file)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            path.replace(old / path.name)
            folder.replace(path)
            shutil.rmtree(old)
        else:
            folder.replace(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _sync(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
