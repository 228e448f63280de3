"""How many threads a level computes with."""

from __future__ import annotations

import os
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError

CPUS = Path("/sys/devices/system/cpu")
MOST_THREADS, MOST_WORKERS = 1024, 256
"""More is a slip of the pen: no machine has so many cores for one level."""


def check_threads(threads: int, workers: int) -> None:
    """Raises InvalidRequestError for numbers that no machine can want."""
    if not 0 <= threads <= MOST_THREADS:
        raise InvalidRequestError(
            f"threads {threads}: choose 0 (one per physical core) or more, and at most {MOST_THREADS}"
        )
    if not 1 <= workers <= MOST_WORKERS:
        raise InvalidRequestError(f"workers {workers}: choose 1 or more, and at most {MOST_WORKERS}")


def threads_here(threads: int) -> int:
    """`threads`; for 0, where this process may not use every CPU (taskset, a container's cpuset), the cores of those
    that it may: ONNX Runtime would have a thread for each core of the machine."""
    if threads or not hasattr(os, "sched_getaffinity"):
        return threads
    allowed = os.sched_getaffinity(0)
    return 0 if len(allowed) == os.cpu_count() else len({_core(cpu) for cpu in allowed})


def described(threads: int) -> str:
    """The threads of a level in words."""
    if not (number := threads_here(threads)):
        return "one thread per physical core"
    why = "" if threads else ", as this process may use no more cores"
    return f"{number} thread{'s' if number > 1 else ''}{why}"


def _core(cpu: int) -> str:
    """What all logical CPUs of a core have in common."""
    try:
        return (CPUS / f"cpu{cpu}" / "topology" / "core_cpus_list").read_text(encoding="ascii")
    except OSError:
        return str(cpu)
