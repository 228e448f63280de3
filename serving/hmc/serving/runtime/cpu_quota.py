"""The CPU quota of this process's control groups (cgroups), by which containers limit CPU time on Linux.

A quota of 2 gives the process the time of two CPUs in each period, on any CPUs of the machine. With one thread for each
CPU of the machine, the quota is used up early in the period, and all threads then stop until the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
"""Lists the groups of this process, a line each: `ID:CONTROLLERS:PATH`. Version 2 has ID 0 and no controllers."""
MOUNT = Path("/sys/fs/cgroup")
"""Where control groups are mounted: version 2 here or in `unified`, version 1 in a folder for each controller."""


def cpu_quota(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> float | None:
    """CPUs whose time this process may use, or None if it is not limited or the system has no control groups.

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
