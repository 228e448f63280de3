"""Writing directories whole or not at all, and hashing files."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError


@contextmanager
def replace_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling of `path`; on success it takes `path`'s place, on error nothing changes.

    Files become readable by everybody, whatever mode their writer chose (safetensors: 0600).
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    folder.chmod(0o755)
    try:
        yield folder
        for file in folder.rglob("*"):
            if file.is_file():
                file.chmod(0o644)
                _sync(file)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            _swap(path, folder, old / path.name)
            shutil.rmtree(old)
        else:
            folder.replace(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _swap(path: Path, new: Path, kept: Path) -> None:
    """`path` becomes `kept` and `new` becomes `path`; interrupted in between, `path` is what it was."""
    try:
        path.replace(kept)
        new.replace(path)
    except BaseException:
        if kept.exists() and not path.exists():
            kept.replace(path)
        shutil.rmtree(kept.parent, ignore_errors=True)
        raise


def check_replaceable(out: Path, source: Path, marker: str = "config.json") -> None:
    """Refuses an output directory whose loss would hurt: `source`, a folder above it, or files that are no model.

    A model directory is one with `marker` in it. Raises InvalidRequestError.
    """
    target, read = out.resolve(), source.resolve()
    if target == read or target in read.parents:
        raise InvalidRequestError(f"--out {out} would replace {source}, which is read; choose another directory")
    if target.is_file():
        raise InvalidRequestError(f"--out {out} is a file; choose a directory")
    if target.is_dir() and any(target.iterdir()) and not (target / marker).is_file():
        raise InvalidRequestError(f"--out {out} holds other files and no {marker}; choose another directory")


def _sync(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
