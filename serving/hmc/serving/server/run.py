"""Runs a server as the work of a whole process, which signals end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

from hmc.artifact.errors import UnavailableError
from hmc.engine.runtime.process_memory import limit_heaps
from hmc.engine.runtime.threads import SWITCH_S
from hmc.serving.server.app import Server

log = logging.getLogger(__name__)

FORCED_STOP_S = 1.0
"""Seconds that cancelled calls get to end after a second signal. Then `serve` returns without them."""


async def serve(server: Server, ready: Callable[[Server], None]) -> bool:
    """Starts a server and runs it until SIGTERM or SIGINT; then it drains. A second signal stops it at once.
    SIGHUP reads the tokens file and the TLS files again.

    ready: called when the server is serving. Returns False if the second signal came while something could not be
    stopped, such as the load of a level; its thread ends with the process. Errors: see `Server.start`.
    """
    limit_heaps()
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    loop = asyncio.get_running_loop()
    signalled = [asyncio.Event(), asyncio.Event()]

    def on_signal() -> None:
        (signalled[1] if signalled[0].is_set() else signalled[0]).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, server.refresh))
    starting = asyncio.create_task(server.start())
    first, second = (asyncio.create_task(event.wait()) for event in signalled)
    try:
        await asyncio.wait({starting, first}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            gc.collect()
            gc.freeze()  # what was loaded stays: to look through all of it again holds up every call for 0.1 seconds
            try:
                ready(server)
            except BaseException:
                await server.stop(0.0)
                raise
            await first
            log.info("draining: running calls have %g s to finish", server.settings.drain_seconds)
        else:
            log.info("stopping: no further level is loaded; a second signal stops without waiting for the present one")
        return await _stop(server, starting, second)
    finally:
        gc.unfreeze()
        sys.setswitchinterval(usual_s)
        first.cancel()
        second.cancel()


async def _stop(server: Server, starting: asyncio.Task[None], second: asyncio.Task[Any]) -> bool:
    """Drains the server, or stops it at once when `second` is done. Returns whether everything has ended."""
    stopping = asyncio.create_task(server.stop())
    ended = asyncio.create_task(asyncio.wait({starting, stopping}))
    await asyncio.wait({ended, second}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        at_once = asyncio.create_task(server.stop(0.0))
        await asyncio.wait({ended, at_once}, timeout=FORCED_STOP_S)
    if not ended.done():
        return False
    await stopping
    if (error := starting.exception()) is not None and not isinstance(error, UnavailableError):
        log.error("the server had failed to start: %s", error)
    return True


def summary_of(server: Server) -> dict[str, Any]:
    """Addresses, and what the first model is and has loaded. `models` has the loaded levels of every model."""
    statuses = server.models.statuses()
    models = {s.model: [level.name for level in s.levels if level.loaded] for s in statuses}
    first = statuses[0]
    return {
        "address": server.address,
        "admin_address": server.admin_address,
        "metrics_port": server.metrics_port,
        "http_address": server.http_address,
        "bundle_version": first.manifest.version,
        "device": first.device,
        "levels": models[first.model],
        "models": models,
        "fronts": server.settings.fronts_here(),
    }
