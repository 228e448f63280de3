"""What a front and the engine's process say to each other, as bytes.

A frame is four bytes of length and a list of messages as MessagePack. Every message is a struct of fixed fields, which
are checked when it is read: a frame that is too long or not of this form ends the connection. Nothing in it is code.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import msgspec
import numpy as np

from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.errors import HmcError, InternalServiceError, InvalidArtifactError, named_error
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.opening import EngineSettings
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.requests.results import Decoded, DecodedHypothesis, DeviceUse
from hmc.engine.requests.work import LevelWork

LENGTH = struct.Struct("!I")
MAX_FRAME = 64 * 2**20
"""Bytes of the longest frame. The largest request over gRPC has as many."""


class LinkError(HmcError):
    """The other end of a connection sent bytes that are no frame."""


class Message(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Begins the hierarchy; each kind has a tag of its own."""


class Open(Message, tag=1, frozen=True):
    """A front wants a level. The answer is `Opened` or `Refused`."""

    level: int
    """A number that the front has given no other level."""
    bundle: str
    version: str
    """The engine refuses a folder that holds another version now."""
    name: str
    settings: EngineSettings


class Submit(Message, tag=2, frozen=True):
    """A sentence, as token ids. The answer is `Done` or `Refused`."""

    level: int
    sentence: int
    """A number that the front has given no other sentence."""
    source: list[int]
    options: bytes
    """`DecodeOptions`, see `pack_options`."""
    priority: str
    constraints: Constraints | None
    certain: bool
    """Whether certain tokens are wanted as soon as they are known."""


class Cancel(Message, tag=3, frozen=True):
    """The front gives a sentence up. Unknown ones have ended."""

    sentence: int


class ReleaseMemory(Message, tag=4, frozen=True):
    """The front wants unused memory of a level to be given back."""

    level: int


class Close(Message, tag=5, frozen=True):
    """The front needs a level no longer. The answer is `Closed`."""

    level: int


@dataclass(frozen=True)
class LevelState:
    """What a front knows of a level."""

    device: str
    max_rows: int
    """Most hypotheses that a worker decodes together, and so of one sentence."""
    workers: int
    scores_wanted: bool
    searches_inside: bool
    any_patience: bool
    variants: tuple[Variant, ...]
    """The decoder variants that it has. For this and the three above see `LevelTraits`."""
    weights: dict[str, int]
    """For this and the three below see `LevelEngine`. Of several fronts that have the level, one is told these, so that
    they can be summed."""
    device_bytes: dict[str, int]
    device_use: tuple[DeviceUse, ...]
    work: LevelWork
    failure: str | None


class Opened(Message, tag=6, frozen=True):
    """The level can be used."""

    level: int
    state: LevelState


class States(Message, tag=7, frozen=True):
    """What the levels of a front do now."""

    levels: dict[int, LevelState]
    process_bytes: int
    """Of the engine's process, of its own and not shared with others."""


class SentHypothesis(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """See `hmc.engine.requests.results.DecodedHypothesis`."""

    ids: tuple[int, ...]
    score: float
    complete: bool
    token_scores: tuple[float, ...] = ()
    attention: bytes = b""
    """float32 `[T, S]`; empty if it was not wanted."""


class Done(Message, tag=8, frozen=True):
    """A sentence has ended."""

    sentence: int
    queue_s: float
    compute_s: float
    hypotheses: list[SentHypothesis]


class Certain(Message, tag=9, frozen=True):
    """Tokens of a sentence that no later step can change: all of them so far."""

    sentence: int
    ids: tuple[int, ...]


class Refused(Message, tag=10, frozen=True):
    """A level cannot be opened, or a sentence has failed."""

    level: int
    """0: it was a sentence."""
    sentence: int
    kind: str
    """Name of a class of `hmc.artifact.errors`; others are bugs, of which only the log tells more."""
    text: str
    retry_after_s: float | None
    parts: list[str]
    """Of `InvalidArtifactError`: what cannot be used, how to mend it, and the problems."""


class Closed(Message, tag=11, frozen=True):
    """A level is closed for this front."""

    level: int


FromFront = Open | Submit | Cancel | ReleaseMemory | Close
FromEngine = Opened | States | Done | Certain | Refused | Closed
T = TypeVar("T")
_from_front = msgspec.msgpack.Decoder(list[FromFront])
_from_engine = msgspec.msgpack.Decoder(list[FromEngine])
_options = msgspec.msgpack.Decoder(DecodeOptions)
_encoder = msgspec.msgpack.Encoder()


def frame(messages: Sequence[Message]) -> bytes:
    """Messages as bytes. Raises LinkError if they are too many for one frame."""
    body = _encoder.encode(messages)
    if len(body) > MAX_FRAME:
        raise LinkError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME}: send fewer texts in a call")
    return LENGTH.pack(len(body)) + body


