"""Work that may wait for long, without the threads that others need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_own_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the call returns or raises. Who stops waiting leaves it running, in a thread that nobody else waits for."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # it cannot be cancelled

    def run() -> None:
        try:
            result = call(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="hmc-change", daemon=True).start()
    return await asyncio.wrap_future(future)
