"""Starts several server processes on one port, starts again those that end, and stops all of them. The kernel gives
each new connection to one of them."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hmc.artifact.errors import HmcError, UnavailableError
from hmc.engine.runtime.threads import cores
from hmc.serving.server.access.listening import check_port, join_address, parse_listener
from hmc.serving.server.processes.group import Group
from hmc.serving.server.processes.worker import ServerTask, error_of, work
from hmc.serving.server.settings import ServerSettings


class Child:
    """One process. Make it on the event loop; it is started at once."""

    def __init__(self, given: ServerTask) -> None:
        loop, context = asyncio.get_running_loop(), multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        hears, says = context.Pipe(duplex=False)
        self.index, self.began = given.group.index, time.monotonic()
        self._process: BaseProcess = context.Process(target=work, args=(given, says), name=f"hmc-{self.index}")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it has left the terminal
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        says.close()
        self._told = False
        self.ready: asyncio.Future[dict[str, Any]] = loop.create_future()
        """Its summary when it serves, or an HmcError."""
        self.ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(hears.fileno(), self._hear, hears)
        loop.add_reader(self._process.sentinel, self._end)

    def _hear(self, hears: Connection) -> None:
        try:
            answer = json.loads(hears.recv_bytes())
        except EOFError:  # it has ended
            answer = {"error": "UnavailableError", "message": f"process {self.index} ended before it served"}
        asyncio.get_running_loop().remove_reader(hears.fileno())
        hears.close()
        if self.ready.done():  # nobody waits any more
            return
        if "ready" in answer:
            self.ready.set_result(answer["ready"])
        else:
            self.ready.set_exception(error_of(answer))
            self.ready.exception()  # seen, whether or not somebody waits

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        self.ended.set_result(None)

    @property
    def serves(self) -> bool:
        """Whether it has said that it serves."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    @property
    def exit_code(self) -> int | None:
        """As of `multiprocessing`: the number of a signal is negative."""
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, unless it has ended."""
        if self._process.pid is not None and not self.ended.done():
            with suppress(ProcessLookupError):  # it has ended a moment ago
                os.kill(self._process.pid, number)

    def drain(self) -> None:
        """Lets it finish its calls and end. Later calls do nothing: a second SIGTERM would stop it at once."""
        if not self._told:
            self._told = True
            self.send(signal.SIGTERM)

    async def stop(self, within_s: float) -> None:
        """Drains it, and kills it if it has not ended after so long."""
        self.drain()
        await asyncio.wait({self.ended}, timeout=within_s)
        if not self.ended.done():
            log.error("process %d did not end in %g s and is killed", self.index, within_s)
            self.send(signal.SIGKILL)
            await self.ended


def reserve(host: str, port: int, option: str) -> socket.socket:
    """Takes a port for processes that will share it, and listens to nothing itself. Close the socket to give it back.

    port: 0 takes any free one. option: of the command line, for errors. Raises PortInUseError and InvalidRequestError.
    """
    check_port(host, port, option)  # the socket below would share a port with another service of this user
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(address)
    return made


def number_of(reserved: socket.socket) -> int:
    """The port that was reserved."""
    return int(reserved.getsockname()[1])


log = logging.getLogger(__name__)

FIRST_WAIT_S, MOST_WAIT_S = 0.5, 30.0
"""Seconds before a process that ended is started again; they double each time, up to the most."""
STEADY_S = 60.0
"""After a process that lived so long, the first wait holds again."""
EXTRA_S = 10.0
"""Seconds after the drain in which a process must have ended; then it is killed."""


class Supervisor:
    """Runs `settings.processes` servers as one service. Use it once, in a `with` block; `run` does the work."""

    def __init__(self, bundles: Sequence[str], settings: ServerSettings) -> None:
        """bundles: `[NAME=]BUNDLE`. Takes the ports: raises PortInUseError and InvalidRequestError."""
        self._reserved: list[socket.socket] = []
        try:
            self.settings = self._of_each(settings)
        except BaseException:
            self._give_back()
            raise
        self._bundles, self._drain_s = tuple(bundles), settings.drain_seconds
        self._folder = Path(tempfile.mkdtemp(prefix="hmc-"))  # only this user can enter it
        self._held = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_SH)  # so that what tidies folders of temporary files leaves it alone
        self._children: dict[int, Child] = {}
        self._stopping = asyncio.Event()

    def _of_each(self, settings: ServerSettings) -> ServerSettings:
        """The settings of a process: its share of the cores, and the ports that all of them listen on."""
        host, http_port = settings.host, settings.http_port
        port = self._taken(host, settings.port, "--port")
        if http_port is not None:
            http_port = self._taken(host, http_port, "--http-port")
        alone = settings.workers > 1  # then 0 threads are one for each worker
        threads = settings.threads or (0 if alone else max(1, cores() // settings.processes))
        return replace(settings, threads=threads, port=port, http_port=http_port)

    def _taken(self, host: str, port: int, option: str) -> int:
        self._reserved.append(reserve(host, port, option))
        return number_of(self._reserved[-1])

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        os.close(self._held)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _give_back(self) -> None:
        for each in self._reserved:
            each.close()

    async def run(self, ready: Callable[[dict[str, Any]], None]) -> None:
        """Starts all processes, and returns when a signal has ended them.

        ready: called when all serve, with the summary of the first one. SIGTERM and SIGINT drain, a second one stops at
        once, SIGHUP reads tokens and TLS files again. Raises what the first process raises that cannot start.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_soon)
        loop.add_signal_handler(signal.SIGHUP, self._refresh)
        try:
            first = await self._begin([0])  # it packs the weights that the others then map
            if first is not None:
                self.settings = self._with_ports(first)
            await self._begin(range(1, self.settings.processes))
            if first is not None and not self._stopping.is_set():
                ready(first)
            await asyncio.gather(*(self._keep(index) for index in self._children))
        finally:
            self._stopping.set()
            await asyncio.gather(*(child.stop(self._drain_s + EXTRA_S) for child in self._children.values()))

    def _with_ports(self, first: dict[str, Any]) -> ServerSettings:
        """The settings with the ports that the first process got, which it takes again if it is started again."""
        address = self.settings.admin_address
        if address is not None and not isinstance(listener := parse_listener(address), Path):
            address = join_address(listener[0], int(first["admin_address"].rpartition(":")[2]))
        return replace(self.settings, metrics_port=first["metrics_port"], admin_address=address)

    def _spawn(self, index: int) -> Child:
        group = Group(self._folder, index, self.settings.processes)
        self._children[index] = child = Child(ServerTask(self._bundles, self.settings, group))
        return child

    async def _begin(self, indices: Sequence[int]) -> dict[str, Any] | None:
        """Starts processes, and returns the summary of one when all serve; None if the service is to stop."""
        if self._stopping.is_set():
            return None
        starting = asyncio.gather(*(self._spawn(index).ready for index in indices))
        stopping = asyncio.create_task(self._stopping.wait())
        waited: set[asyncio.Future[Any]] = {starting, stopping}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return None
        found = await starting
        return found[0] if found else None

    async def _keep(self, index: int) -> None:
        """Starts a process again whenever it ends, until the service stops."""
        wait, stopping = FIRST_WAIT_S, asyncio.create_task(self._stopping.wait())
        while True:
            child = self._children[index]
            waited: set[asyncio.Future[Any]] = {child.ended, stopping}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                return
            wait = FIRST_WAIT_S if time.monotonic() - child.began > STEADY_S else wait
            Group(self._folder, index, self.settings.processes).leave()  # no change waits for it
            log.error(
                "process %d of %d ended with status %s, and is started again in %g s",
                index, self.settings.processes, child.exit_code, wait,
            )  # fmt: skip
            await asyncio.wait({stopping}, timeout=wait)
            if stopping.done():
                return
            wait = min(2 * wait, MOST_WAIT_S)
            try:
                self._spawn(index).ready.add_done_callback(lambda done: self._said(index, done))
            except OSError as error:
                log.error("process %d cannot be started: %s", index, error)

    def _said(self, index: int, done: asyncio.Future[dict[str, Any]]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None:
            log.info("process %d serves again", index)
        elif isinstance(error, HmcError) and not isinstance(error, UnavailableError):
            log.error("process %d cannot serve: %s", index, error)

    def _stop_soon(self) -> None:
        again = self._stopping.is_set()
        self._stopping.set()
        for child in self._children.values():
            child.send(signal.SIGTERM) if again else child.drain()

    def _refresh(self) -> None:
        for child in self._children.values():
            if child.serves:  # one that starts reads the files anyway, and would be ended by the signal
                child.send(signal.SIGHUP)
