"""The number of threads that a level computes with."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.runtime.cpu_quota import cpu_quota

CPUS = Path("/sys/devices/system/cpu")
MAX_THREADS, MAX_WORKERS = 1024, 256
"""Larger numbers are taken for a mistake: no machine has so many cores for one level."""


def check_threads(threads: int, workers: int) -> None:
    """Raises InvalidRequestError unless both numbers are in their ranges."""
    if not 0 <= threads <= MAX_THREADS:
        raise InvalidRequestError(
            f"threads {threads}: choose 0 (one per physical core) or more, and at most {MAX_THREADS}"
        )
    if not 1 <= workers <= MAX_WORKERS:
        raise InvalidRequestError(f"workers {workers}: choose 1 or more, and at most {MAX_WORKERS}")


def threads_here(threads: int) -> int:
    """The number of threads for ONNX Runtime: `threads`, unless that is 0.

    For 0, ONNX Runtime takes one for each physical core of the machine. If this process may use less than the machine,
    this returns the smallest of: the physical cores on which it may run (taskset, a container's cpuset), the CPU quota
    of its control groups, rounded up, and the CPUs that Python reports (`-X cpu_count`). Otherwise it returns 0.
    """
    if threads:
        return threads
    machine = set(range(os.cpu_count() or 1))
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else machine
    cores = len({_core(cpu) for cpu in allowed})
    limits = [cores]
    if (quota := cpu_quota()) is not None:
        limits.append(max(1, math.ceil(quota)))
    if hasattr(os, "process_cpu_count") and (reported := os.process_cpu_count()):
        limits.append(reported)
    return 0 if min(limits) == cores and len(allowed) == len(machine) else min(limits)


def cores() -> int:
    """Physical cores that this process may use."""
    return threads_here(0) or psutil.cpu_count(logical=False) or 1


def described(threads: int) -> str:
    """The threads of a level in words. threads: see `threads_here`."""
    if not (number := threads_here(threads)):
        return "one thread per physical core"
    reason = "" if threads else ", as this process may use no more cores"
    return f"{number} thread{'s' if number > 1 else ''}{reason}"


def _core(cpu: int) -> str:
    """Identifies the physical core of a logical CPU."""
    try:
        return (CPUS / f"cpu{cpu}" / "topology" / "core_cpus_list").read_text(encoding="ascii")
    except OSError:
        return str(cpu)
