"""What is checked of a message first: the rules of its fields in the `.proto`, sizes, and the settings of streamed
texts. Says what is wrong in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import protovalidate

from buf.validate import validate_pb2
from hmc.artifact.errors import InvalidRequestError, TooLargeError, Violation
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.requests.results import Token, Translation
from hmc.serving.requests.selectors import Selector
from hmc.serving.wire.messages import from_proto, selector_from_proto
from hmc.v1 import translation_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message


MAX_LISTED_BYTES = 2**20
"""Largest request whose violations are all listed; of a larger one only the first. A list of a million bad items would
otherwise hold up all other calls."""
_validator = protovalidate.Validator()  # compiles the rules of a message once


def check_request(request: Message) -> None:
    """Raises InvalidRequestError with every value of `request` that breaks a rule of its field.

    For a request larger than `MAX_LISTED_BYTES` it names only the first one.
    """
    broken = _validator.collect_violations(request, fail_fast=request.ByteSize() > MAX_LISTED_BYTES)
    if not broken:
        return
    violations: dict[str, Violation] = {}  # field → its first violation
    for one in broken:
        violation = _violation(request.DESCRIPTOR, one)
        violations.setdefault(violation.field, violation)
    is_too_large = all(one.proto.rule_id == "string.max_bytes" for one in broken)
    raise invalid_request(list(violations.values()), TooLargeError if is_too_large else InvalidRequestError)


def invalid_request(
    violations: list[Violation], kind: type[InvalidRequestError] = InvalidRequestError
) -> InvalidRequestError:
    """The error of a request with these violations. Its message has all their descriptions."""
    descriptions = [violation.description for violation in violations]
    if len(descriptions) == 1:
        return kind(descriptions[0], violations)
    return kind(f"{len(descriptions)} values are at fault: " + "; ".join(descriptions), violations)


def _violation(message: Any, broken: protovalidate.Violation) -> Violation:
    rule = broken.proto.rule_id
    text = broken.proto.message
    elements = broken.proto.field.elements if broken.proto.field else []
    field = None
    path = ""
    for element in elements:
        field = message.fields_by_number[element.field_number]
        index = element.subscript
        path += ("." if path else "") + field.name + (f"[{index.value}]" if index and index.field == "index" else "")
        message = field.message_type or message
    if field is None or field.message_type is not None:  # a rule of a message: its id is the path of the field at fault
        return Violation(f"{path}.{rule}" if path else rule, text)
    return Violation(path, f"{path} {_problem(field, rule, text, broken.field_value, path.endswith(']'))}")


def _problem(field: Any, rule: str, text: str, value: Any, is_item: bool) -> str:
    """What is wrong with the value of a field. text: the rule's own message, for rules written for one field."""
    kind, _, name = rule.partition(".")
    rules: Any = field.GetOptions().Extensions[validate_pb2.field]
    if is_item:
        rules = rules.repeated.items
    limits: Any = getattr(rules, kind, None)
    match kind, name:
        case "string", "max_len":
            return f"has {len(value)} characters: give at most {limits.max_len}"
        case "string", "max_bytes":
            return f"is longer than {limits.max_bytes} bytes: split it or shorten it"
        case ("string", "min_len") | ("repeated", "min_items"):
            return (
                f"is empty: send at least one {field.name.removesuffix('s')}"
                if kind == "repeated"
                else "is empty: give one"
            )
        case "repeated", "max_items":
            return f"has {len(value)} items: give at most {limits.max_items}"
        case "enum", _:
            allowed = [one.name for one in field.enum_type.values if one.number not in (0, *limits.not_in)]
            return f"{value}: choose {' or '.join(allowed)}"
        case (("int32" | "int64" | "double"), _):
            return f"{value:g}: choose {_range(limits)}" if kind == "double" else f"{value}: choose {_range(limits)}"
        case _:
            return text


def _range(limits: Any) -> str:
    if limits.HasField("lte"):
        above = limits.HasField("gt")
        return f"more than {limits.gt:g}, up to {limits.lte:g}" if above else f"{limits.gte:g} to {limits.lte:g}"
    return f"{limits.gte:g} or more"


MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest gRPC message in either direction. gRPC refuses a larger one with RESOURCE_EXHAUSTED."""
SCHEMES = ("unix:", "unix-abstract:", "vsock:", "dns:", "ipv4:", "ipv6:", "xds:")
"""Prefixes of gRPC's own server names."""
RESERVED_BYTES = 1024
"""Bytes of an answer set aside for everything but its translations."""
HYPOTHESIS_BYTES = 64
"""Upper bound of the bytes that the numbers of one translation or hypothesis take in a message."""
TOKEN_BYTES = 24
"""Upper bound of the bytes that the numbers of one token take, without its attention."""
SEGMENT_BYTES = 64
"""Upper bound of the bytes that the numbers of one sentence take."""
STRING_BYTES = 6
"""Upper bound of the bytes that frame a string."""
ATTENTION_BYTES = 4
"""Bytes of one attention weight."""


