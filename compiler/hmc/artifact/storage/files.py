"""Writing directories and files whole or not at all, and hashing files."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError

from hmc.artifact.git_lfs import IS_POINTER, is_pointer
from hmc.artifact.storage.formats import DIGESTS, Format, check_replaceable, read_json

AT_FDCWD = -100
RENAME_EXCHANGE = 2
"""Constants of Linux: paths relative to the working directory; exchange instead of replace."""
NEW = "new"
OLD = "old"
SUFFIX = ".hmc"
"""A directory is written as `.NAME.xxxxxxxx.hmc/new`. Where two renames are needed, the replaced one becomes `old`."""
WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers of writes: a full disk, a limit, a broken disk. Such errors of Python and safetensors do not name the
file."""
IN_PLACE = re.compile(r"/dev/(fd/|std)|/proc/")
"""Paths of files that a process has open. Another file in their place would not be the open one."""


@contextmanager
def replace_directory(path: Path, form: Format) -> Iterator[Path]:
    """Yields an empty directory. On success it takes `path`'s place in one step; on an error, `path` stays as it was.

    A symbolic link stays, and its target is replaced. Files get the mode that the process's umask gives, whatever mode
    their writer chose (safetensors: 0600). A form with digests gets a file of them. Working directories that killed
    processes left beside `path` are removed. Raises InvalidRequestError if `path` holds a file that does not belong to
    `form`, and OSError.
    """
    named = path
    path = Path(os.path.realpath(path)) if path.is_symlink() else path.absolute()
    _remove_leftovers(path)
    check_replaceable(named, form)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _work_beside(path) as work:
        new = work / NEW
        with errors_name(named, work):
            new.mkdir()
            mode = stat.S_IMODE(new.stat().st_mode)  # what the umask leaves of 0777
            yield new
            if form.digests:
                write_digests(new)
            for file in new.rglob("*"):
                if file.is_file():
                    file.chmod(mode & 0o666)
                    with file.open("rb") as handle:
                        os.fsync(handle.fileno())
                elif file.is_dir() and not file.is_symlink():
                    file.chmod(mode)
        check_replaceable(named, form)  # the work may have taken hours
        if not os.path.lexists(path):
            new.replace(path)
        elif not exchange(new, path):
            path.replace(work / OLD)
            new.replace(path)


def write_digests(folder: Path, names: Collection[str] | None = None) -> None:
    """Writes DIGESTS: the sha256 of every other file of a directory, by its path in it. names: of these files alone, if
    they exist."""
    paths = folder.rglob("*") if names is None else [folder / name for name in names]
    files = sorted(path for path in paths if path.is_file() and path != folder / DIGESTS)
    digests = {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}
    write_whole(folder / DIGESTS, json.dumps({"sha256": digests}, indent=1) + "\n")


def digest_problems(folder: Path, names: Collection[str] | None = None) -> list[str]:
    """Files of a directory that changed since they were written. names: look at these alone.

    A directory of an earlier version has no digests, and no problems. A file that was added later has no digest either.
    """
    if not (folder / DIGESTS).is_file():
        return []
    content, problems = read_json(folder / DIGESTS)
    digests = content.get("sha256")
    if problems or not isinstance(digests, dict):
        return [*problems, f"{DIGESTS} does not hold the digests of the files"][:1]
    for name, digest in digests.items():
        if names is not None and name not in names:
            continue
        try:
            actual = sha256_file(folder / name)
        except FileNotFoundError:
            problems.append(f"{name} is missing")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
        else:
            if actual != digest and is_pointer(folder / name):
                problems.append(f"{name} {IS_POINTER}")
            elif actual != digest:
                problems.append(
                    f"{name} is not as it was written: its sha256 is {actual[:12]}…, not {str(digest)[:12]}… (if you "
                    f"changed it yourself, delete {DIGESTS})"
                )
    return problems


@contextmanager
def changed_file(folder: Path, name: str) -> Iterator[None]:
    """Inside the block the file `name` of a directory with digests may be replaced; then it has a new digest.

    Meanwhile the file has no digest, so a process that is killed leaves a readable directory.
    """
    if not (folder / DIGESTS).is_file():
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        digests = read_json(folder / DIGESTS)[0].get("sha256", {})
        digests.pop(name, None)
        write_whole(folder / DIGESTS, json.dumps({"sha256": digests}, indent=1) + "\n", several=True)
        yield
        digests[name] = sha256_file(folder / name)
        write_whole(folder / DIGESTS, json.dumps({"sha256": digests}, indent=1) + "\n", several=True)
    finally:
        os.close(handle)


def unfinished(name: str) -> str:
    """Name of a file while `whole_file` writes it."""
    return f".{name}.new"


