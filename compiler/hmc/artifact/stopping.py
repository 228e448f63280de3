"""What SIGTERM and Ctrl-C do to a long job: it ends where little or nothing is lost, and says what is kept.

Inside `stoppable` a signal raises `Stopped`, wherever the job is: files are written whole or not at all. Inside
`deferred` it is only noted; the job asks `noted`, saves what it has, and raises by itself. A second signal ends the
process at once. Signals arrive in the main thread: in others nothing here changes anything.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
ONCE_SECONDS = 1.0
"""A second signal within this time is the first one again: `timeout` sends its signal to a process and to its group."""


class Stopped(KeyboardInterrupt):
    """A signal has ended a job. The message says what is kept. It is empty if the job did not say it."""

    def __init__(self, number: int, kept: str = "") -> None:
        super().__init__(kept)
        self.number = number
        """Of the signal."""


class _Stopping:
    """What of it is on in this process."""

    def __init__(self) -> None:
        self.number = 0
        self.at = 0.0
        """The signal that arrived, 0 before it, and when."""
        self.raises = True
        """Whether a signal raises. False: it is noted."""
        self.on = False
        """Whether the process is in a `stoppable`."""
        self.speaks: Callable[[], bool] = lambda: True

    def arrive(self, number: int, _frame: FrameType | None) -> None:
        """The handler of signals."""
        if self.number:
            if time.monotonic() - self.at >= ONCE_SECONDS:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.at = time.monotonic()
        self.number = number
        if self.raises:
            raise Stopped(number)
        if self.speaks():
            name = signal.Signals(number).name
            os.write(2, f"\nhmc: {name}: the run is saved after this update; again: it ends at once\n".encode())


_stopping = _Stopping()


@contextmanager
def stoppable(kept: Callable[[], str], speaks: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """In the block SIGTERM and Ctrl-C raise `Stopped`; `kept` says what is kept and what to do, unless an inner block
    said it. A signal that the process ignores stays ignored. Handlers are restored at the end.

    speaks: whether this process prints that a signal was noted. One of several processes does.
    """
    state = _stopping
    before = dict[int, Any]()
    outermost = not state.on and threading.current_thread() is threading.main_thread()
    try:
        if outermost:
            state.on = state.raises = True
            state.number = 0
            state.speaks = speaks
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, state.arrive)
        yield
    except Stopped as stopped:
        if str(stopped):
            raise
        raise Stopped(stopped.number, kept()) from None
    finally:
        if outermost:
            for signum, handler in before.items():
                signal.signal(signum, handler)
            state.on = False


@contextmanager
def deferred() -> Iterator[None]:
    """In the block signals are noted. If a signal came in the block, `Stopped` is raised at its end, unless a block
    around it defers too."""
    with _raising(False):
        yield


@contextmanager
def at_once() -> Iterator[None]:
    """In the block signals raise `Stopped`, also inside `deferred`; a signal that was noted before raises it at the
    start."""
    with _raising(True):
        yield


def defer_from_now() -> None:
    """Signals are noted from now on, except in `at_once`: one of several processes must not end alone."""
    _stopping.raises = False


def noted() -> int:
    """The number of the signal that was noted; 0 for none."""
    return _stopping.number if _stopping.on else 0


@contextmanager
def _raising(value: bool) -> Iterator[None]:
    state = _stopping
    before = state.raises
    state.raises = value
    try:
        _raise_noted()
        yield
    finally:
        state.raises = before
    _raise_noted()


def _raise_noted() -> None:
    if _stopping.raises and noted():
        raise Stopped(noted())
