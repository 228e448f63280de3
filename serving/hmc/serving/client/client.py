"""A synchronous client: a method for each call of the service, and an HmcError for each status."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hmc.artifact.errors import InvalidRequestError, UnavailableError
from hmc.serving.client.errors import domain_errors, status_of
from hmc.serving.client.stream import ClientStream
from hmc.serving.requests.answers import Answer, LevelInfo, LevelList, StreamAnswer
from hmc.serving.requests.checks import check_list, check_text
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.requests.results import Partial
from hmc.serving.requests.selectors import Selector
from hmc.serving.wire import level_messages as level_converters
from hmc.serving.wire import messages as converters
from hmc.serving.wire.limits import MAX_MESSAGE_BYTES, check_address, check_token
from hmc.serving.wire.tls import read_authorities, read_pair
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

Level = str | Selector | None
"""A level's name, a selector, or None for the server's default level."""
MAX_TIMEOUT_S = 1e9
"""A timeout of more seconds than this means no timeout: gRPC cannot represent much larger ones."""
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),  # the server refuses what is too large, with a clear error
)


class Client:
    """A connection to one server; use it in a `with` block. Thread-safe.

    Every method raises the HmcError that belongs to the server's status, with the server's message. It raises
    UnavailableError if the server cannot be reached, DeadlineExceededError if the answer takes more than `timeout`
    seconds (None: no limit), and InvalidRequestError if `timeout` is not above 0.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls_ca: Path | str | None = None,
        tls_pair: tuple[Path, Path] | None = None,
    ) -> None:
        """address: `host:port`, or a gRPC name such as `unix:PATH`. token: sent with every call as a bearer token.
        tls_ca: PEM file of the authorities to trust; "" trusts those of the system; None connects without TLS.
        tls_pair: PEM files of the client's certificate chain and its key, for a server that asks for them (mutual TLS).

        Connects at the first call. Raises InvalidRequestError if the address or the token is malformed, and if a PEM
        file cannot be used.
        """
        check_address(address)
        if token:
            check_token(token)
        self.address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        if tls_ca is None:
            if tls_pair is not None:
                raise InvalidRequestError("a client certificate needs TLS: give tls_ca too")
            self._channel = grpc.insecure_channel(address, OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(_read_authorities(tls_ca), *read_pair(tls_pair))
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
        """Translates all texts in one call, or raises an error that names the text at fault.

        level: a level's name, a selector, or None for the server's default level. target_prefixes: the beginning of
        each translation; either none, or one for each text.
        """
        check_list(texts, "texts")
        check_list(target_prefixes, "target_prefixes")
        request = pb.TranslateRequest(texts=texts, target_prefixes=target_prefixes, **_settings(level, options))
        with domain_errors(self.address):
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
        """Scores a given translation (reference) of each text in one call; see `Translator.score`."""
        check_list(texts, "texts")
        check_list(references, "references")
        request = pb.ScoreRequest(texts=texts, references=references, **_settings(level, options))
        with domain_errors(self.address):
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
        """Yields each piece of a translation as soon as it is certain, and the whole translation last.

        See `Translator.stream`. Leaving the iteration early cancels the call.
        """
        check_text(text, "text")
        check_text(target_prefix, "target_prefix")
        request = pb.TranslateTokensRequest(text=text, target_prefix=target_prefix, **_settings(level, options))
        with domain_errors(self.address):
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
        """Translates texts while they are read, with at most `in_flight` of them unanswered.

        Yields the answers in the order of the texts, or as they arrive if not `in_order`. target_prefixes: the
        beginning of each translation, one for each text. An error in one text is part of its answer. An error that
        `texts` raises, or that ends the whole stream, is raised here. Leaving the iteration early cancels the call.
        """
        stream = ClientStream(texts, target_prefixes, _settings(level, options), in_flight)
        try:
            with domain_errors(self.address):
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
        """Lists the levels of the server's bundle, loaded or not, from the best to the cheapest."""
        with domain_errors(self.address):
            response = self._translation.ListLevels(
                pb.ListLevelsRequest(), timeout=_seconds(timeout), metadata=self._metadata
            )
        return level_converters.levels_from_proto(response)

    def load_level(self, name: str, timeout: float | None = None) -> LevelInfo:
        """Loads a level of the server's bundle, and returns its description when it serves."""
        check_text(name, "level")
        with domain_errors(self.address):
            request = pb.LoadLevelRequest(name=name)
            response = self._admin.LoadLevel(request, timeout=_seconds(timeout), metadata=self._metadata)
        return level_converters.level_from_proto(response.level)

    def unload_level(self, name: str, timeout: float | None = None) -> LevelInfo:
        """Takes a level out of service, and returns its description when its last request has ended and it is freed."""
        check_text(name, "level")
        with domain_errors(self.address):
            request = pb.UnloadLevelRequest(name=name)
            response = self._admin.UnloadLevel(request, timeout=_seconds(timeout), metadata=self._metadata)
        return level_converters.level_from_proto(response.level)

    def reload(self, bundle: Path | str | None = None, timeout: float | None = None) -> str:
        """Replaces the server's bundle, and returns the version of the new one when it serves.

        bundle: a path on the server's machine; None reads the path of the current bundle again.
        """
        path = str(bundle) if bundle is not None else None
        check_text(path or "", "bundle")
        with domain_errors(self.address):
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
                reason = status_of(error)[1]
            time.sleep(min(0.05, max(0.0, end - time.monotonic())))
        raise UnavailableError(f"{self.address} is not ready after {timeout:g} s: {reason}")

    def close(self) -> None:
        """Closes the connection and cancels the calls that run on it."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _seconds(timeout: float | None) -> float | None:
    if timeout is not None and not timeout > 0:  # also refuses NaN
        raise InvalidRequestError(f"timeout {timeout:g}: choose more than 0 seconds, or leave it out")
    return None if timeout is not None and timeout > MAX_TIMEOUT_S else timeout


def _settings(level: Level, options: DecodeOptions | None) -> dict[str, Any]:
    return {
        "level": converters.selector_to_proto(Selector.of(level)),
        "options": converters.options_to_proto(options or DecodeOptions()),
    }


def _read_authorities(path: Path | str) -> bytes | None:
    return None if path == "" else read_authorities(Path(path))
