"""What packed weights depend on: the processor and the ONNX Runtime."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from pathlib import Path

import onnxruntime

FORMAT = 1
"""Raise it when weights are packed or stored in another way."""
CPUINFO = Path("/proc/cpuinfo")
FIELDS = {
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features", "isa",
}  # fmt: skip
"""Lines of Linux's /proc/cpuinfo that say what a processor is; the others say how it is doing."""


def processor() -> dict[str, str]:
    """The first processor of this machine, and what it can do as far as the system tells."""
    if not CPUINFO.is_file():
        return {"machine": platform.machine(), "processor": platform.processor()}
    first = CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    lines = (line.partition(":") for line in first.splitlines())
    known = {key.strip(): value.strip() for key, _, value in lines if key.strip() in FIELDS}
    return {"machine": platform.machine(), **known}


def instructions() -> frozenset[str]:
    """What the processor can do, by Linux's names; nothing on other systems."""
    known = processor()
    return frozenset((known.get("flags") or known.get("Features") or "").split())


@cache
def machine_digest() -> str:
    """Hex sha256 that is another one where weights may have to be packed in another way."""
    runtime = [onnxruntime.__version__, onnxruntime.get_build_info()]
    said = json.dumps({"format": FORMAT, "onnxruntime": runtime, "processor": processor()}, sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()
