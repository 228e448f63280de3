"""What the synchronous client does otherwise than `aio_transport`: it blocks, and gRPC reads requests in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import repeat
from typing import Any, ClassVar

import grpc

from hmc.serving.client.calls import Call
from hmc.serving.client.core import ClientCore
from hmc.serving.client.failures import Attempts, domain_errors
from hmc.serving.client.window import END, Window, check_texts
from hmc.serving.requests.results import StreamAnswer
from hmc.v1 import translation_pb2 as pb


class Transport(ClientCore):
    """A client of `grpc`. Thread-safe."""

    _grpc: ClassVar[Any] = grpc

    def close(self) -> None:
        """Closes the connection, cancels the calls that run on it, and ends the waits between attempts."""
        self._closed.set()
        for channel in self._channels:
            channel.close()

    def _wait(self, seconds: float) -> None:
        self._closed.wait(seconds)

    def _messages(
        self, call: Call[Any], send: Callable[..., Any], request: Any, attempts: Attempts
    ) -> Generator[Any, None, None]:
        """What the server sends in one attempt of a call with many answers. Ends the call when it is left."""
        with domain_errors(self.address, call.request_id):
            answers = send(request, timeout=attempts.seconds_left())
            try:
                yield from answers
            finally:
                answers.cancel()


class Requests:
    """The requests of a stream of texts: gRPC reads them in a thread of its own while the caller takes answers."""

    def __init__(self, window: Window, texts: Iterable[str], prefixes: Iterable[str] | None) -> None:
        """prefixes: one target prefix for each text; None: no text has one. Raises InvalidRequestError."""
        check_texts(texts, prefixes)
        self.window = window
        self._texts = iter(texts)
        self._prefixes = repeat("") if prefixes is None else iter(prefixes)
        self._changed = threading.Condition()

    def connect(self) -> Iterator[pb.TranslateStreamRequest]:
        """The requests of a new connection. Those of the last one end."""
        return self._each(self._begin())

    def end(self) -> None:
        """The requests of the last connection end."""
        self._begin()

    def _begin(self) -> int:
        with self._changed:
            self._changed.notify_all()
            return self.window.connect()

    def answered(self, message: pb.TranslateStreamResponse) -> list[StreamAnswer]:
        """See `Window.answer`."""
        with self._changed:
            ready = self.window.answer(message)
            self._changed.notify_all()
            return ready

    def _each(self, connection: int) -> Iterator[pb.TranslateStreamRequest]:
        while (request := self._next(connection)) is not None:
            yield request

    def _next(self, connection: int) -> pb.TranslateStreamRequest | None:
        """The next request of a connection; None if it gets no more."""
        window = self.window

        def moves() -> bool:
            return window.is_over(connection) or window.has_unsent or (window.room and not window.reading)

        while True:
            with self._changed:
                self._changed.wait_for(moves)
                if window.is_over(connection):
                    return None
                if (request := window.take()) is not None:
                    return request
                window.reading = True
            self._read()

    def _read(self) -> None:
        """Reads one text. It may take as long as its iterable likes, and end after the connection: so one thread reads,
        and the text goes to the connection that is there then. An error is kept: gRPC would swallow it."""
        text = prefix = END
        failed: Exception | None = None
        try:
            text = next(self._texts, END)
            prefix = next(self._prefixes, None) if text is not END else None
        except Exception as error:  # noqa: BLE001 - raised again by `Window.finish`
            failed = error
        with self._changed:
            self.window.reading = False
            if failed is not None or text is END:
                self.window.end(failed)
            else:
                self.window.add(text, prefix)
            self._changed.notify_all()
