"""A front: a process with gRPC, HTTP and texts, whose levels are in the engine's process."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hmc.artifact.errors import HmcError
from hmc.engine.remote.client import RemoteEngines
from hmc.serving.levels.models import parse_models
from hmc.serving.server.app import Server, open_models, translator_factory
from hmc.serving.server.observing.logs import set_up
from hmc.serving.server.processes.child import leave_terminal
from hmc.serving.server.processes.engine import engine_process
from hmc.serving.server.processes.group import Group, private_folder
from hmc.serving.server.run import serve, summary_of
from hmc.serving.server.settings import ServerSettings


@dataclass(frozen=True)
class FrontTask:
    """What one front of several is told when it starts."""

    bundles: tuple[str, ...]
    """`[NAME=]BUNDLE`, as the user wrote them."""
    settings: ServerSettings
    """With the ports that were reserved."""
    engine: Path
    """Socket of the engine's process."""
    group: Group


def serve_front(task: FrontTask, said: Connection) -> None:
    """The body of the process of one front of several. Says through the pipe that it serves, or why it cannot."""
    leave_terminal()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    set_up(task.settings.log_format, texts=task.settings.log_texts, process=task.group.index)
    try:
        ended = asyncio.run(_serve_with_parent(task, said))
    except HmcError as error:
        said.send_bytes(json.dumps({"error": type(error).__name__, "message": str(error)}).encode())
        raise SystemExit(1) from None
    if not ended:
        os._exit(0)  # else a thread that loads a level would keep the process alive


async def _serve_with_parent(task: FrontTask, said: Connection) -> bool:
    parent: Any = multiprocessing.parent_process()
    if parent is not None:  # the supervisor was killed: nobody would end this process
        asyncio.get_running_loop().add_reader(parent.sentinel, _orphaned)

    def ready(server: Server) -> None:
        said.send_bytes(json.dumps({"ready": summary_of(server)}).encode())

    return await _serve(task.bundles, task.settings, task.engine, ready, task.group)


def _orphaned() -> None:
    parent: Any = multiprocessing.parent_process()
    asyncio.get_running_loop().remove_reader(parent.sentinel)
    signal.raise_signal(signal.SIGTERM)


async def serve_with_engine(bundles: Sequence[str], settings: ServerSettings, ready: Callable[[Server], None]) -> bool:
    """Serves from this process, with an engine's process of its own. Arguments and result: see
    `hmc.serving.server.run.serve`."""
    with private_folder() as folder:
        async with engine_process(folder, settings.log_format, log_texts=settings.log_texts) as socket:
            return await _serve(bundles, settings, socket, ready, None)


async def _serve(
    bundles: Sequence[str],
    settings: ServerSettings,
    socket: Path,
    ready: Callable[[Server], None],
    group: Group | None,
) -> bool:
    engines = RemoteEngines(socket)
    await engines.start()
    try:
        factory = translator_factory(settings, engines.open_level)
        models = open_models(parse_models(bundles), settings, factory)
        server = Server(models, settings, group=group, others_bytes=lambda: engines.process_bytes)
        return await serve(server, ready)
    finally:
        await engines.close()
