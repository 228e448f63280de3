"""The synchronous client: a method for each call of the service, and an HmcError for each status."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Unpack

import grpc

from hmc.artifact.errors import HmcError
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.client import calls
from hmc.serving.client.calls import Call, Level, Streaming, Texts, Translating, Where
from hmc.serving.client.core import ClientCore, Readiness
from hmc.serving.client.failures import Attempts, domain_errors
from hmc.serving.client.window import END, Window, check_texts
from hmc.serving.requests.results import (
    Answer,
    DocumentPiece,
    LevelInfo,
    LevelList,
    ModelInfo,
    Partial,
    ServerStatus,
    StreamAnswer,
)
from hmc.v1 import translation_pb2 as pb

T = TypeVar("T")


class Client(ClientCore):
    """A connection to a service; use it in a `with` block. Thread-safe. `AsyncClient` has the same methods for asyncio.

    Every method raises the HmcError that belongs to the server's status, with the server's message, `retry_after_s` and
    `request_id`. It raises UnavailableError if the server cannot be reached, DeadlineExceededError if the answer takes
    more than `timeout` seconds in all attempts (None: no limit), and InvalidRequestError if `timeout` is not above 0.
    """

    _grpc: ClassVar[Any] = grpc

    def translate(
        self,
        texts: Sequence[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        **more: Unpack[Translating],
    ) -> Answer:
        """Translates all texts in one call, or raises an error that names the invalid text.

        level: a level's name, a selector, or None for the server's default level. more: see `Translating`.
        """
        return self._ask(calls.translate(texts, level, options, timeout, **more))

    def translate_document(
        self,
        text: str,
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        **more: Unpack[Texts],
    ) -> Generator[DocumentPiece, None, None]:
        """Translates a text of any length. Yields each sentence, with the copied text before it, as soon as this
        sentence and all earlier ones are translated. All pieces together are the translation. Leaving the iteration
        early cancels the call.

        more: see `Texts`; the segmentation "none" is refused.
        """
        return self._pieces(calls.translate_document(text, level, options, timeout, **more))

    def translate_tokens(
        self,
        text: str,
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        *,
        target_prefix: str = "",
        **where: Unpack[Where],
    ) -> Generator[Partial, None, None]:
        """Yields each piece of a translation as soon as it is certain, and the whole translation last.

        See `Translator.stream`. target_prefix: the beginning of the translation. Leaving the iteration early cancels
        the call.
        """
        return self._pieces(calls.translate_tokens(text, level, options, timeout, target_prefix=target_prefix, **where))

    def translate_stream(
        self,
        texts: Iterable[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        *,
        target_prefixes: Iterable[str] | None = None,
        **more: Unpack[Streaming],
    ) -> Generator[StreamAnswer, None, None]:
        """Translates texts while they are read, with at most `in_flight` of them without an answer.

        target_prefixes: the beginning of each translation, one for each text. more: see `Streaming`. An error in one
        text is part of its answer. An error that `texts` raises, or that ends the whole stream, is raised here. If the
        connection breaks, texts without an answer are sent again, and no others. Leaving the iteration early cancels
        the call.
        """
        call, window = calls.translate_stream(level, options, timeout, **more)
        return self._streamed(call, _Requests(window, texts, target_prefixes), self._attempts(call))

    def score(
        self,
        texts: Sequence[str],
        references: Sequence[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        **where: Unpack[Where],
    ) -> Answer:
        """Scores a given translation (reference) of each text in one call; see `Translator.score` and `translate`."""
        return self._ask(calls.score(texts, references, level, options, timeout, **where))

    def models(self, timeout: float | None = None, *, request_id: str | None = None) -> tuple[ModelInfo, ...]:
        """Lists the models of the server with their languages. The first one translates for calls that choose none."""
        return self._ask(calls.models(timeout, request_id))

    def levels(
        self, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> LevelList:
        """Lists the levels of a model (None: the server's first one), loaded or not, in their order."""
        return self._ask(calls.levels(timeout, model, request_id))

    def status(
        self, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> ServerStatus:
        """The present work of the loaded levels of a model (None: of all models): queues, running batches, memory. For
        operators."""
        return self._ask(calls.status(timeout, model, request_id))

    def load_level(
        self, name: str, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> LevelInfo:
        """Loads a level of a model (None: the server's first one), and returns its description when it serves."""
        return self._ask(calls.change_level("LoadLevel", name, timeout, model, request_id))

    def unload_level(
        self, name: str, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> LevelInfo:
        """Takes a level out of service, and returns its description when its last request has ended and it is freed."""
        return self._ask(calls.change_level("UnloadLevel", name, timeout, model, request_id))

    def set_default_level(
        self, name: str, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> LevelInfo:
        """Makes a loaded level the default level, for calls that choose none, until the next reload."""
        return self._ask(calls.change_level("SetDefaultLevel", name, timeout, model, request_id))

    def reload(
        self, bundle: Path | str | None = None, timeout: float | None = None, *, model: str | None = None,
        request_id: str | None = None,
    ) -> str:  # fmt: skip
        """Replaces the bundle of a model, and returns the version of the new one when it serves.

        bundle: a path on the server's machine; None reads the path of the current bundle again.
        """
        return self._ask(calls.reload(bundle, timeout, model, request_id))

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Returns when the server's health is SERVING. Raises UnavailableError after `timeout` seconds."""
        ready = Readiness(self.address, timeout)
        while (left := ready.seconds_left()) > 0:
            try:
                if ready.serves(self._health.Check(ready.request, timeout=left)):
                    return
            except grpc.RpcError as error:
                ready.failed(error)
            time.sleep(ready.pause_s())
        raise ready.error()

    def close(self) -> None:
        """Closes the connection, cancels the calls that run on it, and ends the waits between attempts."""
        self._closed.set()
        for channel in self._channels:
            channel.close()

    def _ask(self, call: Call[T]) -> T:
        send = self._sender(call)
        attempts = self._attempts(call)
        while True:
            try:
                with domain_errors(self.address, call.request_id):
                    return call.convert(send(call.request, timeout=attempts.seconds_left()))
            except HmcError as error:
                self._closed.wait(attempts.wait_s(error))

    def _pieces(self, call: Call[T]) -> Generator[T, None, None]:
        """The answers of a call that has many. It is sent again until the first one has come."""
        send = self._sender(call)
        attempts = self._attempts(call)
        begun = False
        while True:
            try:
                with closing(self._messages(call, send, call.request, attempts)) as messages:
                    for message in messages:
                        begun = True
                        yield call.convert(message)
                return
            except HmcError as error:
                if begun:
                    raise
                self._closed.wait(attempts.wait_s(error))

    def _streamed(
        self, call: Call[list[StreamAnswer]], requests: _Requests, attempts: Attempts
    ) -> Generator[StreamAnswer, None, None]:
        """The answers of a stream, over as many connections as it takes."""
        try:
            while True:
                try:
                    with closing(self._messages(call, self._sender(call), requests.connect(), attempts)) as messages:
                        for message in messages:
                            attempts.answered()
                            yield from requests.answered(message)
                    break
                except HmcError as error:
                    self._closed.wait(attempts.wait_s(error))
            requests.window.finish()
        finally:
            requests.end()

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

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Requests:
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
