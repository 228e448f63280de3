"""A server that runs in a thread of this process, for tests, demonstrations and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

from hmc.serving.levels.slots import TranslatorFactory
from hmc.serving.server.app import Server, open_models
from hmc.serving.server.observing.traces import Traces
from hmc.serving.server.settings import ServerSettings


class BackgroundServer:
    """Serves a bundle, or several by name, while its `with` block runs. Without settings it takes a free port.

    Entering starts the server; errors: see `Server.start`. Leaving drains and stops it.
    """

    def __init__(
        self,
        bundle: Path | str | Mapping[str, Path],
        settings: ServerSettings | None = None,
        factory: TranslatorFactory | None = None,
        traces: Traces | None = None,
    ) -> None:
        """factory: loads the translators of levels; None loads real ones. traces: see `Server`.

        Raises InvalidArtifactError and LevelNotFoundError.
        """
        self.settings = settings or ServerSettings(port=0)
        bundles = bundle if isinstance(bundle, Mapping) else {"": Path(bundle)}
        self.models = open_models(bundles, self.settings, factory)
        self.host = self.models.first
        self._traces = traces
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hmc-server", daemon=True)
        self.server: Server | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients. Raises RuntimeError before the `with` block is entered."""
        if self.server is None:
            raise RuntimeError("the server is not running: use it in a `with` block")
        return self.server.address

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that serves. Raises RuntimeError before the `with` block is entered."""
        if self._loop is None:
            raise RuntimeError("the server is not running: use it in a `with` block")
        return self._loop

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = Server(self.models, self.settings, self._traces)
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
        """Drains and stops the server. Raises an error that ended the server meanwhile."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __exit__(self, *_: object) -> None:
        self.stop()
