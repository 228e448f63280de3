"""What the processes of one service share: a folder with their private sockets, a lock, the changes made so far, and
the rates of callers, counted for all together."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from hmc.serving.server.access.gate import Allowance, Filling
from hmc.serving.server.access.listening import UNIX
from hmc.v1 import translation_pb2 as pb

LOCK = "lock"
CHANGES = "changes.json"
REPLACED = "replaced.json"
LOCK_S = 0.02
"""Seconds between two attempts to take the lock."""
REQUESTS: dict[str, type[Message]] = {
    "Reload": pb.ReloadRequest,
    "LoadLevel": pb.LoadLevelRequest,
    "SetDefaultLevel": pb.SetDefaultLevelRequest,
    "UnloadLevel": pb.UnloadLevelRequest,
}
"""Methods of AdminService → their requests, in the order in which a process that starts makes them: what can be the
default level depends on the bundle and on what is loaded, and what can be unloaded on the default level."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can enter, for sockets; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="hmc-"))
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)  # so that what tidies folders of temporary files leaves it alone
    try:
        yield folder
    finally:
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Group:
    """One process's place among those of a service."""

    folder: Path
    """A folder that only this user can enter. The supervisor makes it and removes it."""
    index: int
    """Which process this is, from 0."""
    processes: int
    """How many there are."""

    @property
    def leads(self) -> bool:
        """Whether this process holds what only one of them can: the address of the administration and the port of the
        metrics."""
        return self.index == 0

    def address(self, index: int) -> str:
        """The private address of a process."""
        return f"{UNIX}{self._socket(index)}"

    def _socket(self, index: int) -> Path:
        return self.folder / f"{index}.sock"

    def others(self) -> list[int]:
        """The other processes that have a private address. One that is being started may have none yet."""
        return [index for index in range(self.processes) if index != self.index and self._socket(index).exists()]

    def leave(self) -> None:
        """Takes away this process's private address, so that no other one waits for it."""
        self._socket(self.index).unlink(missing_ok=True)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """A block that only one process is in at a time. The lock of a process that dies is free again."""
        with (self.folder / LOCK).open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(LOCK_S)
            yield

    def changes(self) -> list[tuple[str, Message]]:
        """(method of AdminService, request) of the changes that are in force, in the order of `REQUESTS`. Call it in
        `changing`."""
        return [(method, ParseDict(fields, REQUESTS[method]())) for method, fields in self._kept()]

    def note(self, method: str, request: Message) -> None:
        """Keeps a change, and drops those that it replaces. Call it in `changing`. The request names its model."""
        fields = MessageToDict(request)
        kept = self._kept()
        if method == "Reload" and "bundlePath" not in fields:  # it reads the path again that the last one gave
            last = [each for name, each in kept if name == "Reload" and each.get("model") == fields.get("model")]
            fields = last[-1] if last else fields
        if method == "Reload":
            self._replace(fields.get("model", ""), None)
        kept = [each for each in kept if not _replaces(method, fields, *each)]
        order = list(REQUESTS)
        self._keep(sorted([*kept, (method, fields)], key=lambda change: order.index(change[0])))

    def drop(self, method: str, request: Message) -> None:
        """Forgets a change. Call it in `changing`."""
        self._keep([each for each in self._kept() if each != (method, MessageToDict(request))])

    def replaced(self, model: str, version: str) -> None:
        """Drops what held until the bundle of a model was replaced: its default level and what was unloaded. The first
        process that has the new version does so; what was changed since then holds. Call it in `changing`."""
        if not self._replace(model, version):
            return
        ended = [("SetDefaultLevel", model), ("UnloadLevel", model)]
        self._keep([(name, each) for name, each in self._kept() if (name, each.get("model", "")) not in ended])

    def _replace(self, model: str, version: str | None) -> bool:
        """Notes the version that has replaced a model's bundle by itself; None: a call has. Returns whether it is
        new."""
        versions = self._read(REPLACED, {})
        is_new = bool(versions.get(model) != version)
        if is_new:
            self._write(REPLACED, {**versions, model: version})
        return is_new

    def _keep(self, kept: list[tuple[str, dict[str, Any]]]) -> None:
        self._write(CHANGES, kept)

    def _kept(self) -> list[tuple[str, dict[str, Any]]]:
        return [(method, fields) for method, fields in self._read(CHANGES, [])]

    def _write(self, name: str, data: Any) -> None:
        new = self.folder / f"{name}.new"
        new.write_text(json.dumps(data), encoding="utf-8")
        new.replace(self.folder / name)

    def _read(self, name: str, without: Any) -> Any:
        file = self.folder / name
        return json.loads(file.read_text("utf-8")) if file.exists() else without


def _replaces(method: str, fields: dict[str, Any], old: str, of_old: dict[str, Any]) -> bool:
    """Whether a change makes an earlier one pointless."""
    if fields.get("model") != of_old.get("model"):
        return False
    if method == "Reload":
        # The bundle's own default level then holds, and the levels of the start are loaded again.
        return old in ("Reload", "SetDefaultLevel", "UnloadLevel")
    if method == "SetDefaultLevel":
        return old == method
    return old in ("LoadLevel", "UnloadLevel") and fields.get("name") == of_old.get("name")


STATE = struct.Struct("dd")
"""What is left, and when it was: the machine's monotonic clock, which is the same in all processes."""


class SharedAllowance(Allowance):
    """An `Allowance` whose state is a file that several processes lock for a moment."""

    def __init__(self, file: Path, per_second: float, burst: int) -> None:
        """file: is made if it is missing, and then holds a full allowance."""
        super().__init__(per_second, burst, time.monotonic)
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, amount: int, *, only_look: bool = False) -> float:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            read = os.pread(self._file, STATE.size, 0)
            if len(read) == STATE.size:
                self._filling = Filling(*STATE.unpack(read))
            wait = super().take(amount, only_look=only_look)
            os.pwrite(self._file, STATE.pack(*self._filling), 0)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return wait

    def __del__(self) -> None:
        os.close(self._file)


def shared_allowance(folder: Path, name: str, per_second: float, burst: int) -> SharedAllowance:
    """The allowance of a caller, with a file in the folder. name: of the caller. Other limits are another allowance,
    which is full at first."""
    key = hashlib.sha256(f"{name}\0{per_second}\0{burst}".encode()).hexdigest()
    return SharedAllowance(folder / f"rate-{key[:32]}", per_second, burst)
