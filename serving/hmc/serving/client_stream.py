"""A stream of texts as the client keeps it, and what it checks before it sends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.answers import StreamAnswer
from hmc.serving.options import check_text
from hmc.serving.server import converters
from hmc.v1 import translation_pb2 as pb


class ClientStream:
    """One stream's books: texts go out from gRPC's thread, answers come in on the caller's."""

    def __init__(
        self, texts: Iterable[str], prefixes: Iterable[str] | None, how: dict[str, Any], in_flight: int
    ) -> None:
        """prefixes None: there are none. how: the `level` and `options` of every request."""
        if in_flight < 1:
            raise InvalidRequestError(f"in_flight {in_flight}: choose 1 or more")
        for name, given in (("texts", texts), ("target_prefixes", prefixes)):
            if isinstance(given, str | bytes):
                raise InvalidRequestError(f"{name} takes a list: put a single text in a list")
        self._texts, self._how = texts, how
        self._prefixes = repeat("") if prefixes is None else iter(prefixes)
        self._places = threading.Semaphore(in_flight)
        self._closed = False
        self.error: Exception | None = None
        """What `texts` raised, or what is wrong with one of them."""

    def requests(self) -> Iterator[pb.TranslateStreamRequest]:
        """Ends early when a text cannot be sent: gRPC would hide the error, so it is kept in `error`."""
        try:
            for index, text in enumerate(self._texts):
                self._places.acquire()
                if self._closed:
                    return
                check_text(text, f"text {index}")
                prefix = next(self._prefixes, None)
                if prefix is None:
                    raise InvalidRequestError(f"text {index} has no target prefix: give one for each text")
                check_text(prefix, f"target prefix {index}")
                yield pb.TranslateStreamRequest(id=str(index), text=text, target_prefix=prefix, **self._how)
        except Exception as error:  # noqa: BLE001 - raised again by translate_stream
            self.error = error

    def answers(self, call: Iterator[pb.TranslateStreamResponse], in_order: bool) -> Iterator[StreamAnswer]:
        early: dict[int, StreamAnswer] = {}
        following = 0
        for message in call:
            answer = converters.stream_answer_from_proto(message, int(message.id))
            if not in_order:
                self._places.release()
                yield answer
                continue
            early[answer.index] = answer
            while following in early:
                self._places.release()
                yield early.pop(following)
                following += 1

    def close(self) -> None:
        self._closed = True
        self._places.release()
