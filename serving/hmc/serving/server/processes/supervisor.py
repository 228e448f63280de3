"""Starts the engine's process and several fronts on one port, starts again those that end, and stops all of them. The
kernel gives each new connection to one of the fronts."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from hmc.serving.server.access.listening import check_port, join_address, parse_listener
from hmc.serving.server.processes.child import Kept
from hmc.serving.server.processes.engine import SOCKET, engine_process
from hmc.serving.server.processes.front import FrontTask, serve_front
from hmc.serving.server.processes.group import Group, private_folder
from hmc.serving.server.settings import ServerSettings


def reserve(host: str, port: int, setting: str) -> socket.socket:
    """Takes a port for processes that will share it, and listens to nothing itself. Close the socket to give it back.

    port: 0 takes any free one. setting: of the port, for errors. Raises PortInUseError and InvalidRequestError.
    """
    check_port(host, port, setting)  # the socket below would share a port with another service of this user
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    reserved = socket.socket(family, kind, protocol)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(address)
    return reserved


EXTRA_S = 10.0
"""Seconds after the drain in which a process must have ended; then it is killed."""


class Supervisor:
    """Runs an engine's process and several fronts as one service. Use it once, in a `with` block; `run` does the
    work."""

    def __init__(self, bundles: Sequence[str], settings: ServerSettings) -> None:
        """bundles: `[NAME=]BUNDLE`. Takes the ports: raises PortInUseError and InvalidRequestError."""
        self._bundles = tuple(bundles)
        self._count = settings.fronts_here()
        self._drain_s = settings.drain_seconds
        self._fronts: dict[int, Kept] = {}
        self._stopping = asyncio.Event()
        with ExitStack() as held:
            self.settings = self._with_own_ports(settings, held)
            self._folder = held.enter_context(private_folder())
            self._held = held.pop_all()

    def _with_own_ports(self, settings: ServerSettings, held: ExitStack) -> ServerSettings:
        """The settings of a front, with the ports that all of them listen on."""

        def taken(port: int, setting: str) -> int:
            reserved = held.enter_context(reserve(settings.host, port, setting))
            return int(reserved.getsockname()[1])

        port = taken(settings.port, "port")
        http_port = settings.http_port
        if http_port is not None:
            http_port = taken(http_port, "http_port")
        return settings.model_copy(update={"port": port, "http_port": http_port})

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    async def run(self, ready: Callable[[dict[str, Any]], None]) -> None:
        """Starts all processes, and returns when a signal has ended them.

        ready: called when all serve, with the summary of the first front. SIGTERM and SIGINT drain, a second one stops
        at once, SIGHUP reads tokens and TLS files again. Raises what the first front raises that cannot start.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_soon)
        loop.add_signal_handler(signal.SIGHUP, self._refresh)
        settings = self.settings
        async with engine_process(self._folder, settings.log_format, log_texts=settings.log_texts):
            try:
                first = await self._begin([0])  # it holds the ports that only one of them can
                if first is not None:
                    self.settings = self._with_ports(first)
                    for front in self._fronts.values():
                        front.task = replace(front.task, settings=self.settings)
                await self._begin(range(1, self._count))
                if first is not None and not self._stopping.is_set():
                    ready(first)
                await asyncio.gather(*(front.keep(self._stopping) for front in self._fronts.values()))
            finally:
                self._stopping.set()
                within_s = self._drain_s + EXTRA_S
                await asyncio.gather(*(front.child.stop(within_s) for front in self._fronts.values()))

    def _with_ports(self, first: dict[str, Any]) -> ServerSettings:
        """The settings with the ports that the first process got, which it takes again if it is started again."""
        address = self.settings.admin_address
        if address is not None and not isinstance(listener := parse_listener(address), Path):
            address = join_address(listener[0], int(first["admin_address"].rpartition(":")[2]))
        return self.settings.model_copy(update={"metrics_port": first["metrics_port"], "admin_address": address})

    def _spawn(self, index: int) -> Kept:
        group = Group(self._folder, index, self._count)
        task = FrontTask(self._bundles, self.settings, self._folder / SOCKET, group)
        # No change waits for a front that has ended.
        self._fronts[index] = front = Kept(serve_front, task, f"front {index}", ended=group.leave)
        return front

    async def _begin(self, indices: Sequence[int]) -> dict[str, Any] | None:
        """Starts processes, and returns the summary of one when all serve; None if the service is to stop."""
        if self._stopping.is_set():
            return None
        starting = asyncio.gather(*(self._spawn(index).child.ready for index in indices))
        stopping = asyncio.create_task(self._stopping.wait())
        waited: set[asyncio.Future[Any]] = {starting, stopping}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return None
        summaries = await starting
        return summaries[0] if summaries else None

    def _stop_soon(self) -> None:
        again = self._stopping.is_set()
        self._stopping.set()
        for front in self._fronts.values():
            if again:
                front.child.send(signal.SIGTERM)
            else:
                front.child.drain()

    def _refresh(self) -> None:
        for front in self._fronts.values():
            if front.child.serves:  # one that starts reads the files anyway, and would be ended by the signal
                front.child.send(signal.SIGHUP)
