"""The processor of this machine, and a digest of everything on which packed weights depend."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from pathlib import Path

import onnxruntime

FORMAT = 1
"""Version of the way in which weights are packed and stored. Raise it when that changes."""
CPUINFO = Path("/proc/cpuinfo")
FIELDS = {
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features", "isa",
}  # fmt: skip
"""Lines of Linux's /proc/cpuinfo that identify a processor. The other lines are measurements, such as its clock."""


def processor() -> dict[str, str]:
    """Describes the first processor of this machine: names and values as the system reports them."""
    if not CPUINFO.is_file():
        return {"machine": platform.machine(), "processor": platform.processor()}
    first = CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    lines = (line.partition(":") for line in first.splitlines())
    known = {key.strip(): value.strip() for key, _, value in lines if key.strip() in FIELDS}
    return {"machine": platform.machine(), **known}


def instructions() -> frozenset[str]:
    """The instruction sets of the processor, by Linux's names; empty on other systems."""
    known = processor()
    return frozenset((known.get("flags") or known.get("Features") or "").split())


@cache
def machine_digest() -> str:
    """Hexadecimal sha256 of the processor and ONNX Runtime. Machines with the same digest can share packed weights."""
    runtime = [onnxruntime.__version__, onnxruntime.get_build_info()]
    described = json.dumps({"format": FORMAT, "onnxruntime": runtime, "processor": processor()}, sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()
