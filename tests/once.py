"""Folders that are made once in a run of the tests, by the process that needs them first, and then only read."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

Settings = ParamSpec("Settings")


class Once:
    """Makes folders below `root`, which all processes of a run share. The run ends with it, so nothing in it is stale.

    A folder is known by the function that makes it and by that function's arguments: fixtures in different files that
    want the same have the same.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._used: set[Path] = set()

    def __call__(
        self, make: Callable[Concatenate[Path, Settings], object], *args: Settings.args, **kwargs: Settings.kwargs
    ) -> Path:
        """The folder that `make(folder, *args, **kwargs)` writes: whole, or not at all if it fails. Read-only.

        While a process makes it, others wait for it. Raises ValueError where two calls could not be told apart: `make`
        must be a function of a module, and its arguments must be described by their `repr`.
        """
        path = self.root / f"{make.__name__.strip('_')}-{_key(make, args, kwargs)}"
        self.root.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                new = path.with_suffix(".new")
                shutil.rmtree(new, ignore_errors=True)  # left by a call that failed
                make(new, *args, **kwargs)
                _listing(path).write_text(json.dumps(_state(new)), encoding="utf-8")
                new.rename(path)
        self._used.add(path)
        return path

    def check(self) -> None:
        """Raises AssertionError where a folder that this process asked for is no longer as it was made."""
        for path in sorted(self._used):
            made = json.loads(_listing(path).read_text(encoding="utf-8"))
            assert _state(path) == made, f"{path}: a test changed it; a test that changes a shared folder must copy it"


def _key(make: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """16 hex digits of a call."""
    if make.__qualname__ != make.__name__:
        raise ValueError(f"{make.__qualname__}: its name does not say all that it makes; move it to a module's top")
    call = repr((make.__module__, make.__qualname__, args, sorted(kwargs.items())))
    if " at 0x" in call:
        raise ValueError(f"{make.__name__}: an argument differs in each process: {call}")
    return hashlib.sha256(call.encode()).hexdigest()[:16]


def _listing(path: Path) -> Path:
    """The file that says how a folder was made."""
    return path.with_suffix(".json")


def _state(folder: Path) -> dict[str, list[int]]:
    """Every file below a folder, with its size and the nanosecond it was last written."""
    found = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): [stat.st_size, stat.st_mtime_ns] for path, stat in sorted(found)}
