"""A DNS server on this machine, for one name whose addresses change: what a headless Service is to a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnslib import QTYPE, RR, A
from dnslib.server import BaseResolver, DNSLogger, DNSServer

HOST = "127.0.0.1"


class Names(BaseResolver):  # type: ignore[misc]  # dnslib has no types
    """Answers every name with the present `hosts`. Use it in a `with` block."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """hosts: IPv4 addresses."""
        self.hosts = tuple(hosts)
        self.asked = 0
        """Look-ups of IPv4 addresses so far."""
        self._server = DNSServer(self, address=HOST, port=0, logger=DNSLogger(logf=lambda _: None))

    def resolve(self, request: Any, handler: Any) -> Any:  # noqa: ARG002 - the interface of dnslib
        """Called by dnslib for each question."""
        reply = request.reply()
        if request.q.qtype == QTYPE.A:
            self.asked += 1
            for host in self.hosts:
                reply.add_answer(RR(request.q.qname, QTYPE.A, rdata=A(host), ttl=1))
        return reply

    def target(self, port: int) -> str:
        """The address for gRPC clients: servers at `port` of all hosts."""
        return f"dns://{HOST}:{self._server.server.server_address[1]}/hmc.test:{port}"

    def __enter__(self) -> Names:
        self._server.start_thread()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._server.server.server_close()
