# Made from aio.py by `python -m tests.sync_client`. Do not edit.
"""The synchronous client: a method for each call of the service, and an HmcError for each status."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2

from hmc.artifact.errors import HmcError, UnavailableError
from hmc.engine.requests.checks import check_text
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.client import calls
from hmc.serving.client.transport import Requests, Transport
from hmc.serving.client.calls import SERVICE, Call, Level, Streaming, Texts, Translating, Where
from hmc.serving.client.failures import OTHER_PROTOCOL, Attempts, domain_errors, why_not_ready
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
from hmc.serving.wire import messages as converters
from hmc.v1 import translation_pb2 as pb

T = TypeVar("T")
READY_S = 0.05
"""Seconds between two questions whether the server is ready."""


class Client(Transport):
    """A connection to a service. Thread-safe. Use it in a block of `with`.

    `AsyncClient` has the same methods for asyncio.

    Every method raises the HmcError that belongs to the server's status, with the server's message, `retry_after_s` and
    `request_id`. It raises UnavailableError if the server cannot be reached, DeadlineExceededError if the answer takes
    more than `timeout` seconds in all attempts (None: no limit), and InvalidRequestError if `timeout` is not above 0.

    Leaving a generator early cancels its call: at once inside `contextlib.closing`, and otherwise when the generator
    is collected.
    """

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
        return self._streamed(call, Requests(window, texts, target_prefixes), self._attempts(call))

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
        return self._ask(
            Call("ListModels", pb.ListModelsRequest(), converters.models_from_proto, timeout, request_id)
        )

    def levels(
        self, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> LevelList:
        """Lists the levels of a model (None: the server's first one), loaded or not, in their order."""
        request = pb.ListLevelsRequest(model=model)
        return self._ask(Call("ListLevels", request, converters.levels_from_proto, timeout, request_id))

    def status(
        self, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> ServerStatus:
        """The present work of the loaded levels of a model (None: of all models): queues, running batches, memory. For
        operators."""
        request = pb.GetStatusRequest(model=model)
        convert = partial(converters.from_proto, ServerStatus)
        return self._ask(Call("GetStatus", request, convert, timeout, request_id, admin=True))

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
        path = None if bundle is None else str(bundle)
        check_text(path or "", "bundle")
        request = pb.ReloadRequest(bundle_path=path, model=model)
        return self._ask(
            Call("Reload", request, lambda answer: str(answer.bundle_version), timeout, request_id, admin=True)
        )

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Returns when the server's health is SERVING. Raises UnavailableError after `timeout` seconds."""
        end = time.monotonic() + timeout
        reason = "no answer came in that time"
        while (seconds := end - time.monotonic()) > 0:
            try:
                answer = self._health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=seconds)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
                reason = "its health is not SERVING yet"
            except grpc.RpcError as error:
                reason = why_not_ready(self.address, error) or reason
            self._wait(min(READY_S, max(0.0, end - time.monotonic())))
        useless = -1.0 if OTHER_PROTOCOL in reason else None
        raise UnavailableError(f"{self.address} is not ready after {timeout:g} s: {reason}", useless)

    def _ask(self, call: Call[T]) -> T:
        send = self._sender(call)
        attempts = self._attempts(call)
        while True:
            try:
                with domain_errors(self.address, call.request_id):
                    return call.convert(send(call.request, timeout=attempts.seconds_left()))
            except HmcError as error:
                self._wait(attempts.wait_s(error))

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
                self._wait(attempts.wait_s(error))

    def _streamed(
        self, call: Call[list[StreamAnswer]], requests: Requests, attempts: Attempts
    ) -> Generator[StreamAnswer, None, None]:
        """The answers of a stream, over as many connections as it takes."""
        try:
            while True:
                try:
                    messages = self._messages(call, self._sender(call), requests.connect(), attempts)
                    with closing(messages):
                        for message in messages:
                            attempts.answered()
                            for answer in requests.answered(message):
                                yield answer
                    break
                except HmcError as error:
                    self._wait(attempts.wait_s(error))
            requests.window.finish()
        finally:
            requests.end()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
