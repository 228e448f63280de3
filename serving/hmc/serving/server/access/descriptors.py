"""How many connections the operating system lets this process hold: each takes a descriptor, as open files do."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from pathlib import Path

from hmc.artifact.errors import FailedPreconditionError
from hmc.serving.server.observing.metrics_port import METRICS_CONNECTIONS
from hmc.serving.server.settings import ServerSettings

log = logging.getLogger(__name__)

RESERVE = 128
"""Descriptors that are kept for other things: files of bundles that are loaded, event loops, clients of other
processes."""


def connections_of(settings: ServerSettings) -> int:
    """Connections that each gRPC and HTTP listener may hold at a time: those of the settings, or fewer, with a warning
    in the log, where the process may not open so many files.

    The soft limit on open files is raised as far as they need. Raises FailedPreconditionError where the limit leaves no
    room for any.
    """
    listeners = 1 + (settings.http_port is not None) + (settings.admin_address is not None)
    kept = _open_now() + RESERVE + (METRICS_CONNECTIONS if settings.metrics_port is not None else 0)
    limit = _raised(kept + listeners * settings.max_connections)
    room = (limit - kept) // listeners
    advice = "raise it (`ulimit -n`; LimitNOFILE= of systemd; --ulimit nofile= of Docker)"
    if room < 1:
        raise FailedPreconditionError(
            f"this process may open {limit} files, and needs {kept + listeners} to serve: {advice}"
        )
    if room < settings.max_connections:
        log.warning(
            "each port takes at most %d connections at a time, not %d: this process may open %d files; %s",
            room, settings.max_connections, limit, advice,
        )  # fmt: skip
    return min(room, settings.max_connections)


def _open_now() -> int:
    """Descriptors in use; a guess where the system does not tell."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return sum(1 for _ in Path(folder).iterdir())
    return RESERVE


def _raised(needed: int) -> int:
    """Raises the soft limit on descriptors to `needed`, or as far as it may be raised, and returns what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    with suppress(OSError, ValueError):  # macOS has limits beyond the hard one
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
