"""Turns on devices: many threads may use them at the same time, but one that captures a CUDA graph uses them alone.

While CUDA records a graph, an allocation or a copy of any other thread makes the recording fail, on whatever device:
ONNX Runtime records in the mode cudaStreamCaptureModeGlobal, which is one for the process. So all CUDA devices share
their turns. Whatever calls CUDA does it within `shared`, and a capture within `alone`. A thread that is in `shared` may
go `alone`: it then gives up its share meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hmc.engine.runtime.device import Device


class _Turns:
    """The turns of all CUDA devices."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sharing: dict[int, int] = {}
        """Thread → how often it has entered `shared`."""
        self.waiting = 0
        """Threads that want to be alone."""
        self.owner: int | None = None
        """The thread that is alone."""


_turns = _Turns()


@contextmanager
def shared(device: Device) -> Iterator[None]:
    """Uses the device beside other threads. Waits while another thread is alone on the device, or waits to be."""
    if device.kind == "cpu":
        yield
        return
    turns = _turns
    me = threading.get_ident()
    with turns.changed:
        if me not in turns.sharing and turns.owner != me:
            turns.changed.wait_for(lambda: turns.owner is None and not turns.waiting)
        turns.sharing[me] = turns.sharing.get(me, 0) + 1
    try:
        yield
    finally:
        with turns.changed:
            turns.sharing[me] -= 1
            if not turns.sharing[me]:
                del turns.sharing[me]
                turns.changed.notify_all()


@contextmanager
def alone(device: Device) -> Iterator[None]:
    """Uses the device while no other thread does."""
    if device.kind == "cpu":
        yield
        return
    turns = _turns
    me = threading.get_ident()
    with turns.changed:
        mine = turns.sharing.pop(me, 0)
        turns.changed.notify_all()
        turns.waiting += 1
        turns.changed.wait_for(lambda: turns.owner is None and not turns.sharing)
        turns.waiting -= 1
        turns.owner = me
    try:
        yield
    finally:
        with turns.changed:
            turns.owner = None
            if mine:
                turns.sharing[me] = mine
            turns.changed.notify_all()
