"""One process of several: serves behind the shared port until its supervisor ends it."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from hmc.artifact import errors
from hmc.artifact.errors import HmcError, InvalidRequestError
from hmc.serving.levels.names import parse_models
from hmc.serving.server.app import Server, open_models
from hmc.serving.server.observing.logs import set_up
from hmc.serving.server.processes.group import Group
from hmc.serving.server.run import serve, summary_of
from hmc.serving.server.settings import ServerSettings


@dataclass(frozen=True)
class ServerTask:
    """What a process is told when it starts."""

    bundles: tuple[str, ...]
    """`[NAME=]BUNDLE`, as the user wrote them."""
    settings: ServerSettings
    """With the ports that were reserved, and this process's share of the cores."""
    group: Group


def work(given: ServerTask, said: Connection) -> None:
    """The body of the process. Says through the pipe that it serves, or why it cannot."""
    os.setsid()  # Ctrl-C in a terminal is for the supervisor, which then ends its processes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    set_up(given.settings.log_format, texts=given.settings.log_texts, process=given.group.index)
    try:
        ended = asyncio.run(_serve(given, said))
    except HmcError as error:
        said.send_bytes(json.dumps({"error": type(error).__name__, "message": str(error)}).encode())
        raise SystemExit(1) from None
    if not ended:
        os._exit(0)  # else a thread that loads a level would keep the process alive


async def _serve(given: ServerTask, said: Connection) -> bool:
    parent: Any = multiprocessing.parent_process()
    if parent is not None:  # the supervisor was killed: nobody would end this process
        asyncio.get_running_loop().add_reader(parent.sentinel, _orphaned)
    server = Server(open_models(parse_models(given.bundles), given.settings), given.settings, group=given.group)

    def ready(server: Server) -> None:
        check_devices(server)
        said.send_bytes(json.dumps({"ready": summary_of(server)}).encode())

    return await serve(server, ready)


def _orphaned() -> None:
    parent: Any = multiprocessing.parent_process()
    asyncio.get_running_loop().remove_reader(parent.sentinel)
    signal.raise_signal(signal.SIGTERM)


def check_devices(server: Server) -> None:
    """Raises InvalidRequestError if a level runs on a GPU: every process would have weights of its own there."""
    devices = {status.device for status in server.models.statuses()} - {"", "cpu"}
    if devices:
        raise InvalidRequestError(
            f"--processes shares the cores of a CPU, and these levels run on {', '.join(sorted(devices))}: leave it "
            "out, give --device cpu, or name several GPUs with --device cuda:0,cuda:1"
        )


def error_of(answer: dict[str, Any]) -> HmcError:
    """The error that a process has said."""
    message, kind = answer["message"], getattr(errors, answer["error"], None)
    try:
        made = kind(message) if isinstance(kind, type) and issubclass(kind, HmcError) else HmcError(message)
    except TypeError:  # an error that is made of more than a message
        made = HmcError(message)
    return made
