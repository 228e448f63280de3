"""What a distillation folder is of: its first file says which teacher, text and settings its translations have."""

from __future__ import annotations

import errno
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.pipelines.distillation.shards import write_whole

REQUEST, TEACHER, IMPORTED = "distillation.json", "teacher", "checkpoint"
"""The first file; the folder of the teacher's bundle; that of the checkpoint that a MarianMT directory became."""
SCHEMA_VERSION = 1


@contextmanager
def taken_folder(out: Path, request: dict[str, Any]) -> Iterator[None]:
    """Makes `out` the folder of this request, or finds that it is; until the end no other process can take it.

    request: JSON values. Raises InvalidRequestError, which names the differences, for a folder of another request, for
    a folder with other files, and for one that another process is working in.
    """
    _take(out, request)
    with (out / REQUEST).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequestError(
                f"another process is translating into {out}; wait for it, or choose another --out"
            ) from None
        except OSError as error:  # a file system without locks
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise
        yield


def _take(out: Path, request: dict[str, Any]) -> None:
    path, wanted = out / REQUEST, {"schema_version": SCHEMA_VERSION, **request}
    if path.is_file():
        _check_same(path, json.loads(json.dumps(wanted)))
        return
    if out.is_dir() and (found := sorted(p.name for p in out.iterdir() if p.name not in (IMPORTED, f".{REQUEST}.new"))):
        raise InvalidRequestError(
            f"{out} holds {', '.join(found[:3])}, and no {REQUEST} that says whose translations these are; choose "
            "another --out"
        )
    write_whole(path, (json.dumps(wanted, indent=1) + "\n").encode())


def _check_same(path: Path, wanted: dict[str, Any]) -> None:
    try:
        former = json.loads(path.read_text(encoding="utf-8"))
        names = dict.fromkeys([*former, *wanted])
    except (OSError, ValueError, TypeError) as error:
        raise InvalidRequestError(f"{path} cannot be read ({error}); choose another --out or delete it") from error
    differences = [
        f"{name}: {_short(former.get(name))} there, {_short(wanted.get(name))} here"
        for name in names
        if former.get(name) != wanted.get(name)
    ]
    if differences:
        raise InvalidRequestError(
            f"{path.parent} holds translations of another teacher, text or search ({'; '.join(differences)}); choose "
            "another --out, or delete it to translate anew"
        )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
