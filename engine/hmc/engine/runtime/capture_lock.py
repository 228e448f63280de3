"""The lock of captures: many threads may use them at the same time, but one that captures a CUDA graph uses them alone.

While CUDA records a graph, an allocation or a copy of any other thread makes the recording fail, on whatever device:
ONNX Runtime records in the mode cudaStreamCaptureModeGlobal, which is one for the process. So all CUDA devices share
one lock. Whatever calls CUDA does it within `shared`, and a capture within `alone`. A thread that is in `shared` may
go `alone`: it then gives up its share meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hmc.engine.runtime.device import Device


class _CaptureLock:
    """Of all CUDA devices."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sharing: dict[int, int] = {}
        """Thread → how often it has entered `shared`."""
        self.waiting = 0
        """Threads that want to be alone."""
        self.owner: int | None = None
        """The thread that is alone."""


_lock = _CaptureLock()


@contextmanager
def shared(device: Device) -> Iterator[None]:
    """Uses the device beside other threads. Waits while another thread is alone on the device, or waits to be."""
    if device.kind == "cpu":
        yield
        return
    me = threading.get_ident()
    with _lock.changed:
        if me not in _lock.sharing and _lock.owner != me:
            _lock.changed.wait_for(lambda: _lock.owner is None and not _lock.waiting)
        _lock.sharing[me] = _lock.sharing.get(me, 0) + 1
    try:
        yield
    finally:
        with _lock.changed:
            _lock.sharing[me] -= 1
            if not _lock.sharing[me]:
                del _lock.sharing[me]
                _lock.changed.notify_all()


@contextmanager
def alone(device: Device) -> Iterator[None]:
    """Uses the device while no other thread does."""
    if device.kind == "cpu":
        yield
        return
    me = threading.get_ident()
    with _lock.changed:
        mine = _lock.sharing.pop(me, 0)
        _lock.changed.notify_all()
        _lock.waiting += 1
        _lock.changed.wait_for(lambda: _lock.owner is None and not _lock.sharing)
        _lock.waiting -= 1
        _lock.owner = me
    try:
        yield
    finally:
        with _lock.changed:
            _lock.owner = None
            if mine:
                _lock.sharing[me] = mine
            _lock.changed.notify_all()
