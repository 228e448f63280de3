"""Writing directories whole or not at all, and hashing files."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from hmc.artifact.exchange import exchange
from hmc.artifact.formats import Format, check_replaceable

NEW, OLD, SUFFIX = "new", "old", ".hmc"
"""A directory is written as `.NAME.xxxxxxxx.hmc/new`; `old` is what it replaces, where two renames are needed."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of writing for want of room; Python and safetensors do not say where."""


@contextmanager
def replace_directory(path: Path, form: Format) -> Iterator[Path]:
    """Yields an empty directory; on success it takes `path`'s place in one step, on error nothing changes.

    A symbolic link stays, and what it points to is replaced. Files become readable by everybody, whatever mode their
    writer chose (safetensors: 0600). What processes that were killed have left beside `path` is removed.
    Raises InvalidRequestError where `path` holds anything that is not of `form`, and OSError.
    """
    named, path = path, Path(os.path.realpath(path)) if path.is_symlink() else path.absolute()
    _remove_leftovers(path)
    check_replaceable(named, form)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _work_beside(path) as work:
        new = work / NEW
        with _room_errors_name(named, work):
            new.mkdir()
            new.chmod(0o755)
            yield new
            for file in new.rglob("*"):
                if file.is_file():
                    file.chmod(0o644)
                    _sync(file)
        check_replaceable(named, form)  # the work may have taken hours
        if not os.path.lexists(path):
            new.replace(path)
        elif not exchange(new, path):
            path.replace(work / OLD)
            new.replace(path)


@contextmanager
def _work_beside(path: Path) -> Iterator[Path]:
    """A directory on `path`'s file system for as long as it is needed, locked: others leave it alone meanwhile."""
    work, handle = _locked_folder(path)
    try:
        yield work
    finally:
        try:
            _clear(work, path)
        finally:
            os.close(handle)


def _locked_folder(path: Path) -> tuple[Path, int]:
    """A new directory beside `path`, and the handle that its lock belongs to."""
    while True:
        try:
            work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=SUFFIX, dir=path.parent))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path.parent)) from error
        with suppress(FileNotFoundError):  # until it is locked, another process may take it for a leftover
            handle = os.open(work, os.O_RDONLY)
            if _lock(handle) is not False and work.is_dir():
                return work, handle
            os.close(handle)


def _remove_leftovers(path: Path) -> None:
    """Removes what `_work_beside` made in processes that are gone; puts back what one of them had moved aside."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}{re.escape(SUFFIX)}")
    found = [entry for entry in path.parent.iterdir() if name.fullmatch(entry.name)] if path.parent.is_dir() else []
    for work in found:
        with suppress(OSError):  # gone by now, or somebody else's
            handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _lock(handle):
                    _clear(work, path)
            finally:
                os.close(handle)


def _clear(work: Path, path: Path) -> None:
    """Removes a working directory; what was moved there from `path` goes back if nothing has come in its place."""
    if (work / OLD).is_dir() and not os.path.lexists(path):
        (work / OLD).replace(path)
    shutil.rmtree(work, ignore_errors=True)


def _lock(handle: int) -> bool | None:
    """Whether this process holds the lock now; None where the file system has no locks. It ends with the process."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def _room_errors_name(path: Path, work: Path) -> Iterator[None]:
    """Turns errors for want of room into OSErrors that name `path`, not what is being written beside it."""
    try:
        yield
    except SafetensorError as error:
        match = re.search(r"\(os error (\d+)\)", str(error))
        if match is None or int(match[1]) not in FULL:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1])), str(path)) from error
    except OSError as error:
        ours = error.filename is None or str(error.filename).startswith(str(work))
        if error.errno not in FULL or not ours:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _sync(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as handle:
        state = _state(handle.fileno())
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    _known[str(path.absolute())] = state, digest
    return digest


def sha256_unless_known(path: Path) -> str:
    """As `sha256_file`, but a file that this process has read before, and that nobody has written to since, is not read
    again."""
    state, digest = _known.get(str(path.absolute()), (None, ""))
    with path.open("rb") as handle:
        if state == _state(handle.fileno()):
            return digest
    return sha256_file(path)


_known: dict[str, tuple[tuple[int, ...], str]] = {}


def _state(handle: int) -> tuple[int, ...]:
    """What changes when a file is written to."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
