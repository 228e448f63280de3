"""The rate of a caller, counted for all processes together."""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import time
from pathlib import Path

from hmc.serving.server.access.rates import Allowance, Filling

STATE = struct.Struct("dd")
"""What is left, and when it was: the machine's monotonic clock, which is the same in all processes."""


class SharedAllowance(Allowance):
    """An `Allowance` whose state is a file that several processes lock for a moment."""

    def __init__(self, file: Path, per_second: float, burst: int) -> None:
        """file: is made if it is missing, and then holds a full allowance."""
        super().__init__(per_second, burst, time.monotonic)
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, amount: int, *, only_look: bool = False) -> float:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            read = os.pread(self._file, STATE.size, 0)
            if len(read) == STATE.size:
                self._filling = Filling(*STATE.unpack(read))
            wait = super().take(amount, only_look=only_look)
            os.pwrite(self._file, STATE.pack(*self._filling), 0)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return wait

    def __del__(self) -> None:
        os.close(self._file)


class SharedAllowances:
    """Makes the allowances of callers, each with a file in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str, per_second: float, burst: int) -> SharedAllowance:
        """name: of the caller. Other limits are another allowance, which is full at first."""
        key = hashlib.sha256(f"{name}\0{per_second}\0{burst}".encode()).hexdigest()
        return SharedAllowance(self._folder / f"rate-{key[:32]}", per_second, burst)
