"""A process that another one starts, and starts again when it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from hmc.artifact.errors import HmcError, UnavailableError, named_error

log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.5
MOST_WAIT_S = 30.0
"""Seconds before a process that ended is started again; they double each time, up to the most."""
STEADY_S = 60.0
"""After a process that lived so long, the first wait holds again."""
Body = Callable[[Any, Connection], None]
"""What a process does: (what it is told, where it says that it serves)."""


class Child:
    """One process. Make it on the event loop; it is started at once."""

    def __init__(self, body: Body, task: Any, name: str) -> None:
        """body: what the process does. task: what it is told. name: of the process, for the log."""
        loop = asyncio.get_running_loop()
        context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        hears, says = context.Pipe(duplex=False)
        self.name = name
        self.began = time.monotonic()
        self._process: BaseProcess = context.Process(target=body, args=(task, says), name=f"hmc {name}")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it has left the terminal
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        says.close()
        self._told = False
        self.ready: asyncio.Future[dict[str, Any]] = loop.create_future()
        """What it says of itself when it serves, or an HmcError."""
        self.ended: asyncio.Future[None] = loop.create_future()
        loop.add_reader(hears.fileno(), self._hear, hears)
        loop.add_reader(self._process.sentinel, self._end)

    def _hear(self, hears: Connection) -> None:
        try:
            answer = json.loads(hears.recv_bytes())
        except EOFError:  # it has ended
            answer = {"error": "UnavailableError", "message": f"{self.name} ended before it served"}
        asyncio.get_running_loop().remove_reader(hears.fileno())
        hears.close()
        if self.ready.done():  # nobody waits any more
            return
        if "ready" in answer:
            self.ready.set_result(answer["ready"])
        else:
            self.ready.set_exception(named_error(answer["error"], answer["message"]) or HmcError(answer["message"]))
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
            log.error("%s did not end in %g s and is killed", self.name, within_s)
            self.send(signal.SIGKILL)
            await self.ended


class Kept:
    """A process that is started again whenever it ends."""

    def __init__(self, body: Body, task: Any, name: str, ended: Callable[[], None] | None = None) -> None:
        """Arguments: see `Child`. ended: called when it has ended by itself. The task is read at each start."""
        self.task = task
        self._body = body
        self._name = name
        self._ended = ended
        self.child = Child(body, task, name)

    async def keep(self, stopping: asyncio.Event) -> None:
        """Starts it again whenever it ends, until `stopping` is set."""
        wait = FIRST_WAIT_S
        stops = asyncio.create_task(stopping.wait())
        while True:
            waited: set[asyncio.Future[Any]] = {self.child.ended, stops}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if stops.done():
                return
            if time.monotonic() - self.child.began > STEADY_S:
                wait = FIRST_WAIT_S
            if self._ended is not None:
                self._ended()
            log.error("%s ended with status %s, and is started again in %g s", self._name, self.child.exit_code, wait)
            await asyncio.wait({stops}, timeout=wait)
            if stops.done():
                return
            wait = min(2 * wait, MOST_WAIT_S)
            try:
                self.child = Child(self._body, self.task, self._name)
                self.child.ready.add_done_callback(self._said)
            except OSError as error:
                log.error("%s cannot be started: %s", self._name, error)

    def _said(self, done: asyncio.Future[dict[str, Any]]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None:
            log.info("%s serves again", self._name)
        elif isinstance(error, HmcError) and not isinstance(error, UnavailableError):
            log.error("%s cannot serve: %s", self._name, error)


def leave_terminal() -> None:
    """The first step of a body. Ctrl-C in a terminal is for the process that started this one, which then ends it."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
