"""Calls of CUDA's runtime library, in an order that suits streams that do not wait for each other, and captures of
other threads. The library is one that only notes its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory import cuda_calls
from hmc.engine.runtime.memory.account import DeviceMemory, LevelMemory, MemoryBudget
from hmc.engine.runtime.memory.blocks import DeviceBlock
from hmc.engine.runtime.memory.views import DeviceArray, fill

ALLOWED = {"cudaGetDevice", "cudaSetDevice", "cudaThreadExchangeStreamCaptureMode"}
"""Calls that end no capture of another thread."""


class NotedCalls:
    """Every function of the library."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cudaMemGetInfo":
                for pointer in arguments:
                    pointer._obj.value = 1 << 30
            return 0

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> NotedCalls:
    noted = NotedCalls()
    monkeypatch.setattr(cuda_calls, "_library", lambda: noted)
    return noted


@pytest.fixture
def memory(library: NotedCalls) -> LevelMemory:
    whole = DeviceMemory(Device("cuda", 1))
    whole.limit(MemoryBudget(1 << 20))
    return LevelMemory(whole, "h12")


@pytest.mark.parametrize(
    "call",
    [
        lambda: cuda_calls.allocate(1, 8),
        lambda: cuda_calls.free(1, 8),
        lambda: cuda_calls.allocate_pinned(1, 8),
        lambda: cuda_calls.free_pinned(1, 8),
        lambda: cuda_calls.free_and_total(1),
        lambda: cuda_calls.copy(1, 8, 8, 8, cuda_calls.TO_DEVICE),
        lambda: cuda_calls.copy_lines(1, 8, 8, (8, 8), 1, 8),
        lambda: cuda_calls.wait(1),
    ],
)
def test_no_call_ends_the_capture_of_another_thread(call: Callable[[], object], library: NotedCalls) -> None:
    call()
    at = [n for n, name in enumerate(library.calls) if name not in ALLOWED]
    exchanges = [n for n, name in enumerate(library.calls) if name == "cudaThreadExchangeStreamCaptureMode"]
    assert at
    assert exchanges[0] < at[0]
    assert at[-1] < exchanges[-1]


def test_new_memory_is_empty_before_any_stream_uses_it(library: NotedCalls) -> None:
    cuda_calls.allocate(1, 8)
    assert library.calls.index("cudaStreamSynchronize") > library.calls.index("cudaMemset")


def test_content_is_there_before_any_stream_reads_it(library: NotedCalls, memory: LevelMemory) -> None:
    """A copy from memory that is not pinned may end after the call."""
    block = DeviceBlock(memory, 64, "caches")
    for write in (
        lambda: block.write(np.zeros(8, np.uint8)),
        lambda: fill(DeviceArray(memory.device, "tensor(float)", (4,), block.address), 1.0),
    ):
        library.calls.clear()
        write()
        assert library.calls.index("cudaStreamSynchronize") > library.calls.index("cudaMemcpy")
