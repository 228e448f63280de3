"""Who sends a request. Callers of a level take turns in its queue."""

from __future__ import annotations

import math
from contextvars import ContextVar
from dataclasses import dataclass

from hmc.artifact.errors import InvalidRequestError


@dataclass(frozen=True)
class Caller:
    """A caller: all that share a name share one turn. Raises InvalidRequestError for a weight out of range."""

    name: str = ""
    weight: float = 1.0
    """Its part of a level while others wait too: a caller of weight 2 gets twice what one of weight 1 gets."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidRequestError(f"the weight {self.weight:g} of caller {self.name!r}: choose a number above 0")


ANYONE = Caller()
"""The caller of everything that names none."""

current_caller: ContextVar[Caller] = ContextVar("current_caller", default=ANYONE)
"""Set within a call of the service."""


def caller_at(peer: str) -> Caller:
    """The caller at a network address as gRPC writes it, such as `ipv4:10.0.0.7:53412`: its host, without the port."""
    return Caller(peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer)
