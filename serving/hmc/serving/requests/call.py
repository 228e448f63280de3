"""The caller of the call that runs."""

from __future__ import annotations

from contextvars import ContextVar

from hmc.engine.requests.caller import ANYONE, Caller

current_caller: ContextVar[Caller] = ContextVar("current_caller", default=ANYONE)
"""Set within a call of the service."""


charged: ContextVar[bool] = ContextVar("charged", default=False)
"""Set where a call is repeated that was counted against the rate of its caller already."""


def caller_at(peer: str) -> Caller:
    """The caller at a network address as gRPC writes it, such as `ipv4:10.0.0.7:53412`: its host, without the port."""
    return Caller(peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer)
