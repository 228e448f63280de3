"""How many threads a level computes with."""

from __future__ import annotations

import os

import psutil

from hmc.artifact.errors import InvalidRequestError

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
    """`threads`; for 0 the CPUs that this process may use (taskset, a container's cpuset), where these are fewer than
    the machine's cores, of which ONNX Runtime would have a thread each."""
    if threads or not hasattr(os, "sched_getaffinity"):
        return threads
    allowed, cores = len(os.sched_getaffinity(0)), psutil.cpu_count(logical=False) or 0
    return allowed if allowed < cores else 0
