"""Where a benchmark ran: without it numbers cannot be compared."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hmc.artifact.distribution import versions_of
from hmc.engine.runtime.processor import instructions, processor

PACKAGES = (
    "onnxruntime", "onnxruntime-gpu", "numpy", "sentencepiece", "sacrebleu", "ctranslate2", "transformers", "optimum",
    "torch",
)  # fmt: skip
INSTRUCTIONS = {
    "amx_int8": "AMX", "avx512_vnni": "AVX512-VNNI", "avx_vnni": "AVX-VNNI", "avx512f": "AVX-512 without VNNI",
    "avx2": "AVX2 without VNNI", "i8mm": "I8MM", "asimddp": "DotProd",
}  # fmt: skip
"""Flag in Linux's /proc/cpuinfo → name of the instruction set, fastest first."""


@dataclass(frozen=True)
class Machine:
    """The machine and the software on it."""

    cpu: str
    physical_cores: int
    logical_cores: int
    """Cores that this process may use."""
    memory_bytes: int
    os: str
    python: str
    versions: dict[str, str]
    devices: dict[str, str]
    """Device that levels ran on → name of its hardware."""
    load_average: float
    """Mean number of runnable processes in the minute before the start. Well above 0: the machine was also busy with
    something else."""

    @property
    def is_busy(self) -> bool:
        """Whether the machine did much else."""
        return self.load_average > self.logical_cores / 4

    def __str__(self) -> str:
        cuda = [name for device, name in self.devices.items() if device != "cpu"]
        return ", ".join([f"{self.cpu} ({self.logical_cores} cores)", *cuda])


def this_machine(devices: Sequence[str]) -> Machine:
    """Describes the machine as it is now. devices: names as in `Translator.device`."""
    return Machine(
        cpu=cpu_name(),
        physical_cores=psutil.cpu_count(logical=False) or 1,
        logical_cores=_usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        os=platform.platform(),
        python=platform.python_version(),
        versions=versions_of(*PACKAGES),
        devices={device: _device_name(device) for device in dict.fromkeys(devices)},
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    )


def this_commit() -> str | None:
    """Commit of the checkout that this code lies in, with `+` if files differ from it. None: it is no checkout."""
    here = Path(__file__).parent
    try:
        ran = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"],
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
        tracked = ["git", "-C", str(here), "ls-files", "--error-unmatch", Path(__file__).name]
        subprocess.run(tracked, capture_output=True, check=True, timeout=20)  # not of a project that only installed HMC
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip() or None


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name and its fastest instructions for 8-bit products. Virtual machines often hide the name."""
    known = processor()
    name = known.get("model name") or known.get("processor") or known["machine"]
    can = instructions()
    best = next((word for flag, word in INSTRUCTIONS.items() if flag in can), None)
    return f"{name} with {best}" if best else name


def _device_name(device: str) -> str:
    if device == "cpu":
        return cpu_name()
    index = device.partition(":")[2] or "0"
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", index]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return device
    return asked.stdout.strip() or device
