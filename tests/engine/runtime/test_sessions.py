"""Sessions of a level in device form, opened by several threads while another one captures graphs."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tests.serving.fakes import GUARD_S, eventually

from hmc.engine.runtime import capture_lock
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.graphs import OpenedGraph
from hmc.engine.runtime.sessions import DeviceSessions

GPU = Device("cuda", 97)


class Graph:
    """What refers to it weakly can see when it goes."""


class NoOpener:
    """Opens nothing."""

    def __init__(self) -> None:
        self.resident: dict[str, object] = {}

    def open(self, name: str, *, spin_us: int, capture: bool = False) -> OpenedGraph:
        return OpenedGraph(Graph(), {})


@pytest.mark.parametrize("taking", ["checkout_decoder", "collector"])
def test_no_thread_waits_for_ever_when_graphs_open_beside_a_capture(taking: str) -> None:
    """A worker needs a graph within its turn on the device, a worker of another level wants the device alone, and a
    thread opens a graph aside."""
    level: Any = SimpleNamespace(name="full", files={"full/decoder_search_beam.onnx": ""})
    sessions = DeviceSessions(SimpleNamespace(), level, GPU, NoOpener())  # type: ignore[arg-type]
    inside, go_on = threading.Event(), threading.Event()
    waiting = capture_lock._lock.changed._waiters  # type: ignore[attr-defined]

    def work() -> None:
        with capture_lock.shared(GPU):
            inside.set()
            assert go_on.wait(GUARD_S)
            getattr(sessions, taking)(*(["search_beam"] if taking == "checkout_decoder" else []))

    def capture() -> None:
        with capture_lock.alone(GPU):
            pass

    threads = [threading.Thread(target=work, daemon=True)]
    threads[0].start()
    assert inside.wait(GUARD_S)
    for target in (capture, partial(sessions.decoder, "search_greedy")):
        threads.append(threading.Thread(target=target, daemon=True))
        threads[-1].start()
        eventually(lambda: len(waiting) == len(threads) - 1)
    go_on.set()
    for thread in threads:
        thread.join(GUARD_S)
    assert not any(thread.is_alive() for thread in threads)


def test_graphs_that_are_closed_go_in_a_turn_and_do_not_come_back() -> None:
    """Nor by a thread that was to replace one."""
    level: Any = SimpleNamespace(name="full", files={"full/decoder_search_beam.onnx": ""})
    opener = NoOpener()
    sessions = DeviceSessions(SimpleNamespace(), level, GPU, opener)  # type: ignore[arg-type]
    graph = weakref.ref(sessions.decoder("search_beam"))
    collector = weakref.ref(sessions.collector())
    with capture_lock.alone(GPU):
        closing = threading.Thread(target=sessions.close, daemon=True)
        closing.start()
        eventually(lambda: len(capture_lock._lock.changed._waiters) == 1)  # type: ignore[attr-defined]
        assert graph() is not None
    closing.join(GUARD_S)
    assert (graph(), collector()) == (None, None)
    sessions._prefetch("search_beam")
    assert not sessions.decoders
