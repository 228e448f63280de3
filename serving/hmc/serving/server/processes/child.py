"""A server process as its supervisor sees it."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from hmc.serving.server.processes.worker import Work, error_of, work

log = logging.getLogger(__name__)


class Child:
    """One process. Make it on the event loop; it is started at once."""

    def __init__(self, given: Work) -> None:
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
