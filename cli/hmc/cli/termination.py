"""SIGTERM as an ordinary exit: what a command has half written is cleaned up, as after Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM
"""What a shell reports for a process that SIGTERM ended."""


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Within, SIGTERM raises SystemExit; does nothing outside the main thread, where no signal arrives."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(EXIT_CODE)