def size_of(head: bytes) -> int:
    """Bytes of the frame that begins with these four. Raises LinkError if it is too long."""
    size = int(LENGTH.unpack(head)[0])
    if size > MAX_FRAME:
        raise LinkError(f"a frame of {size} bytes is over the limit of {MAX_FRAME}")
    return size


def from_front(body: bytes) -> list[FromFront]:
    """The messages of a front. Raises LinkError."""
    return _checked(_from_front, body)


def from_engine(body: bytes) -> list[FromEngine]:
    """The messages of the engine. Raises LinkError."""
    return _checked(_from_engine, body)


def _checked(decoder: msgspec.msgpack.Decoder[list[T]], body: bytes) -> list[T]:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, HmcError) as error:
        raise LinkError(f"the other process sent what is no frame: {error}") from error


def pack_options(options: DecodeOptions) -> bytes:
    """Options as bytes: those of many sentences are alike, and are read once."""
    return _encoder.encode(options)


@lru_cache(maxsize=256)
def unpack_options(data: bytes) -> DecodeOptions:
    """The inverse of `pack_options`. Raises LinkError."""
    try:
        return _options.decode(data)
    except (msgspec.MsgspecError, HmcError) as error:
        raise LinkError(f"the other process sent no options of a search: {error}") from error


def done(sentence: int, decoded: Decoded) -> Done:
    """What a sentence has become, as a message."""
    hypotheses = []
    for hypothesis in decoded.hypotheses:
        attention = b""
        if hypothesis.attention is not None:
            attention = np.ascontiguousarray(hypothesis.attention, np.float32).tobytes()
        hypotheses.append(
            SentHypothesis(hypothesis.ids, hypothesis.score, hypothesis.complete, hypothesis.token_scores, attention)
        )
    return Done(sentence, decoded.queue_s, decoded.compute_s, hypotheses)


def decoded_of(message: Done, source_tokens: int, waited_s: float) -> Decoded:
    """The inverse of `done`. source_tokens: of the sentence. waited_s: in the queue of the front."""
    hypotheses = []
    for hypothesis in message.hypotheses:
        attention = None
        if hypothesis.attention:
            attention = np.frombuffer(hypothesis.attention, np.float32).reshape(-1, source_tokens)
        hypotheses.append(
            DecodedHypothesis(hypothesis.ids, hypothesis.score, hypothesis.complete, hypothesis.token_scores, attention)
        )
    return Decoded(tuple(hypotheses), waited_s + message.queue_s, message.compute_s)


def refused(error: BaseException, *, level: int = 0, sentence: int = 0) -> Refused:
    """An error as a message. Of one that is a bug, only its kind is told."""
    known = isinstance(error, HmcError)
    after = error.retry_after_s if isinstance(error, HmcError) else None
    parts = [error.what, error.fix, *error.problems] if isinstance(error, InvalidArtifactError) else []
    return Refused(level, sentence, type(error).__name__, str(error) if known else "", after, parts)


def error_of(message: Refused) -> HmcError:
    """The inverse of `refused`."""
    if message.parts:
        what, fix, *problems = message.parts
        return InvalidArtifactError(what, problems, fix)
    error = named_error(message.kind, message.text)
    if error is None:
        return InternalServiceError(
            f"the engine has a bug, the request is not at fault; its log has the details, under the name {message.kind}"
        )
    error.retry_after_s = message.retry_after_s
    return error
