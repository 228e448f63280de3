"""The synchronous client: a method for each call of the service, and an HmcError for each status."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hmc.artifact.errors import HmcError, UnavailableError
from hmc.serving.client import calls
from hmc.serving.client.calls import Call, Level, Texts, Translating, Where
from hmc.serving.client.connection import Addresses, Pair, connection
from hmc.serving.client.errors import domain_errors, why_not_ready
from hmc.serving.client.retries import Attempts, Retry
from hmc.serving.client.stream import TextStream
from hmc.serving.client.window import Streaming, Window
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.requests.results import Answer, DocumentPiece, LevelInfo, LevelList, ModelInfo, Partial, StreamAnswer
from hmc.serving.wire.metadata import KEY
from hmc.v1 import translation_pb2_grpc as rpc

T = TypeVar("T")


class Client:
    """A connection to a service; use it in a `with` block. Thread-safe. `AsyncClient` has the same methods for asyncio.

    Every method raises the HmcError that belongs to the server's status, with the server's message, `retry_after_s` and
    `request_id`. It raises UnavailableError if the server cannot be reached, DeadlineExceededError if the answer takes
    more than `timeout` seconds in all attempts (None: no limit), and InvalidRequestError if `timeout` is not above 0.
    """

    def __init__(
        self,
        address: Addresses,
        *,
        token: str | None = None,
        tls_ca: Path | str | None = None,
        tls_pair: Pair | None = None,
        retry: Retry | None = None,
        connections: int = 1,
    ) -> None:
        """address: `host:port`, or a gRPC name such as `unix:PATH`. A list of several, or a name that begins with
        `dns:`, is one service: calls take turns over its servers, and none goes to a server whose health is not
        SERVING. token: sent with every call as a bearer token. tls_ca: PEM file of the authorities to trust; "" trusts
        those of the system; None connects without TLS. Several servers need certificates for the host of the first
        address. tls_pair: PEM files of the client's certificate chain and its key, for a server that asks for them
        (mutual TLS). retry: when calls are sent again; None: the defaults of `Retry`.
        connections: how many to each server; calls take turns over them. More than one reaches several processes behind
        one port (`hmc serve --processes`).

        Connects at the first call. Raises InvalidRequestError if the address or the token is malformed, and if a PEM
        file cannot be used.
        """
        self._connection = connection(address, token, tls_ca, tls_pair, connections)
        self.address = self._connection.name
        self._retry = retry or Retry()
        self._closed = threading.Event()
        target, options, credentials = self._connection.target, self._connection.options, self._connection.credentials
        self._channels = [
            grpc.insecure_channel(target, options)
            if credentials is None
            else grpc.secure_channel(target, credentials, options)
            for _ in range(connections)
        ]
        self._turns: Iterator[Any] = cycle([rpc.TranslationServiceStub(channel) for channel in self._channels])
        self._admin: Any = rpc.AdminServiceStub(self._channels[0])
        self._health: Any = health_pb2_grpc.HealthStub(self._channels[0])

    def translate(
        self,
        texts: Sequence[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        **more: Unpack[Translating],
    ) -> Answer:
        """Translates all texts in one call, or raises an error that names the text at fault.

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
        """Translates a text of any length. Yields each sentence, with what is copied before it, as soon as it and all
        before it are translated. All pieces together are the translation. Leaving the iteration early cancels the call.

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
        window = Window(level, options, **more)
        stream = TextStream(window, texts, target_prefixes)
        attempts = Attempts(self._retry, timeout)
        metadata = ((KEY, window.request_id), *self._connection.metadata)

        def opened(requests: Iterator[Any]) -> Generator[Any, None, None]:
            with domain_errors(self.address, window.request_id):
                call = next(self._turns).TranslateStream(requests, timeout=attempts.seconds_left(), metadata=metadata)
                try:
                    yield from call
                finally:
                    call.cancel()

        return stream.answers(opened, attempts, self._wait)

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
        """Lists the levels of a model (None: the server's first one), loaded or not, from the best to the cheapest."""
        return self._ask(calls.levels(timeout, model, request_id))

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
        """Makes a loaded level the one that serves calls which choose none, until the next reload."""
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
        end = time.monotonic() + timeout
        request = health_pb2.HealthCheckRequest(service=calls.SERVICE)
        reason = calls.NO_ANSWER
        while (left := end - time.monotonic()) > 0:
            try:
                status = self._health.Check(request, timeout=left).status
                if status == health_pb2.HealthCheckResponse.SERVING:
                    return
                reason = calls.NOT_SERVING
            except grpc.RpcError as error:
                reason = why_not_ready(self.address, error) or reason
            time.sleep(min(0.05, max(0.0, end - time.monotonic())))
        raise UnavailableError(f"{self.address} is not ready after {timeout:g} s: {reason}")

    def close(self) -> None:
        """Closes the connection, cancels the calls that run on it, and ends the waits between attempts."""
        self._closed.set()
        for channel in self._channels:
            channel.close()

    def _ask(self, call: Call[T]) -> T:
        method, metadata = self._method(call)
        attempts = Attempts(self._retry, call.timeout, again=not call.changes)
        while True:
            try:
                with domain_errors(self.address, call.request_id):
                    return call.convert(method(call.request, timeout=attempts.seconds_left(), metadata=metadata))
            except HmcError as error:
                self._wait(attempts.wait_s(error))

    def _pieces(self, call: Call[T]) -> Generator[T, None, None]:
        """The answers of a call that has many. It is sent again until the first one has come."""
        method, metadata = self._method(call)
        attempts, begun = Attempts(self._retry, call.timeout), False
        while True:
            try:
                with domain_errors(self.address, call.request_id):
                    answers = method(call.request, timeout=attempts.seconds_left(), metadata=metadata)
                    try:
                        for message in answers:
                            begun = True
                            yield call.convert(message)
                        return
                    finally:
                        answers.cancel()
            except HmcError as error:
                if begun:
                    raise
                self._wait(attempts.wait_s(error))

    def _method(self, call: Call[Any]) -> tuple[Any, tuple[tuple[str, str], ...]]:
        """The method of gRPC, and the metadata to send."""
        stub = self._admin if call.changes else next(self._turns)
        return getattr(stub, call.method), self._connection.metadata_of(call)

    def _wait(self, seconds: float) -> None:
        self._closed.wait(seconds)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
