"""The client's side of a stream of texts: sends them with a bound on the unanswered ones, and orders the answers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.requests.answers import StreamAnswer
from hmc.serving.requests.checks import check_text
from hmc.serving.wire import messages as converters
from hmc.v1 import translation_pb2 as pb


class ClientStream:
    """One stream. gRPC reads `requests` in a thread of its own; `answers` runs in the caller's thread."""

    def __init__(
        self, texts: Iterable[str], prefixes: Iterable[str] | None, settings: dict[str, Any], in_flight: int
    ) -> None:
        """prefixes: one target prefix for each text; None: no text has one. settings: fields `level` and `options` of
        every request. in_flight: most unanswered texts. Raises InvalidRequestError for values that cannot be sent."""
        if in_flight < 1:
            raise InvalidRequestError(f"in_flight {in_flight}: choose 1 or more")
        for name, given in (("texts", texts), ("target_prefixes", prefixes)):
            if isinstance(given, str | bytes):
                raise InvalidRequestError(f"{name} takes a list: put a single text in a list")
        self._texts, self._settings = texts, settings
        self._prefixes = repeat("") if prefixes is None else iter(prefixes)
        self._free = threading.Semaphore(in_flight)
        self._closed = False
        self.error: Exception | None = None
        """The error that ended the texts: raised by their iterable, or by the check of one of them."""

    def requests(self) -> Iterator[pb.TranslateStreamRequest]:
        """Yields a request for each text. An error ends it early and is kept in `error`: gRPC would swallow it."""
        try:
            for index, text in enumerate(self._texts):
                self._free.acquire()
                if self._closed:
                    return
                check_text(text, f"text {index}")
                prefix = next(self._prefixes, None)
                if prefix is None:
                    raise InvalidRequestError(f"text {index} has no target prefix: give one for each text")
                check_text(prefix, f"target prefix {index}")
                yield pb.TranslateStreamRequest(id=str(index), text=text, target_prefix=prefix, **self._settings)
        except Exception as error:  # noqa: BLE001 - raised again by translate_stream
            self.error = error

    def answers(self, call: Iterator[pb.TranslateStreamResponse], in_order: bool) -> Iterator[StreamAnswer]:
        """Yields the answers: in the order of the texts, or in the order of arrival if not `in_order`."""
        early: dict[int, StreamAnswer] = {}
        following = 0
        for message in call:
            answer = converters.stream_answer_from_proto(message, int(message.id))
            if not in_order:
                self._free.release()
                yield answer
                continue
            early[answer.index] = answer
            while following in early:
                self._free.release()
                yield early.pop(following)
                following += 1

    def close(self) -> None:
        """Ends `requests`, also while it waits for an answer."""
        self._closed = True
        self._free.release()
