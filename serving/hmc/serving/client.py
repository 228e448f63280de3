"""A synchronous client: the service's calls as methods, its statuses as the domain's errors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hmc.artifact.errors import InvalidRequestError, UnavailableError
from hmc.serving.answers import Answer, LevelInfo, LevelList, StreamAnswer
from hmc.serving.client_stream import ClientStream
from hmc.serving.options import DecodeOptions, check_list, check_text
from hmc.serving.results import Partial
from hmc.serving.selection import Selector
from hmc.serving.server import converters, level_converters
from hmc.serving.server.settings import MAX_MESSAGE_BYTES, check_address, check_token
from hmc.serving.status import error_of
from hmc.serving.tls import read_authorities
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

Level = str | Selector | None
"""A level's name, a selector, or None for the server's default level."""
LONGEST_S = 1e9
"""Seconds beyond which a timeout is none; gRPC's own numbers end soon after."""
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),  # the server says what is too large
)


class Client:
    """Talks to one server; use it in a `with` block, from any thread.

    Every method raises the HmcError that the server's status stands for, with the server's message: UnavailableError
    where there is no server, DeadlineExceededError when `timeout` seconds pass first, InvalidRequestError for a timeout
    that is not more than 0.
    """

    def __init__(self, address: str, *, token: str | None = None, tls_ca: Path | str | None = None) -> None:
        """`address` is `host:port`, or a gRPC name such as `unix:PATH`. `tls_ca` is a PEM file of the authorities to
        trust, "" for the system's own, None for a connection without TLS. Raises InvalidRequestError for what cannot be
        an address, if that file cannot be read or is not one, and for a token that cannot be sent."""
        check_address(address)
        if token:
            check_token(token)
        self.address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        if tls_ca is None:
            self._channel = grpc.insecure_channel(address, OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(_read_authorities(tls_ca))
            self._channel = grpc.secure_channel(address, credentials, OPTIONS)
        self._translation = rpc.TranslationServiceStub(self._channel)
        self._admin = rpc.AdminServiceStub(self._channel)
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)

    def translate(
        self,
        texts: Sequence[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        *,
        target_prefixes: Sequence[str] = (),
    ) -> Answer:
        """All texts in one call, or an error that names the one it is about. target_prefixes: how each translation
        begins; none, or one for each text."""
        check_list(texts, "texts")
        check_list(target_prefixes, "target_prefixes")
        request = pb.TranslateRequest(texts=texts, target_prefixes=target_prefixes, **_how(level, options))
        with _domain_errors(self.address):
            response = self._translation.Translate(request, timeout=_seconds(timeout), metadata=self._metadata)
        return converters.answer_from_proto(response)

    def score(
        self,
        texts: Sequence[str],
        references: Sequence[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Scores a given translation of each text; see `Translator.score`."""
        check_list(texts, "texts")
        check_list(references, "references")
        request = pb.ScoreRequest(texts=texts, references=references, **_how(level, options))
        with _domain_errors(self.address):
            response = self._translation.Score(request, timeout=_seconds(timeout), metadata=self._metadata)
        return converters.answer_from_proto(response)

    def translate_tokens(
        self,
        text: str,
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        *,
        target_prefix: str = "",
    ) -> Iterator[Partial]:
        """What is certain of one translation as soon as it is, and at last all of it; see `Translator.stream`."""
        check_text(text, "text")
        check_text(target_prefix, "target_prefix")
        request = pb.TranslateTokensRequest(text=text, target_prefix=target_prefix, **_how(level, options))
        with _domain_errors(self.address):
            call = self._translation.TranslateTokens(request, timeout=_seconds(timeout), metadata=self._metadata)
            try:
                yield from map(converters.partial_from_proto, call)
            finally:
                call.cancel()

    def translate_stream(
        self,
        texts: Iterable[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        *,
        in_order: bool = True,
        in_flight: int = 256,
        target_prefixes: Iterable[str] | None = None,
        timeout: float | None = None,
    ) -> Iterator[StreamAnswer]:
        """Answers as texts come, with at most `in_flight` of them unanswered: in the order of the texts, or with
        `in_order` False each as soon as it is ready. `target_prefixes` go with the texts one by one. An error in one
        text is in its answer; one of `texts` itself, and of the whole stream, is raised."""
        stream = ClientStream(texts, target_prefixes, _how(level, options), in_flight)
        try:
            with _domain_errors(self.address):
                call = self._translation.TranslateStream(
                    stream.requests(), timeout=_seconds(timeout), metadata=self._metadata
                )
                try:
                    yield from stream.answers(call, in_order)
                finally:
                    call.cancel()
        finally:
            stream.close()
        if stream.error is not None:
            raise stream.error

    def levels(self, timeout: float | None = None) -> LevelList:
        """The levels of the server's bundle, from the best to the cheapest."""
        with _domain_errors(self.address):
            response = self._translation.ListLevels(
                pb.ListLevelsRequest(), timeout=_seconds(timeout), metadata=self._metadata
            )
        return level_converters.levels_from_proto(response)

    def load_level(self, name: str, timeout: float | None = None) -> LevelInfo:
        """Loads a level of the server's bundle; returns when it serves."""
        check_text(name, "level")
        with _domain_errors(self.address):
            request = pb.LoadLevelRequest(name=name)
            response = self._admin.LoadLevel(request, timeout=_seconds(timeout), metadata=self._metadata)
        return level_converters.level_from_proto(response.level)

    def unload_level(self, name: str, timeout: float | None = None) -> LevelInfo:
        """Frees a level after it has finished its work."""
        check_text(name, "level")
        with _domain_errors(self.address):
            request = pb.UnloadLevelRequest(name=name)
            response = self._admin.UnloadLevel(request, timeout=_seconds(timeout), metadata=self._metadata)
        return level_converters.level_from_proto(response.level)

    def reload(self, bundle: Path | str | None = None, timeout: float | None = None) -> str:
        """Puts the bundle at this path of the server's machine (None: the same path, read again) in place of the
        current one; returns the version that serves then."""
        path = str(bundle) if bundle is not None else None
        check_text(path or "", "bundle")
        with _domain_errors(self.address):
            request = pb.ReloadRequest(bundle_path=path)
            response = self._admin.Reload(request, timeout=_seconds(timeout), metadata=self._metadata)
        return str(response.bundle_version)

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Returns when the server's health is SERVING. Raises UnavailableError after `timeout` seconds."""
        end = time.monotonic() + timeout
        request = health_pb2.HealthCheckRequest(service="hmc.v1.TranslationService")
        reason = "its health is not SERVING yet"
        while (left := end - time.monotonic()) > 0:
            try:
                status = self._health.Check(request, timeout=left, wait_for_ready=True).status
                if status == health_pb2.HealthCheckResponse.SERVING:
                    return
                reason = "its health is not SERVING yet"
            except grpc.RpcError as error:
                reason = _status(error)[1]
            time.sleep(min(0.05, max(0.0, end - time.monotonic())))
        raise UnavailableError(f"{self.address} is not ready after {timeout:g} s: {reason}")

    def close(self) -> None:
        """Ends the connection and what is under way on it."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _seconds(timeout: float | None) -> float | None:
    if timeout is not None and not timeout > 0:  # NaN is not
        raise InvalidRequestError(f"timeout {timeout:g}: choose more than 0 seconds, or leave it out")
    return None if timeout is not None and timeout > LONGEST_S else timeout


def _how(level: Level, options: DecodeOptions | None) -> dict[str, Any]:
    return {
        "level": converters.selector_to_proto(Selector.of(level)),
        "options": converters.options_to_proto(options or DecodeOptions()),
    }


def _read_authorities(path: Path | str) -> bytes | None:
    return None if path == "" else read_authorities(Path(path))


@contextmanager
def _domain_errors(address: str) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        code, message = _status(error)
        if code is grpc.StatusCode.UNAVAILABLE:
            message = f"{address}: {message}"
            if "connect" in message:
                message += "; is `hmc serve` running there, and does it speak TLS exactly if you do?"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            message = f"{address} gave no answer in time; allow more, send less, or choose a level with fewer heads"
        raise error_of(code, message) from error
    except ValueError as error:  # gRPC's word for a channel that was closed
        if "closed" not in str(error):
            raise
        raise UnavailableError(f"this client of {address} is closed: open another one") from error


def _status(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    call: Any = error  # every RpcError that a call raises is the call itself
    return call.code(), call.details() or "no reason given"
