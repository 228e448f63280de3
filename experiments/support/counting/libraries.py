"""The stand-in libraries: they take the place of CUDA's, compute nothing, and count every call.

They are built outside of this repository. A folder of them holds `libcudart.so.13` and the other libraries that ONNX
Runtime's CUDA provider loads. A process finds them if `LD_LIBRARY_PATH` named the folder when it started, so whatever
is counted runs in a process of its own (`environment_with`). Memory of the device is memory of the host there.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

from experiments.support.counting.operations import Operation
from hmc.artifact.errors import DeviceUnavailableError

RUNTIME, CUDNN = "libcudart.so.13", "libcudnn.so.9"
NEEDED = (RUNTIME, CUDNN, "libcublas.so.13", "libcublasLt.so.13", "libcuda.so.1", "libcurand.so.10")
HELP = "folder of stand-ins for CUDA's libraries, which compute nothing and count every call"


def check_folder(folder: Path | None) -> Path:
    """The absolute path of a folder of stand-in libraries. Raises DeviceUnavailableError unless it is one."""
    if folder is None:
        raise DeviceUnavailableError(f"--libraries is missing: give the {HELP}. Nothing can be counted without them")
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        raise DeviceUnavailableError(f"--libraries {folder}: {', '.join(missing)} not found; give a {HELP}")
    if b"stub_record" not in (folder / RUNTIME).read_bytes():
        raise DeviceUnavailableError(f"--libraries {folder}: {RUNTIME} counts nothing; give a {HELP}")
    return folder.resolve()


def environment_with(folder: Path) -> dict[str, str]:
    """The environment of a process that is to find the stand-ins first."""
    others = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join([str(folder), *([others] if others else [])])}


class StandIn:
    """The stand-ins of this process. Memory is counted from its start, operations only between `record` calls."""

    def __init__(self) -> None:
        """Raises OSError if the process was not started with them."""
        self._runtime, self._cudnn = ctypes.CDLL(RUNTIME), ctypes.CDLL(CUDNN)
        self._runtime.stub_live.restype = self._runtime.stub_peak.restype = ctypes.c_size_t
        self._cudnn.stub_plans.restype = ctypes.c_long
        handle, name = tempfile.mkstemp(suffix=".tsv")
        os.close(handle)
        self._file = Path(name)

    @property
    def live_bytes(self) -> int:
        """Bytes of the device that are allocated now."""
        return int(self._runtime.stub_live())

    @property
    def peak_bytes(self) -> int:
        """The most bytes of the device that were ever allocated."""
        return int(self._runtime.stub_peak())

    @property
    def plans(self) -> int:
        """Plans that cuDNN has built so far."""
        return int(self._cudnn.stub_plans())

    def record(self, on: bool) -> None:
        """Begins or ends the recording of operations; what was recorded before is forgotten."""
        if on:
            self._runtime.stub_clear()
        self._runtime.stub_record(int(on))

    def take(self) -> list[Operation]:
        """The operations recorded since the last call, in their order."""
        self._runtime.stub_dump(os.fsencode(self._file))
        self._runtime.stub_clear()
        return [Operation.read(line) for line in self._file.read_text(encoding="utf-8").splitlines()]

    def close(self) -> None:
        """Ends recording."""
        self.record(False)
        self._file.unlink(missing_ok=True)
