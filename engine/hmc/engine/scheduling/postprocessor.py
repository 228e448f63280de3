"""The thread that gives results to callers, and functions that end futures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Postprocessor:
    """Runs calls one after the other in a thread of its own, so that callers' callbacks and the making of text delay no
    decoding step. A call that blocks delays the calls after it."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Sequence[Callable[[], object]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hmc-postprocessing", daemon=True)
        self._thread.start()

    def post(self, calls: Sequence[Callable[[], object]]) -> None:
        """Runs the calls on the thread, after all calls posted before. Returns at once. Their errors are logged."""
        if calls:
            self._calls.put(calls)

    def close(self) -> None:
        """Ends the thread after all calls posted before, and waits for it, unless it is called from one of them."""
        self._calls.put(())
        if not self.is_this_thread:
            self._thread.join()

    @property
    def is_this_thread(self) -> bool:
        """Whether it is this thread that runs the calls."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while calls := self._calls.get():
            for call in calls:
                try:
                    call()
                except BaseException:
                    log.exception("a callback of a caller raised; other sentences are not affected")
            del call, calls  # otherwise they would keep results in memory until the next calls come


def set_result(future: Future[Result], result: Result) -> None:
    """Ends a future that may have been cancelled."""
    try:  # noqa: SIM105 - `suppress` takes as long as the rest
        future.set_result(result)
    except InvalidStateError:
        pass


def set_exception(future: Future[Result], error: BaseException) -> None:
    """Ends a future that may have been cancelled or may have ended."""
    with suppress(InvalidStateError):
        future.set_exception(error)


def announce_cancellation(future: Future[Result]) -> None:
    """A done callback; add it to a future once. It tells `concurrent.futures.wait` and `as_completed` of a
    cancellation, which `Future.cancel` alone does not."""
    if future.cancelled():
        future.set_running_or_notify_cancel()