@contextmanager
def whole_file(path: Path, *, several: bool = False) -> Iterator[BinaryIO]:
    """Yields a file to write. On success it takes `path`'s place; otherwise `path` stays as it was, even if the machine
    stops meanwhile.

    A symbolic link stays, and its target is replaced. A file that is replaced leaves its mode to the new one. A device,
    a pipe or an open file of a process (`/dev/stdout`) is written as it is. several: whether several processes may
    write this file at once. Raises OSError, which names `path`.
    """
    if IN_PLACE.match(str(path.absolute())) or (path.exists() and not path.is_file()):
        with errors_name(path), path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(unfinished(target.name) + (f".{os.getpid()}" if several else ""))
    with errors_name(path, temporary):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                if target.exists():
                    with suppress(OSError):  # a file system without modes
                        os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_whole(path: Path, content: bytes | str, *, several: bool = False) -> None:
    """Writes a file whole or not at all, a text as UTF-8; else as `whole_file`."""
    with whole_file(path, several=several) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def _work_beside(path: Path) -> Iterator[Path]:
    """A temporary directory on `path`'s file system. Its lock tells other processes that it is in use."""
    work, handle = _locked_folder(path)
    try:
        yield work
    finally:
        try:
            _clear(work, path)
        finally:
            os.close(handle)


def _locked_folder(path: Path) -> tuple[Path, int]:
    """A new directory beside `path`, and the open handle that holds its lock."""
    while True:
        try:
            work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=SUFFIX, dir=path.parent))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path.parent)) from error
        with suppress(FileNotFoundError):  # before it is locked, another process may remove it as a leftover
            handle = os.open(work, os.O_RDONLY)
            if _lock(handle) is not False and work.is_dir():
                return work, handle
            os.close(handle)


def _remove_leftovers(path: Path) -> None:
    """Removes the working directories of killed processes. A directory that they had moved aside is moved back."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}{re.escape(SUFFIX)}")
    leftovers = [entry for entry in path.parent.iterdir() if name.fullmatch(entry.name)] if path.parent.is_dir() else []
    for work in leftovers:
        with suppress(OSError):  # already removed, or owned by another user
            handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _lock(handle):
                    _clear(work, path)
            finally:
                os.close(handle)


def _clear(work: Path, path: Path) -> None:
    """Removes a working directory. If `path` had been moved there and is missing, it is moved back first."""
    if (work / OLD).is_dir() and not os.path.lexists(path):
        (work / OLD).replace(path)
    shutil.rmtree(work, ignore_errors=True)


def _lock(handle: int) -> bool | None:
    """Takes the lock, which ends with the process. False: another process has it; None: there are no locks here."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def errors_name(path: Path, work: Path | None = None) -> Iterator[None]:
    """Makes errors of writing name `path`, if they name no file, or name `work` or a file in it. The reader of the
    error does not know `work`.

    Errors of safetensors about a full disk become OSErrors.
    """
    try:
        yield
    except SafetensorError as error:
        match = re.search(r"\(os error (\d+)\)", str(error))
        if match is None or int(match[1]) not in WRITING:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1])), str(path)) from error
    except OSError as error:
        if error.filename is None:
            ours = error.errno in WRITING
        else:
            ours = work is not None and str(error.filename).startswith(str(work))
        if not ours or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as handle:
        state = _state(os.fstat(handle.fileno()))
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    _known[str(path.absolute())] = state, digest
    return digest


def sha256_unless_known(path: Path) -> str:
    """As `sha256_file`, but a file that this process has hashed is not read again while it is unchanged."""
    state, digest = _known.get(str(path.absolute()), (None, ""))
    with path.open("rb") as handle:
        if state == _state(os.fstat(handle.fileno())):
            return digest
    return sha256_file(path)


def sha256_remembered(files: Collection[Path], memory: Path) -> dict[Path, str]:
    """Returns the sha256 of files. The file `memory` remembers them: a file that is unchanged since is not read again.

    A memory that is missing or damaged remembers nothing. Raises OSError.
    """
    known = read_json(memory)[0]
    digests = dict[Path, str]()
    entries = dict[str, Any]()
    for file in files:
        place = str(file.resolve())
        state = list(_state(file.stat()))
        entry = known.get(place)
        if not isinstance(entry, dict) or entry.get("state") != state or not isinstance(entry.get("sha256"), str):
            entry = {"state": state, "sha256": sha256_file(file)}
        entries[place] = entry
        digests[file] = entry["sha256"]
    if entries != known:
        write_whole(memory, json.dumps(entries, indent=1) + "\n", several=True)
    return digests


_known: dict[str, tuple[tuple[int, ...], str]] = {}


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Properties of a file; a write to the file changes at least one of them."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def exchange(first: Path, second: Path) -> bool:
    """Swaps two paths of one file system in one step: neither is missing at any time.

    Returns False and changes nothing if the system or the file system cannot swap.
    """
    rename = _renameat2()
    if rename is None:
        return False
    done: int = rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    return done == 0


@cache
def _renameat2() -> Callable[..., Any] | None:
    """`renameat2` of the C library (glibc 2.28, musl 1.2.5); None where it is missing."""
    try:
        function = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    function.restype = ctypes.c_int
    return function
