"""A server in a thread of its own, for tests, demonstrations and notebooks."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import TracebackType

from hmc.serving.loaded import TranslatorFactory
from hmc.serving.server.app import Server, model_host
from hmc.serving.server.settings import ServerSettings


class BackgroundServer:
    """Serves a bundle while its `with` block runs, on a free port unless the settings name one.

    Entering raises as `Server.start`; leaving drains. `address` is what clients connect to.
    """

    def __init__(
        self, bundle: Path | str, settings: ServerSettings | None = None, factory: TranslatorFactory | None = None
    ) -> None:
        """Raises InvalidArtifactError and LevelNotFoundError. `factory` loads other translators than the real ones."""
        self.settings = settings or ServerSettings(port=0)
        self.host = model_host(bundle, self.settings, factory)
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hmc-server", daemon=True)
        self.server: Server | None = None

    @property
    def address(self) -> str:
        """`host:port`; only while it runs."""
        if self.server is None:
            raise RuntimeError("the server is not running: use it in a `with` block")
        return self.server.address

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.server = Server(self.host, self.settings)
        await self.server.start()
        self._ready.set()
        await self._stop.wait()
        await self.server.stop()

    def __enter__(self) -> BackgroundServer:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def stop(self) -> None:
        """Drains and stops; returns when done. Raises what went wrong in the meantime."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
