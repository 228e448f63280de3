"""A front's end of the connection to the engine: messages that are sent in one turn of the event loop go in one
frame."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from hmc.engine.remote.frames import LENGTH, MAX_FRAME, FromEngine, LinkError, Message, frame, from_engine, size_of

log = logging.getLogger(__name__)

MAX_WAITING = 4 * MAX_FRAME
"""Bytes that may wait for the engine to read them. One that does not read is taken for dead."""


class Link(asyncio.Protocol):
    """Lives on one event loop."""

    def __init__(self, heard: Callable[[Sequence[FromEngine]], None]) -> None:
        """heard: called with the messages of a frame."""
        self._heard = heard
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: list[Message] = []
        self.lost = asyncio.Event()
        """Set when the connection has ended."""

    def send(self, message: Message) -> None:
        """Sends a message with the others of this turn. Does nothing when the connection has ended."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(message)

    def close(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        messages = self._waiting
        self._waiting = []
        if self._transport is None:
            return
        try:
            self._transport.write(frame(messages))
            if self._transport.get_write_buffer_size() > MAX_WAITING:
                raise LinkError("the engine does not read")
        except LinkError as error:
            self._cut(error)

    def _cut(self, error: LinkError) -> None:
        log.error("the connection to the engine is cut: %s", error)
        self.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        begin = 0
        try:
            while len(received) - begin >= LENGTH.size:
                body = begin + LENGTH.size
                end = body + size_of(bytes(received[begin:body]))
                if end > len(received):
                    break
                self._heard(from_engine(bytes(memoryview(received)[body:end])))
                begin = end
        except LinkError as error:
            self._cut(error)
            return
        del received[:begin]

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self.lost.set()
