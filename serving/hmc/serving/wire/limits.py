"""Limits that client and server check before gRPC sees a value: sizes of messages, addresses and tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hmc.artifact.errors import InvalidRequestError, TooLargeError
from hmc.serving.requests.results import Alternative, Token, Translation

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
        self._limit, self._left = limit, limit - RESERVED_BYTES

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
    return HYPOTHESIS_BYTES + pieces + sum(map(_hypothesis_bytes, translation.hypotheses))


def _hypothesis_bytes(hypothesis: Alternative) -> int:
    return HYPOTHESIS_BYTES + len(hypothesis.text.encode()) + _tokens_bytes(hypothesis.tokens)


def _tokens_bytes(tokens: Sequence[Token]) -> int:
    return sum(len(t.piece.encode()) + TOKEN_BYTES + ATTENTION_BYTES * len(t.attention) for t in tokens)
