"""What is asked for each call, over gRPC or another door: who calls, and whether the call and its texts may pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import grpc.aio

from hmc.engine.requests.caller import Caller
from hmc.serving.http.call import PlainCall
from hmc.serving.requests.call import PresentCall, Scope, caller_at, present_call
from hmc.serving.server.access.gate import AccessGate, Credentials, units
from hmc.serving.server.observing.calls import CallLog
from hmc.v1 import translation_pb2 as pb

CallInfo = grpc.aio.ServicerContext[Any, Any] | PlainCall
"""What the server reads of a call, and how it ends one: gRPC's context of a call, or that of another door."""
SCOPES_OF: Mapping[str, Scope] = {
    "hmc.v1.TranslationService": "translate",
    "hmc.v1.AdminService": "admin",
    "hmc.http.Metrics": "metrics",
}
"""Service → the scope that its calls need. Other services, such as reflection, need a caller who is known."""
TEXTS = ("texts", "text")
ADDED = ("references", "target_prefixes", "target_prefix")
"""Fields of requests: texts to be translated or scored, which count against rates; and what counts in sizes only."""
CHARGED = frozenset(
    f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming and any(name in method.input_type.fields_by_name for name in TEXTS)
)
"""Methods that are refused before their request is read if the rate of their caller is used up."""


class Entry:
    """Lets calls in. Every method runs inside the call that it is about."""

    def __init__(
        self, gate: AccessGate, check_running: Callable[[], None], calls: CallLog, *, certificates: bool = False
    ) -> None:
        """check_running: raises UnavailableError if the server takes no new calls. calls: where they are logged.
        certificates: whether callers show certificates."""
        self._gate = gate
        self._check_running = check_running
        self._calls = calls
        self._certificates = certificates

    def admit(self, call: PresentCall, metadata: Mapping[str, Any], context: CallInfo) -> Callable[[], None]:
        """Finds out who makes a call, or raises. metadata: of the call.

        Returns a function that admits a call once more which goes on for long: it raises if the caller's token has been
        taken out of the tokens file meanwhile.
        """
        gate = self._gate
        scope = scope_of(call.method)
        self._calls.begin(call, metadata)
        shown = credentials_of(metadata, context.auth_context() if self._certificates else {})
        version = gate.version  # before the tokens are looked at, which another thread may replace meanwhile
        call.principal = principal = gate.admit(shown, scope)
        call.caller = Caller(principal.name, principal.weight) if principal.name else caller_at(context.peer())
        self._check_running()
        call.charged = isinstance(context, PlainCall) and context.charged
        if call.method in CHARGED and not call.charged:
            gate.charge(principal, 1, only_look=True)

        def again() -> None:
            nonlocal version
            if gate.version != version:
                version = gate.version
                call.principal = gate.admit(shown, scope)

        return again

    def charge(self, call: PresentCall, request: Any) -> None:
        """Counts a call against the limits of its caller. Raises InvalidRequestError and RateLimitedError."""
        texts = _strings(request, TEXTS)
        if texts:
            self._calls.texts(texts)
            _check_size(call, request)
            if self._gate.has_rates and not call.charged:
                self._gate.charge(call.principal, units(list(map(len, texts))))

    async def pace(self, call: PresentCall, request: Any) -> None:
        """Waits until the rate of the caller permits one more text of a stream."""
        if texts := _strings(request, TEXTS):
            self._calls.texts(texts)
            await self._gate.pace(call.principal, units(list(map(len, texts))))


def check_stream_text(request: Any) -> None:
    """Raises InvalidRequestError if a text of a stream is too large for its caller."""
    _check_size(present_call(), request)


def _check_size(call: PresentCall, request: Any) -> None:
    if call.principal.max_characters is not None:
        call.principal.check_size(sum(map(len, _strings(request, (*TEXTS, *ADDED)))))


@cache
def scope_of(method: str) -> Scope | None:
    """The scope that a method needs; None: any caller who is known. method: `/SERVICE/METHOD`."""
    return SCOPES_OF.get(method.rpartition("/")[0].removeprefix("/"))


def credentials_of(metadata: Mapping[str, Any], verified: Mapping[str, Any] | None) -> Credentials:
    """What the caller of a call shows. verified: gRPC's `auth_context`, which has the names of client certificates."""
    sent = metadata.get("authorization")
    names = [name for key in ("peer_spiffe_id", "x509_common_name") for name in (verified or {}).get(key, ())]
    return Credentials(None if sent is None else str(sent), tuple(n.decode(errors="replace") for n in names))


def _strings(request: Any, names: tuple[str, ...]) -> Sequence[str]:
    """The strings in the fields of these names. A request may have none of the fields."""
    strings: list[str] = []
    for name in names:
        value = getattr(request, name, None)
        if value is not None:
            strings.extend([value] if isinstance(value, str) else value)
    return strings
