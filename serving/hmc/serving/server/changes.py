"""Runs changes of what is loaded, such as loading a level, outside the event loop and its default threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ChangeThread:
    """Runs calls one after the other in one thread, which ends when no call is left.

    Loading a level takes seconds. In asyncio's default threads, a few waiting loads would hold up every other call that
    needs such a thread. One thread is enough: the host makes one change at a time. It is a daemon thread, so that a
    process can end while a level loads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns or raises what the call does. Cancelling the await drops a call that has not begun; one that has
        begun goes on."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised again by the await
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            self._waiting.append(work)
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="hmc-changes", daemon=True).start()
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                work = self._waiting.popleft()
            work()
