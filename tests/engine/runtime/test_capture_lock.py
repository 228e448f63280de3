"""Turns on a device: threads share it, but one that captures a graph has it alone."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from tests.serving.fakes import GUARD_S, eventually

from hmc.engine.runtime import capture_lock
from hmc.engine.runtime.device import Device

GPU = Device("cuda", 99)


def test_threads_share_a_device() -> None:
    both = threading.Barrier(2, timeout=GUARD_S)

    def use() -> None:
        with capture_lock.shared(GPU), capture_lock.shared(GPU):
            both.wait()  # passes only while the other thread is in here too

    with ThreadPoolExecutor(2) as pool:
        assert [each.result(GUARD_S) for each in [pool.submit(use), pool.submit(use)]] == [None, None]


def test_one_that_is_alone_waits_for_others_and_keeps_others_out() -> None:
    events: list[str] = []
    inside, leave, asked = threading.Event(), threading.Event(), threading.Event()

    def step() -> None:
        with capture_lock.shared(GPU):
            inside.set()
            assert leave.wait(GUARD_S)
            events.append("step ends")

    def waiting(count: int) -> None:
        eventually(lambda: len(capture_lock._lock.changed._waiters) == count)  # type: ignore[attr-defined]

    def capture() -> None:
        with capture_lock.shared(GPU):  # a worker captures within its step
            asked.set()
            with capture_lock.alone(GPU):
                assert events == ["step ends"]
                late.append(pool.submit(other, "other"))
                waiting(2)
                events.append("captured")

    def other(name: str) -> None:
        with capture_lock.shared(GPU):
            events.append(name)

    late: list[Future[None]] = []
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(step)
        assert inside.wait(GUARD_S)
        second = pool.submit(capture)
        assert asked.wait(GUARD_S)
        waiting(1)
        late.append(pool.submit(other, "one that comes while another wants to be alone"))
        waiting(2)
        leave.set()
        for each in (first, second, *late):
            each.result(GUARD_S)
    assert events[:2] == ["step ends", "captured"]
    assert len(events) == 4


def test_a_capture_keeps_threads_off_every_cuda_device() -> None:
    """CUDA allows no thread of the process an allocation while ONNX Runtime captures. A CPU has no turns."""
    events: list[str] = []

    def use(device: Device) -> None:
        with capture_lock.shared(device):
            events.append(str(device))

    with ThreadPoolExecutor(2) as pool:
        with capture_lock.alone(GPU):
            pool.submit(use, Device("cpu")).result(GUARD_S)
            other = pool.submit(use, Device("cuda", 98))
            eventually(lambda: len(capture_lock._lock.changed._waiters) == 1)  # type: ignore[attr-defined]
            events.append("captured")
        other.result(GUARD_S)
    assert events == ["cpu", "captured", "cuda:98"]
