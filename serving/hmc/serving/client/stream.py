"""A stream of texts, with threads: gRPC reads the texts in a thread of its own while the caller takes answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import repeat
from typing import Any

from hmc.artifact.errors import HmcError
from hmc.serving.client.retries import Attempts
from hmc.serving.client.window import Window, check_texts
from hmc.serving.requests.results import StreamAnswer
from hmc.v1 import translation_pb2 as pb

_END: Any = object()
Opened = Callable[[Iterator[pb.TranslateStreamRequest]], Generator[Any, None, None]]


class TextStream:
    """One stream, over as many connections as it takes."""

    def __init__(self, window: Window, texts: Iterable[str], prefixes: Iterable[str] | None) -> None:
        """prefixes: one target prefix for each text; None: no text has one. Raises InvalidRequestError."""
        check_texts(texts, prefixes)
        self._window = window
        self._texts = iter(texts)
        self._prefixes = repeat("") if prefixes is None else iter(prefixes)
        self._changed = threading.Condition()
        self._attempt = 0
        self._reading = False

    def answers(
        self, opened: Opened, attempts: Attempts, wait: Callable[[float], None]
    ) -> Generator[StreamAnswer, None, None]:
        """Yields the answers. opened: sends the requests on a new connection, yields what the server sends, and raises
        an HmcError when it breaks. wait: called with the seconds before the next attempt."""
        try:
            while True:
                try:
                    with closing(opened(self._requests(self._begin()))) as messages:
                        for message in messages:
                            attempts.answered()
                            yield from self._answered(message)
                    break
                except HmcError as error:
                    wait(attempts.wait_s(error))
            self._window.finish()
        finally:
            self._begin()

    def _begin(self) -> int:
        """Ends the requests of the last connection. Returns the number of the next one."""
        with self._changed:
            self._attempt += 1
            self._window.send_again()
            self._changed.notify_all()
            return self._attempt

    def _answered(self, message: pb.TranslateStreamResponse) -> list[StreamAnswer]:
        with self._changed:
            ready = self._window.answer(message)
            self._changed.notify_all()
            return ready

    def _requests(self, attempt: int) -> Iterator[pb.TranslateStreamRequest]:
        while (request := self._next(attempt)) is not None:
            yield request

    def _next(self, attempt: int) -> pb.TranslateStreamRequest | None:
        """The next request of this connection; None if it is over, or if all texts are sent."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._attempt != attempt or self._moves())
                if self._attempt != attempt:
                    return None
                request = self._window.take()
                if request is not None or self._window.ended:
                    return request
                self._reading = True
            self._read()

    def _moves(self) -> bool:
        return self._window.has_unsent or self._window.ended or (self._window.room and not self._reading)

    def _read(self) -> None:
        """Reads one text. It may take as long as its iterable likes, and end after the connection: so one thread reads,
        and the text goes to the connection that is there then. An error is kept: gRPC would swallow it."""
        text = prefix = _END
        failed: Exception | None = None
        try:
            text = next(self._texts, _END)
            prefix = next(self._prefixes, None) if text is not _END else None
        except Exception as error:  # noqa: BLE001 - raised again by `Window.finish`
            failed = error
        with self._changed:
            self._reading = False
            if failed is not None or text is _END:
                self._window.end(failed)
            else:
                try:
                    self._window.add(text, prefix)
                except HmcError as error:
                    self._window.end(error)
            self._changed.notify_all()
