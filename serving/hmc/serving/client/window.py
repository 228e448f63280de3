"""The state of a stream of texts, without threads and without gRPC: what was read, what was sent, what is answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from hmc.artifact.errors import InternalServiceError, InvalidRequestError
from hmc.engine.requests.checks import check_text
from hmc.serving.requests.results import StreamAnswer
from hmc.serving.wire import messages as converters
from hmc.v1 import translation_pb2 as pb

END: Any = object()
"""What reading the next text gives when there is none left."""


class Window:
    """The texts of one stream that were read and whose answers were not given out yet; at most `in_flight`.

    It outlives a broken connection: `connect` puts the texts without an answer back into the line. One reader at a time
    reads texts, and may outlive a connection too.
    """

    def __init__(self, settings: Mapping[str, Any], *, in_order: bool, in_flight: int) -> None:
        """settings: the fields `level` and `options` of each request. in_order, in_flight: see `Streaming`."""
        self._settings = settings
        self._in_order = in_order
        self._in_flight = in_flight
        self._connection = 0
        self._unsent: deque[int] = deque()
        self._requests: dict[int, pb.TranslateStreamRequest] = {}
        """The texts without an answer."""
        self._early: dict[int, StreamAnswer] = {}
        """Answers that wait for earlier ones."""
        self._read = self._following = 0
        self._ended = False
        """Whether all texts are read, or reading them failed."""
        self._error: BaseException | None = None
        """The error that ended the texts: raised by their iterable, or by the check of one of them."""
        self.reading = False
        """Whether a reader is at work."""

    # -- reading texts -----------------------------------------------------------------------------------------------

    @property
    def room(self) -> bool:
        """Whether one more text may be read."""
        return not self._ended and len(self._requests) + len(self._early) < self._in_flight

    def add(self, text: str, prefix: str | None) -> None:
        """Takes the next text. prefix: the beginning of its translation. None: the caller gave too few prefixes. A text
        that cannot be sent ends the texts, with an InvalidRequestError."""
        index = self._read
        try:
            check_text(text, f"text {index}")
            if prefix is None:
                raise InvalidRequestError(f"text {index} has no target prefix: give one for each text")
            check_text(prefix, f"target prefix {index}")
        except InvalidRequestError as error:
            self.end(error)
            return
        self._requests[index] = pb.TranslateStreamRequest(
            id=str(index), text=text, target_prefix=prefix, **self._settings
        )
        self._unsent.append(index)
        self._read += 1

    def end(self, error: BaseException | None = None) -> None:
        """There are no more texts. error: the reason, unless all texts were read; `finish` raises it."""
        self._ended = True
        self._error = error

    # -- sending them ------------------------------------------------------------------------------------------------

    def connect(self) -> int:
        """Begins a new connection, on which all texts without an answer are sent, in their order. Returns its number;
        the requests of the last one end."""
        self._connection += 1
        self._unsent = deque(self._requests)
        return self._connection

    def is_over(self, connection: int) -> bool:
        """Whether a connection gets no more requests: another one has begun, or all texts are sent."""
        return self._connection != connection or (self._ended and not self._unsent)

    @property
    def has_unsent(self) -> bool:
        """Whether `take` has a request."""
        return bool(self._unsent)

    def take(self) -> pb.TranslateStreamRequest | None:
        """The next request to send; None if no text waits now."""
        return self._requests[self._unsent.popleft()] if self._unsent else None

    # -- answers -----------------------------------------------------------------------------------------------------

    def answer(self, message: pb.TranslateStreamResponse) -> list[StreamAnswer]:
        """Takes an answer, and returns the answers that can be given out now."""
        index = int(message.id)
        if self._requests.pop(index, None) is None:
            raise InternalServiceError(f"the server answered text {index} twice, or never got it")
        answer = converters.stream_answer_from_proto(message, index)
        if not self._in_order:
            return [answer]
        self._early[index] = answer
        ready = []
        while self._following in self._early:
            ready.append(self._early.pop(self._following))
            self._following += 1
        return ready

    def finish(self) -> None:
        """The server has ended the stream without an error. Raises the error that ended the texts, if there is one, and
        InternalServiceError if texts are left without an answer."""
        if self._error is not None:
            raise self._error
        if self._requests or not self._ended:
            raise InternalServiceError(f"the server ended the stream and left {len(self._requests)} texts unanswered")


def check_texts(texts: object, prefixes: object) -> None:
    """Raises InvalidRequestError if a single text was given where many are expected: it would be read by letters."""
    for what, values in (("texts", texts), ("target_prefixes", prefixes)):
        if isinstance(values, str | bytes):
            raise InvalidRequestError(f"{what} takes a list: put a single text in a list")
