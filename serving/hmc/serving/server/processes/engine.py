"""The engine's process of a service, as the process that owns it sees it, and what that process does."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hmc.engine.remote.host import EngineHost
from hmc.engine.runtime.process_memory import limit_heaps
from hmc.engine.runtime.threads import SWITCH_S
from hmc.serving.server.observing.logs import set_up
from hmc.serving.server.processes.child import Kept, leave_terminal

SOCKET = "engine.sock"
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


@asynccontextmanager
async def engine_process(folder: Path, log_format: str, *, log_texts: bool) -> AsyncIterator[Path]:
    """Within the block, the engine's process runs, and is started again whenever it ends. Yields its socket when it
    listens for the first time.

    folder: only this user can enter it. Raises an HmcError if the process cannot start.
    """
    socket = folder / SOCKET
    kept = Kept(decode, EngineTask(socket, log_format, log_texts), "the engine's process")
    stopping = asyncio.Event()
    keeping: asyncio.Task[None] | None = None
    try:
        await kept.child.ready
        keeping = asyncio.create_task(kept.keep(stopping))
        yield socket
    finally:
        stopping.set()
        if keeping is not None:
            with suppress(asyncio.CancelledError):
                await keeping
        await kept.child.stop(END_S)
