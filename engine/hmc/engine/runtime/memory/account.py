"""What this process holds of a device's memory, and the most that it may hold: one account for each device.

Users write a budget as an amount (`8GiB`, `500MB`, a number of bytes) or as a share such as `80%`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from hmc.artifact.errors import FailedPreconditionError, InvalidRequestError
from hmc.engine.requests.results import DeviceUse
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory import cuda_calls

UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
"""Unit in lower case → its bytes."""


@dataclass(frozen=True)
class MemoryBudget:
    """A number of bytes, or a share of a device's free memory."""

    size: int | None = None
    """Bytes; None: `share` counts."""
    share: float = 1.0
    """Share of the memory that was free when this process began to use the device, above 0 and at most 1."""

    def bytes_of(self, free: int | None) -> int | None:
        """The bytes of this budget. free: free bytes of the device. None: unknown, and so is a share of it."""
        if self.size is not None:
            return self.size
        return None if free is None else int(free * self.share)


DEFAULT_BUDGET = MemoryBudget(share=0.8)
"""The rest is for what ONNX Runtime and CUDA's libraries allocate: results between operators, captured graphs,
workspaces, and the code of kernels."""


def parse_budget(text: str, name: str = "gpu_memory") -> MemoryBudget:
    """Reads a budget. name: of the setting, for errors. Raises InvalidRequestError that lists the forms."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[a-zA-Z]*)\s*", text)
    if match is not None:
        number = float(match[1])
        unit = match[2].lower()
        if unit == "%" and 0 < number <= 100:
            return MemoryBudget(share=number / 100)
        if unit in UNITS and number * UNITS[unit] >= 1:
            return MemoryBudget(int(number * UNITS[unit]))
    raise InvalidRequestError(
        f"{name} {text!r}: write bytes such as 8GiB, 500MB or 1000000000, or a share of the free memory such as 80%"
    )


def mebibytes(size: int) -> str:
    """`1234.5 MiB`."""
    return f"{size / 2**20:.1f} MiB"


@dataclass(eq=False)
class Reservation:
    """Bytes that are set aside for one purpose until `release`."""

    size: int
    _give_back: Callable[[], None]
    _released: bool = False

    def release(self) -> None:
        """Gives the bytes back to the account. Calling it again does nothing."""
        if not self._released:
            self._released = True
            self._give_back()


class Account(Protocol):
    """Where bytes of a device are reserved."""

    @property
    def device(self) -> Device: ...

    def reserve(self, size: int, what: str) -> Reservation: ...

    def refusal(self, size: int, what: str) -> FailedPreconditionError: ...


class DeviceMemory:
    """The account of one device. Thread-safe.

    It counts what HMC reserves: weights and pools of caches. What ONNX Runtime and CUDA's libraries allocate for
    themselves comes out of the part of the device that the budget leaves over.
    """

    def __init__(self, device: Device, free_at_start: int | None = None) -> None:
        """free_at_start: bytes of the device that nobody used when this process began to use it; None: unknown, and
        then only a budget in bytes can limit it."""
        self._device = device
        self.free_at_start = free_at_start
        self.budget: int | None = None
        """The most bytes that may be reserved at one time. None: no limit is known."""
        self._lock = threading.RLock()  # a reservation may be released by the garbage collector, within `reserve`
        self._reserved = 0
        self.limit(DEFAULT_BUDGET)

    @property
    def device(self) -> Device:
        """The device of this account."""
        return self._device

    def limit(self, budget: MemoryBudget) -> None:
        """Sets the budget for later reservations. What is held already stays."""
        self.budget = budget.bytes_of(self.free_at_start)

    @property
    def reserved(self) -> int:
        """Bytes that are reserved now."""
        return self._reserved

    def reserve(self, size: int, what: str) -> Reservation:
        """Sets bytes aside. what: their purpose, in words for error messages, such as `caches of level h36`.

        Raises FailedPreconditionError if they exceed the budget, or the free memory of the device.
        """
        with self._lock:
            reserved = self._reserved
            free = self.free_now()
            if (self.budget is not None and reserved + size > self.budget) or (free is not None and size > free):
                raise self._refusal(size, what, reserved, free)
            self._reserved += size
        return Reservation(size, lambda: self._release(size))

    def check(self, size: int, what: str) -> None:
        """Raises as `reserve` does, and reserves nothing."""
        self.reserve(size, what).release()

    def free_now(self) -> int | None:
        """Bytes of the device that no process uses now; None: unknown (it is the host's memory)."""
        return None if self.device.kind == "cpu" else cuda_calls.free_and_total(self.device.index)[0]

    def use(self) -> DeviceUse:
        """The account as callers of the service see it."""
        return DeviceUse(str(self.device), self.reserved, self.budget or 0, self.free_now() or 0)

    def refusal(self, size: int, what: str) -> FailedPreconditionError:
        """The error for bytes that this device does not have."""
        return self._refusal(size, what, self.reserved, self.free_now())

    def _refusal(self, size: int, what: str, reserved: int, free: int | None) -> FailedPreconditionError:
        budget = "unknown" if self.budget is None else mebibytes(self.budget)
        unused = "unknown" if free is None else mebibytes(free)
        return FailedPreconditionError(
            f"{self.device} has too little memory for {what}: needed {mebibytes(size)}, free on the device "
            f"{unused}, budget {budget}, of which {mebibytes(reserved)} are in use. "
            "Load fewer levels, lower max_tokens or max_rows, raise gpu_memory, or end other "
            "processes that use this device"
        )

    def _release(self, size: int) -> None:
        with self._lock:
            self._reserved -= size


class LevelMemory:
    """The part of a device's account that one level alone uses: its caches. Thread-safe."""

    def __init__(self, whole: DeviceMemory, level: str) -> None:
        self._whole = whole
        self._level = level
        self.relief: Callable[[], bool] = lambda: False
        """Gives some of the level's memory back that is not in use, and returns whether there was any."""
        self._lock = threading.RLock()
        self._reserved_bytes = 0

    @property
    def device(self) -> Device:
        """The device of the account."""
        return self._whole.device

    @property
    def reserved(self) -> int:
        """Bytes that are reserved for this level now."""
        return self._reserved_bytes

    def reserve(self, size: int, what: str) -> Reservation:
        """As `DeviceMemory.reserve`, but before it raises, the level gives back memory that it does not use (`relief`).
        what: such as `caches`; errors add the level's name."""
        reserved = self._reserved(size, what)
        self._add(size)

        def give_back() -> None:
            reserved.release()
            self._add(-size)

        return Reservation(size, give_back)

    def _reserved(self, size: int, what: str) -> Reservation:
        while True:
            try:
                return self._whole.reserve(size, self._named(what))
            except FailedPreconditionError:
                if not self.relief():
                    raise

    def refusal(self, size: int, what: str) -> FailedPreconditionError:
        """The error for bytes that the device does not have."""
        return self._whole.refusal(size, self._named(what))

    def _named(self, what: str) -> str:
        return f"{what} of level {self._level}"

    def _add(self, size: int) -> None:
        with self._lock:
            self._reserved_bytes += size


@cache
def _memory_of(kind: str, index: int) -> DeviceMemory:
    device = Device(kind, index)
    return DeviceMemory(device, None if kind == "cpu" else cuda_calls.free_and_total(index)[0])


_making = threading.Lock()


def memory_of(device: Device) -> DeviceMemory:
    """The account of a device in this process; the same object each time. The first call measures its free memory."""
    with _making:
        return _memory_of(device.kind, device.index)