def check_token(token: str) -> None:
    """Raises InvalidRequestError unless `token` can be sent as metadata: printable ASCII, and not blank."""
    if not (token.isascii() and token.isprintable() and token.strip()):
        raise InvalidRequestError("the token must be printable ASCII and not empty")


def check_address(address: str) -> None:
    """Raises InvalidRequestError unless `address` is `host:port`, or a name that begins with one of `SCHEMES`."""
    if address.startswith(SCHEMES):
        return
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    named = bracketed or not set(host) & set(":/[]")
    if not (host.strip() and named and address.isprintable() and " " not in address):
        raise InvalidRequestError(f"server address {address!r}: give HOST:PORT, such as localhost:50051 or [::1]:50051")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise InvalidRequestError(f"server address {address!r}: port {port!r}: choose 1 to 65535")


class AnswerSize:
    """Adds up the size of one answer while it is made, so that one which is too large is refused early."""

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        """limit: bytes of the largest answer."""
        self._limit = limit
        self._left = limit - RESERVED_BYTES

    def add(self, translation: Translation) -> Translation:
        """Counts a translation and returns it. Raises TooLargeError if the answer would exceed the limit."""
        self._left -= translation_bytes(translation)
        if self._left < 0:
            raise TooLargeError(
                f"the answer would be larger than {self._limit // 2**20} MiB, the largest message that can be sent: "
                "send fewer texts in a call, ask for fewer hypotheses (n_best), or leave out alignment"
            )
        return translation


def translation_bytes(translation: Translation) -> int:
    """Upper bound of the bytes that a translation takes in a message."""
    pieces = sum(len(piece.encode()) + STRING_BYTES for piece in translation.source_pieces)
    pieces += sum(
        SEGMENT_BYTES + _tokens_bytes(s.tokens) + sum(len(p.encode()) + STRING_BYTES for p in s.source_pieces)
        for s in translation.segments
    )
    hypotheses = sum(HYPOTHESIS_BYTES + len(h.text.encode()) + _tokens_bytes(h.tokens) for h in translation.hypotheses)
    return HYPOTHESIS_BYTES + pieces + hypotheses


def _tokens_bytes(tokens: Sequence[Token]) -> int:
    return sum(len(t.piece.encode()) + TOKEN_BYTES + ATTENTION_BYTES * len(t.attention) for t in tokens)


MAX_REMEMBERED = 256
MAX_REMEMBERED_BYTES = 1024
"""Most different settings that are remembered, and bytes of the longest ones: callers choose what is in them."""


def checked_settings(request: pb.TranslateRequest | pb.TranslateStreamRequest) -> tuple[Selector, DecodeOptions]:
    """Checks a request by the rules of its fields, and returns its level and options.

    Raises InvalidRequestError with every invalid value, like `check_request`.
    """
    level = request.level.SerializeToString()
    options = request.options.SerializeToString()
    known = _known(level, options) if len(level) + len(options) <= MAX_REMEMBERED_BYTES else None
    if known is not None and _is_plain(request):
        return known
    check_request(request)
    return known or (selector_from_proto(request.level), from_proto(DecodeOptions, request.options))


SHORT = 16384
"""Characters of a text that is within every limit of bytes: UTF-8 takes four for a character at most."""
SHORT_ID = 256
"""As SHORT, of the id of a text."""


def _is_plain(request: pb.TranslateRequest | pb.TranslateStreamRequest) -> bool:
    """Whether all fields but level and options keep their rules for certain, as those of most requests do. It takes a
    twentieth of the time of `check_request`, which decides about all others."""
    if isinstance(request, pb.TranslateStreamRequest):
        lengths = max(len(request.text), len(request.target_prefix))
        in_time = not request.HasField("timeout_ms") or request.timeout_ms >= 1
        return lengths <= SHORT and len(request.id) <= SHORT_ID and in_time
    texts = request.texts
    if request.keep or request.target_prefixes or request.segmentation not in DEFINED or not texts:
        return False
    return len(texts[0]) <= SHORT if len(texts) == 1 else max(map(len, texts)) <= SHORT


DEFINED = frozenset(pb.Segmentation.values())


@lru_cache(maxsize=MAX_REMEMBERED)
def _known(level: bytes, options: bytes) -> tuple[Selector, DecodeOptions] | None:
    """Settings as plain data; None if a value breaks a rule. level, options: messages as bytes."""
    request = pb.TranslateStreamRequest(
        level=pb.LevelSelector.FromString(level), options=pb.DecodingOptions.FromString(options)
    )
    try:
        check_request(request)
        return selector_from_proto(request.level), from_proto(DecodeOptions, request.options)
    except InvalidRequestError:
        return None
