"""Listens for HTTP on the server's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

KEEP_ALIVE_S = 30
"""Seconds after which an idle connection is closed."""
BACKLOG = 1024


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """An HTTP listener. Make it and use it on one event loop; start it once."""

    def __init__(
        self, app: Starlette, host: str, port: int, tls_pair: tuple[bytes, bytes] | None, *, shared: bool = False
    ) -> None:
        """Takes the port, but does not answer yet. port: 0 takes any free one. tls_pair: key and certificate chain.
        shared: other processes of this user may listen on the port too.

        Raises OSError if it cannot listen there.
        """
        self._context = None if tls_pair is None else tls_context(*tls_pair)
        self._pair = tls_pair
        context = None if tls_pair is None else self._switching(*tls_pair)
        config = uvicorn.Config(
            app,
            http="h11",
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
        self._socket = _bound(host, port, shared)
        self._serving: asyncio.Task[None] | None = None
        self.port: int = self._socket.getsockname()[1]

    async def start(self) -> None:
        """Answers from now on."""
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
            self._context, self._pair = tls_context(*pair), pair

    async def stop(self, drain_seconds: float) -> None:
        """Takes no new connections, lets running requests finish, and cancels those that do not in time.

        It may be called again, with less time.
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


def _bound(host: str, port: int, shared: bool) -> socket.socket:
    """A socket that listens. Its protocol is named, because asyncio turns Nagle's algorithm off only then."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    made = socket.socket(family, kind, socket.IPPROTO_TCP)
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
        cert_file, key_file = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        cert_file.write_bytes(chain)
        key_file.write_bytes(key)
        context.load_cert_chain(cert_file, key_file)
    return context
