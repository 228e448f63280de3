"""What other threads do for the event loop: translations that arrive from them, and changes of what is loaded, which
run outside the loop and its default threads."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from hmc.artifact.errors import UnavailableError
from hmc.serving.levels.cache import SHUTTING_DOWN

Result = TypeVar("Result")


class Arrivals:
    """Brings results of other threads to an event loop, on which it lives. The loop is woken once for all results that
    have come until it looks.

    A future that something else has cancelled, such as a level that was stopped, ends with UnavailableError here.
    """

    def __init__(self) -> None:
        self._ended: deque[tuple[Callable[[Future[Any]], None], Future[Any]]] = deque()
        self._woken = False

    def wrap(self, future: Future[Result]) -> asyncio.Future[Result]:
        """Ends as `future` does, with its result or its error. Ending it earlier cancels `future`."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Result] = loop.create_future()
        waiting.add_done_callback(partial(_pass_cancellation, future))

        def arrive(future: Future[Result]) -> None:
            if waiting.done():
                return
            if (error := _error_of(future)) is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(future.result())

        future.add_done_callback(partial(self._put, loop, arrive))
        return waiting

    async def all(self, futures: Sequence[Future[Result]], heard: Callable[[Result], object]) -> list[Result]:
        """The results of all futures, at least one, in their order. heard: called with each as it comes; it may raise.

        The first error is raised at once. Then, and if this is cancelled, all other futures are cancelled.
        """
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        waited_for = len(futures)

        def arrive(future: Future[Result]) -> None:
            nonlocal waited_for
            if waiting.done():
                return
            error = _error_of(future)
            if error is None:
                try:
                    heard(future.result())
                except Exception as raised:  # noqa: BLE001 - raised again by the await
                    error = raised
            waited_for -= 1
            if error is not None:
                waiting.set_exception(error)
            elif not waited_for:
                waiting.set_result(None)

        put = partial(self._put, loop, arrive)
        try:
            for future in futures:
                future.add_done_callback(put)
            await waiting
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return [future.result() for future in futures]

    def _put(self, loop: asyncio.AbstractEventLoop, arrive: Callable[[Future[Any]], None], future: Future[Any]) -> None:
        """May be called from any thread."""
        self._ended.append((arrive, future))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed, and so nothing waits
                loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._woken = False  # before the look: what comes after the last look wakes the loop again
        while self._ended:
            arrive, future = self._ended.popleft()
            arrive(future)


def _error_of(future: Future[Any]) -> BaseException | None:
    """The error of a future that has ended; None if it has a result."""
    return UnavailableError(SHUTTING_DOWN) if future.cancelled() else future.exception()


def _pass_cancellation(future: Future[Any], _: asyncio.Future[Any]) -> None:
    future.cancel()  # does nothing to one that has ended


P = ParamSpec("P")
T = TypeVar("T")


class ChangeThread:
    """Runs calls one after the other, each in a thread of its own.

    Loading a level takes seconds. In asyncio's default threads, a few waiting loads would hold up every other call that
    needs such a thread. These are daemon threads, so that a process can end while a level loads.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns or raises what the call does. Cancelling the await drops a call that has not begun; one that has
        begun goes on, and the next one waits for it."""
        await self._turn.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                end = partial(ended.set_result, call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again by the await
                end = partial(ended.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed, and so nothing waits
                loop.call_soon_threadsafe(finish, end)

        def finish(end: Callable[[], None]) -> None:
            self._turn.release()
            if not ended.done():
                end()

        threading.Thread(target=work, name="hmc-changes", daemon=True).start()
        return await ended
