"""Requests that nobody would send in good faith, made from the descriptors of the protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from tests.pages import STATUSES_OF_TEXTS

from hmc.serving.wire.messages import CODE_OF_NUMBER
from hmc.serving.wire.status import STATUSES_OF_CALLS
from hmc.v1 import translation_pb2 as pb

FILE: Any = pb.DESCRIPTOR
METHODS: dict[str, Any] = {m.name: m for service in FILE.services_by_name.values() for m in service.methods}
SLOW = ("Reload", "LoadLevel", "UnloadLevel", "SetDefaultLevel")
"""Calls that change what is loaded: drawn less often, and only with names of no level and paths of no bundle, so that
other requests still find their levels."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TEXTS = (
    "", " ", "full", "h12", "h12-int8", "nope", "A man rides a bicycle.", "\x00", "\n\n", "a\u202eb", "e\u0301" * 9,
    "\U0001f469\u200d\U0001f680", ">>deu<< a", "%s%n", "../../etc/passwd", "-1", "nan", "\ufffe", "漢字" * 20,
    "é" * 40_000, "x" * 1001,
    "x" * 70_000, "word " * 300, "cross.0.0", "cross.99.99", "en", "pt-BR", "▁", "</s>",
)  # fmt: skip
INTEGERS = (0, 1, -1, 2, 3, 4, 16, 17, 100, 101, 256, 257, 511, 2**31 - 1, -(2**31))
FLOATS = (0.0, -0.0, 1.0, 0.01, 0.1, 0.5, 10.0, 10.1, 1e-320, 1e308, float("nan"), float("inf"), float("-inf"))


def values(described: Any, depth: int) -> st.SearchStrategy[Any]:
    """Values of one field, good and bad."""
    match described.cpp_type:
        case described.CPPTYPE_MESSAGE:
            return messages(described.message_type, depth + 1)
        case described.CPPTYPE_STRING:
            return st.sampled_from(TEXTS) | st.text(max_size=20)
        case described.CPPTYPE_BOOL:
            return st.booleans()
        case described.CPPTYPE_INT32:
            return st.sampled_from(INTEGERS) | st.integers(-(2**31), 2**31 - 1)
        case described.CPPTYPE_INT64:
            return st.sampled_from(INTEGERS) | st.integers(-(2**63), 2**63 - 1)
        case described.CPPTYPE_ENUM:
            return st.sampled_from([0, 1, 2, 3, 4, -1, 2**31 - 1])
        case _:
            return st.sampled_from(FLOATS) | st.floats()


@st.composite
def messages(draw: st.DrawFn, described: Any, depth: int = 0) -> Any:
    """Messages of one type. About half of them set few fields, so that some requests are good ones."""
    chance = draw(st.sampled_from([0, 0, 1, 3, 9])) if depth < 4 else 0
    made = GetMessageClass(described)()
    for one in described.fields:
        if draw(st.integers(0, 9)) >= chance and not (depth == 0 and one.name in ("texts", "text")):
            continue
        if one.is_repeated:
            items = draw(st.lists(values(one, depth), max_size=3))
            getattr(made, one.name).extend(items)
        elif one.message_type is not None:
            getattr(made, one.name).CopyFrom(draw(values(one, depth)))
        else:
            setattr(made, one.name, draw(values(one, depth)))
    return made


@dataclass
class Attack:
    """One call: the method, the metadata, and the bytes of each request."""

    method: str
    metadata: tuple[tuple[str, str], ...]
    requests: list[bytes]


@st.composite
def attacks(draw: st.DrawFn) -> Attack:
    """Calls of every method, with requests made from the descriptors; some of them are cut, or any bytes at all."""
    often = [name for name in METHODS if name not in SLOW]
    name = draw(st.sampled_from([*often, *often, *often, *SLOW]))
    metadata = draw(st.sampled_from([(), (("x-request-id", "a.1"),), (("x-request-id", "a b"),)]))
    count = draw(st.integers(0, 3)) if METHODS[name].client_streaming else 1
    sent = []
    for _ in range(count):
        message = draw(messages(METHODS[name].input_type))
        if name in SLOW:
            message = GetMessageClass(METHODS[name].input_type).FromString(message.SerializeToString())
            changed = "bundle_path" if name == "Reload" else "name"
            setattr(message, changed, "nope " + getattr(message, changed)[:50_000])
        data = message.SerializeToString()
        kind = draw(st.integers(0, 9))
        if kind == 0:
            data = draw(st.binary(max_size=200))
        elif kind == 1 and data:
            data = data[: draw(st.integers(0, len(data)))]
        if name not in SLOW or kind > 1:
            sent.append(data)
    return Attack(name, metadata, sent or [b"\xff"])


@dataclass
class Seen:
    """What a server answered: how often each status, and what it should not have answered."""

    calls: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def send(self, channel: grpc.Channel, attack: Attack) -> None:
        """Makes one call, and checks its status."""
        method = METHODS[attack.method]
        path = f"/{method.containing_service.full_name}/{method.name}"
        answer = GetMessageClass(method.output_type)
        code, message, responses = _call(channel, path, attack, answer.FromString)
        self.calls[code.name] += 1
        documented = STATUSES_OF_CALLS[attack.method] - {grpc.StatusCode.INTERNAL}
        if code not in documented:
            self.faults.append(f"{attack}: {code.name}: {message}")
        for response in responses:
            if attack.method == "TranslateStream" and response.HasField("error"):
                found = CODE_OF_NUMBER[response.error.code]
                self.texts[found.name] += 1
                if found not in STATUSES_OF_TEXTS - {grpc.StatusCode.INTERNAL}:
                    self.faults.append(f"{attack}: {found.name}: {response.error.message}")


def _call(channel: Any, path: str, attack: Attack, decode: Any) -> tuple[grpc.StatusCode, str, list[Any]]:
    responses: list[Any] = []
    method = METHODS[attack.method]
    options: dict[str, Any] = {"timeout": 60.0, "metadata": attack.metadata}
    try:
        if method.client_streaming:
            requests: Iterable[bytes] = iter(attack.requests)
            responses.extend(channel.stream_stream(path, None, decode)(requests, **options))
        elif method.server_streaming:
            responses.extend(channel.unary_stream(path, None, decode)(attack.requests[0], **options))
        else:
            responses.append(channel.unary_unary(path, None, decode)(attack.requests[0], **options))
    except grpc.RpcError as error:
        call: Any = error
        return call.code(), call.details() or "", responses
    return grpc.StatusCode.OK, "", responses
