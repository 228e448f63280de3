"""The number of threads that a level computes with: by the processor's cores, and by what this process may use of them.

Containers limit CPU time on Linux by the quota of a control group (cgroup). A quota of 2 gives the process the time of
two CPUs in each period, on any CPUs of the machine. With one thread for each CPU of the machine, the quota is used up
early in the period, and all threads then stop until the next one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from hmc.artifact.errors import InvalidRequestError

CPUS = Path("/sys/devices/system/cpu")
MAX_THREADS = 1024
MAX_WORKERS = 256
"""Larger numbers are taken for a mistake: no machine has so many cores for one level."""
SWITCH_S = 0.001
"""Seconds after which a thread hands over Python's lock to one that waits; by default 0.005. A call takes the lock some
ten times, each time after what other threads compute."""
MEMBERSHIP = Path("/proc/self/cgroup")
"""Lists the groups of this process, a line each: `ID:CONTROLLERS:PATH`. Version 2 has ID 0 and no controllers."""
MOUNT = Path("/sys/fs/cgroup")
"""Where control groups are mounted: version 2 here or in `unified`, version 1 in a folder for each controller."""


def check_threads(threads: int, workers: int) -> None:
    """Raises InvalidRequestError unless both numbers are in their ranges."""
    if not 0 <= threads <= MAX_THREADS:
        raise InvalidRequestError(
            f"threads {threads}: choose 0 (one per physical core) or more, and at most {MAX_THREADS}"
        )
    if not 0 <= workers <= MAX_WORKERS:
        raise InvalidRequestError(f"workers {workers}: choose 0 (as measured) or more, and at most {MAX_WORKERS}")


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


def cpu_quota(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> float | None:
    """The CPU quota of this process by its control groups, in CPUs. None if it is not limited, or if the system has no
    control groups.

    A group is limited by its parents too, so the smallest quota on the way to the root counts. membership, mount: see
    the constants.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for root in (mount, mount / "unified"):
                quotas += [quota for folder in _to_root(root, path) if (quota := _version_2(folder)) is not None]
        elif "cpu" in controllers.split(","):
            for root in (mount / "cpu", mount / controllers):
                quotas += [quota for folder in _to_root(root, path) if (quota := _version_1(folder)) is not None]
    return min(quotas, default=None)


def _to_root(root: Path, path: str) -> Iterator[Path]:
    """The folder of a group and those of its parents. In a container the path may be the one outside of it, which does
    not exist inside; the root is then the container's own group."""
    folder = root / path.lstrip("/")
    while folder != root:
        yield folder
        folder = folder.parent
    yield root


def _version_2(folder: Path) -> float | None:
    """`cpu.max` holds `QUOTA PERIOD` in microseconds, and `max` as the quota of a group without limit."""
    match _words(folder / "cpu.max"):
        case [quota, period] if quota != "max":
            return int(quota) / int(period)
    return None


def _version_1(folder: Path) -> float | None:
    """Quota and period are files of their own, in microseconds. A quota of -1 is no limit."""
    match _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us"):
        case [quota], [period] if int(quota) > 0:
            return int(quota) / int(period)
    return None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split()
    except OSError:
        return []
