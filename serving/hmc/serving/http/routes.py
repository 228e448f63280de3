"""Which path is the twin of which RPC."""

from __future__ import annotations

import re
from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from hmc.serving.http.methods import Methods
from hmc.v1 import translation_pb2 as pb

ADMIN = "AdminService"
PATHS = {
    "Translate": "translate",
    "TranslateStream": "stream",
    "TranslateTokens": "tokens",
    "TranslateDocument": "document",
    "Score": "score",
    "ListLevels": "levels",
    "ListModels": "models",
}
"""RPC → the last part of its path; other RPCs have their name with hyphens."""


@dataclass(frozen=True)
class Twin:
    """One RPC over HTTP."""

    method: MethodDescriptor
    verb: str
    """GET for lists, POST for everything else."""
    path: str

    @property
    def streams_answers(self) -> bool:
        """Whether the RPC gives several answers."""
        return bool(self.method.server_streaming)

    @property
    def streams_requests(self) -> bool:
        """Whether the RPC takes several requests."""
        return bool(self.method.client_streaming)


def twins(methods: Methods) -> list[Twin]:
    """The twins of all RPCs of the services that the server has."""
    services: list[ServiceDescriptor] = list(pb.DESCRIPTOR.services_by_name.values())
    return [_twin(service, method) for service in services if methods.has(service) for method in service.methods]


def _twin(service: ServiceDescriptor, method: MethodDescriptor) -> Twin:
    hyphened = re.sub(r"(?<!^)(?=[A-Z])", "-", method.name).lower()
    if service.name == ADMIN:
        return Twin(method, "POST", f"/v1/admin/{hyphened}")
    verb = "GET" if method.name.startswith("List") else "POST"
    return Twin(method, verb, f"/v1/{PATHS.get(method.name, hyphened)}")
