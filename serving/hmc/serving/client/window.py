"""The state of a stream of texts, without threads and without gRPC: what was read, what was sent, what is answered."""

from __future__ import annotations

from collections import deque

from hmc.artifact.errors import InternalServiceError, InvalidRequestError
from hmc.serving.client.calls import Level, Where, name, settings
from hmc.serving.requests.checks import check_text, check_whole
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.requests.results import StreamAnswer
from hmc.serving.wire import messages as converters
from hmc.v1 import translation_pb2 as pb


class Streaming(Where, total=False):
    """`Where`, and how a stream runs."""

    in_order: bool
    """Yield the answers in the order of the texts (default), or as they arrive."""
    in_flight: int
    """Most texts that are read and whose answers are not given out: what bounds the memory. Default 256."""


class Window:
    """The texts of one stream that are read and whose answers are not given out; at most `in_flight`.

    It outlives a broken connection: `send_again` puts the texts without an answer back into the line.
    """

    def __init__(
        self,
        level: Level,
        options: DecodeOptions | None,
        *,
        in_order: bool = True,
        in_flight: int = 256,
        request_id: str | None = None,
        **model: str | None,
    ) -> None:
        """See `Client.translate_stream`. model: the fields of `Where` that `settings` takes. Raises
        InvalidRequestError."""
        check_whole("in_flight", in_flight, 1)
        self._settings = settings(level, options, **model)
        self._in_order, self._in_flight = in_order, in_flight
        self.request_id = name(request_id)
        self._unsent: deque[int] = deque()
        self._requests: dict[int, pb.TranslateStreamRequest] = {}
        """The texts without an answer."""
        self._early: dict[int, StreamAnswer] = {}
        """Answers that wait for earlier ones."""
        self._read = self._following = 0
        self.ended = False
        """Whether all texts are read, or reading them failed."""
        self.error: Exception | None = None
        """The error that ended the texts: raised by their iterable, or by the check of one of them."""

    @property
    def room(self) -> bool:
        """Whether one more text may be read."""
        return not self.ended and len(self._requests) + len(self._early) < self._in_flight

    @property
    def has_unsent(self) -> bool:
        """Whether `take` has a request."""
        return bool(self._unsent)

    def add(self, text: str, prefix: str | None) -> None:
        """Takes the next text. prefix: the beginning of its translation; None: there is none left for it.

        Raises InvalidRequestError if it cannot be sent.
        """
        index = self._read
        check_text(text, f"text {index}")
        if prefix is None:
            raise InvalidRequestError(f"text {index} has no target prefix: give one for each text")
        check_text(prefix, f"target prefix {index}")
        self._requests[index] = pb.TranslateStreamRequest(
            id=str(index), text=text, target_prefix=prefix, **self._settings
        )
        self._unsent.append(index)
        self._read += 1

    def end(self, error: Exception | None = None) -> None:
        """There are no more texts. error: the reason, if it is not that all are read."""
        self.ended, self.error = True, error

    def take(self) -> pb.TranslateStreamRequest | None:
        """The next request to send; None if there is none now."""
        return self._requests[self._unsent.popleft()] if self._unsent else None

    def send_again(self) -> None:
        """Begins a new connection: all texts without an answer are sent, in their order."""
        self._unsent = deque(self._requests)

    def answer(self, message: pb.TranslateStreamResponse) -> list[StreamAnswer]:
        """Takes an answer, and returns those that can be given out now."""
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
        if self.error is not None:
            raise self.error
        if self._requests or not self.ended:
            raise InternalServiceError(f"the server ended the stream and left {len(self._requests)} texts unanswered")


def check_texts(texts: object, prefixes: object) -> None:
    """Raises InvalidRequestError if a single text was given where many are expected: it would be read by letters."""
    for what, given in (("texts", texts), ("target_prefixes", prefixes)):
        if isinstance(given, str | bytes):
            raise InvalidRequestError(f"{what} takes a list: put a single text in a list")
