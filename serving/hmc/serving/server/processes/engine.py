"""The engine's process of a service, as the process that owns it sees it, and what that process does."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hmc.engine.remote.host import EngineHost
from hmc.engine.runtime.process_memory import limit_heaps
from hmc.serving.server.observing.logs import set_up
from hmc.serving.server.processes.child import Kept, leave_terminal

SOCKET = "engine.sock"
SWITCH_S = 0.001
"""Seconds after which a thread hands over Python's lock to one that waits."""
END_S = 5.0
"""Seconds in which the process must have ended after SIGTERM."""


@dataclass(frozen=True)
class EngineTask:
    """What the engine's process is told when it starts."""

    socket: Path
    log_format: str
    log_texts: bool


def decode(task: EngineTask, said: Connection) -> None:
    """The body of the process."""
    leave_terminal()
    set_up(task.log_format, texts=task.log_texts, process="engine")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    limit_heaps()
    sys.setswitchinterval(SWITCH_S)
    task.socket.unlink(missing_ok=True)  # of a process that was killed

    def ready() -> None:
        said.send_bytes(json.dumps({"ready": {}}).encode())

    EngineHost().serve(task.socket, ready)


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    wait([parent.sentinel])
    os._exit(1)


class EngineProcess:
    """Starts the engine's process, and starts it again whenever it ends, within an `async with` block."""

    def __init__(self, folder: Path, log_format: str, *, log_texts: bool) -> None:
        """folder: only this user can enter it. The process is started at once."""
        self.socket = folder / SOCKET
        self._stopping = asyncio.Event()
        self._kept = Kept(decode, EngineTask(self.socket, log_format, log_texts), "the engine's process")
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EngineProcess:
        return self

    async def ready(self) -> None:
        """Returns when it listens for the first time. Raises an HmcError if it cannot start."""
        await self._kept.child.ready
        self._keeping = asyncio.create_task(self._kept.keep(self._stopping))

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        if self._keeping is not None:
            with suppress(asyncio.CancelledError):
                await self._keeping
        await self._kept.child.stop(END_S)
