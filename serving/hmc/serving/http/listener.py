"""Listens for HTTP on the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 30
"""Seconds after which an idle connection is closed."""
HEAD_S = 20.0
"""Seconds in which the line and the headers of a request must have arrived, from its first byte on, and those of the
first request from the connection on."""
REST_S = 60.0
"""Seconds in which a body must have arrived that nobody reads, because its request has been answered already. The time
of a body that is read: `bodies.BODY_SECONDS`."""
PROBE_S = 20
PROBES = 3
"""A connection without traffic is asked every so many seconds whether its client is there, and is closed when so many
questions had no answer. This is how the end of a machine without a word is noticed."""
BACKLOG = 1024
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `accept` that mean "not now": the process or the machine has no room for another connection."""
RETRY_S = 1.0
"""Seconds until the next try after such an error. asyncio waits as long."""


class _Accepted(socket.socket):
    """A connection, which counts until it is closed."""

    counted: set[_Accepted]

    def close(self) -> None:
        self.counted.discard(self)
        super().close()


class _Listening(socket.socket):
    """A socket that closes new connections at once while there are `most`."""

    most: int
    counted: set[_Accepted]
    paused_until = 0.0

    def accept(self) -> tuple[socket.socket, Any]:
        if time.monotonic() < self.paused_until:
            raise BlockingIOError  # asyncio goes on accepting after an error, up to its backlog
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:  # asyncio leaves the socket alone for a second
                self.paused_until = time.monotonic() + RETRY_S / 2
            raise
        if len(self.counted) >= self.most:
            connection.close()
            raise BlockingIOError  # to asyncio: nothing to accept
        made = _Accepted(self.family, self.type, self.proto, fileno=connection.detach())
        made.counted = self.counted
        self.counted.add(made)
        for name, value in (("TCP_KEEPIDLE", PROBE_S), ("TCP_KEEPINTVL", PROBE_S), ("TCP_KEEPCNT", PROBES)):
            if hasattr(socket, name):  # not on every system
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return made, address


class _Protocol(H11Protocol):
    """HTTP/1.1 with time limits for what a client has begun to send."""

    head_s = HEAD_S
    rest_s = REST_S
    _limit: asyncio.TimerHandle | None = None
    _awaited: object = None
    """What the limit is for."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._follow()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._set(None, 0.0)

    def _follow(self) -> None:
        """Sets the limit that holds now."""
        state = self.conn.their_state
        cycle = self.cycle
        if state is h11.IDLE and self.timeout_keep_alive_task is None:
            self._set(("head", cycle), self.head_s)
        elif state is h11.SEND_BODY and cycle.response_complete:
            self._set(("rest", cycle), self.rest_s)
        else:
            self._set(None, 0.0)

    def _set(self, awaited: object, seconds: float) -> None:
        if awaited == self._awaited:
            return
        if self._limit is not None:
            self._limit.cancel()
        self._awaited = awaited
        self._limit = None if awaited is None else self.loop.call_later(seconds, self.transport.abort)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """An HTTP listener. Make it and use it on one event loop; start it once."""

    def __init__(
        self,
        app: Starlette,
        host: str,
        port: int,
        tls_pair: tuple[bytes, bytes] | None,
        *,
        max_connections: int,
        shared: bool = False,
    ) -> None:
        """Takes the port, but does not answer yet. port: 0 takes any free one. tls_pair: key and certificate chain.
        max_connections: at the same time; further ones are closed at once. shared: other processes of this user may
        listen on the port too.

        Raises OSError if it cannot listen there.
        """
        self._context = None if tls_pair is None else tls_context(*tls_pair)
        self._pair = tls_pair
        context = None if tls_pair is None else self._switching(*tls_pair)
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level="error",  # it warns of every connection that sends no HTTP, which fills the log
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            ssl_context_factory=None if context is None else lambda _config, _default: context,
        )
        self._uvicorn = _Uvicorn(config)
        self._socket = _bound(host, port, shared, max_connections)
        self._serving: asyncio.Task[None] | None = None
        self.port: int = self._socket.getsockname()[1]

    async def start(self) -> None:
        """Answers from now on."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(partial(_report, loop.get_exception_handler()))
        self._serving = asyncio.create_task(self._uvicorn.serve([self._socket]))
        while not self._uvicorn.started and not self._serving.done():
            await asyncio.sleep(0)
        if self._serving.done():
            await self._serving

    def _switching(self, key: bytes, chain: bytes) -> ssl.SSLContext:
        """A context for the socket, which gives each connection the present context when its handshake begins."""

        def switch(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            assert self._context is not None
            connection.context = self._context

        made = tls_context(key, chain)
        made.sni_callback = switch
        return made

    def use(self, pair: tuple[bytes, bytes]) -> None:
        """Gives new connections another key and certificate chain. May be called from any thread."""
        if self._context is not None and pair != self._pair:
            self._context = tls_context(*pair)
            self._pair = pair

    async def stop(self, drain_seconds: float) -> None:
        """Takes no new connections, lets running requests finish, and cancels requests that do not finish in time.

        `stop` may be called again, with less time.
        """
        self._uvicorn.should_exit = True
        if self._serving is None:
            self._socket.close()
            return
        await asyncio.wait({self._serving}, timeout=drain_seconds)
        if not self._serving.done():
            self._uvicorn.force_exit = True
            for connection in list(self._uvicorn.server_state.connections):
                transport = connection.transport
                if transport is not None:
                    transport.abort()
            for task in list(self._uvicorn.server_state.tasks):  # later, so that they find their connection closed
                task.cancel()
        await self._serving


Handler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


def _report(before: Handler | None, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs in one line that there is no room for a connection; asyncio would log a traceback. before: handles the other
    errors of the event loop."""
    error = context.get("exception")
    if "socket" in context and isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
        log.warning("the HTTP port takes no connection now: %s", error.strerror)
    elif before is not None:
        before(loop, context)
    else:
        loop.default_exception_handler(context)


def _bound(host: str, port: int, shared: bool, max_connections: int) -> socket.socket:
    """A socket that listens. Its protocol is named, because asyncio turns Nagle's algorithm off only then."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    made = _Listening(family, kind, socket.IPPROTO_TCP)
    made.most = max_connections
    made.counted = set()
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def tls_context(key: bytes, chain: bytes) -> ssl.SSLContext:
    """A context that serves with this pair, both in PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # short keys are accepted, as gRPC does
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads files only; the folder is this user's alone
        cert_file = Path(folder) / "cert.pem"
        key_file = Path(folder) / "key.pem"
        cert_file.write_bytes(chain)
        key_file.write_bytes(key)
        context.load_cert_chain(cert_file, key_file)
    return context
