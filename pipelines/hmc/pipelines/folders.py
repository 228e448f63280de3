"""Folders of long jobs: a first file says what the others are of, and a job is refused if they are of another one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.files import errors_name, unfinished


@dataclass(frozen=True)
class First:
    """The first file of one kind of folder, and the words for it."""

    name: str
    schema_version: int
    differs: str
    """What may be another one, for messages: `teacher, text or search`."""
    may_exist: Collection[str] = ()
    """Names that a folder may hold before it has its first file."""

    def content(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the file holds. request: JSON values."""
        return json.loads(json.dumps({"schema_version": self.schema_version, **request}))  # type: ignore[no-any-return]

    def written(self, request: Mapping[str, Any]) -> bytes:
        """The bytes of the file."""
        return (json.dumps(self.content(request), indent=1) + "\n").encode()

    def check_same(self, found: bytes, request: Mapping[str, Any], folder: str) -> None:
        """Raises InvalidRequestError, which names the differences, unless `found` is the file of this request."""
        wanted = self.content(request)
        try:
            former = json.loads(found)
            names = dict.fromkeys([*former, *wanted])
            differences = [
                f"{name}: {_short(former.get(name))} there, {_short(wanted.get(name))} here"
                for name in names
                if former.get(name) != wanted.get(name)
            ]
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidRequestError(
                f"{folder}/{self.name} cannot be read ({error}); choose another folder or delete it"
            ) from error
        if differences:
            raise InvalidRequestError(
                f"{folder} holds translations of another {self.differs} ({'; '.join(differences)}); choose another "
                "folder, or delete it to translate anew"
            )

    def check_empty(self, found: Collection[str], folder: str) -> None:
        """Raises InvalidRequestError if a folder without the first file holds anything else. found: names in it."""
        if others := sorted(set(found) - {*self.may_exist, unfinished(self.name)}):
            raise InvalidRequestError(
                f"{folder} holds {', '.join(others[:3])}, and no {self.name} that says whose translations these are; "
                "choose another folder"
            )


@contextmanager
def taken_folder(out: Path, request: Mapping[str, Any], first: First) -> Iterator[None]:
    """Makes `out` the folder of this request, unless it is already. Until the end no other process can take it.

    request: JSON values. Raises InvalidRequestError, which names the differences, for a folder of another request, for
    a folder with other files, and for one that another process is working in. Errors of a full disk, also inside the
    `with` block, name `out` if they name nothing.
    """
    path = out / first.name
    out.mkdir(parents=True, exist_ok=True)
    found = [entry.name for entry in out.iterdir()]
    if not path.is_file():  # looked for last: another process may just have begun
        first.check_empty(found, str(out))
    # NFS gives an exclusive lock only on what is open for writing. The file is locked before it is written and never
    # replaced: of two processes that begin at once, one gets the lock.
    with errors_name(out), os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequestError(
                f"another process is translating into {out}; wait for it, or choose another folder"
            ) from None
        except OSError as error:  # a file system without locks
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise
        present = file.read()
        wanted = first.written(request)
        if present != wanted and wanted.startswith(present):  # new, or of a process that ended while it wrote it
            file.seek(0)
            file.write(wanted)
            file.flush()
            os.fsync(file.fileno())
        else:
            first.check_same(present, request, str(out))
        yield


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
