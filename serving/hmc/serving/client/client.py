"""A synchronous client: a method for each call of the service, and an HmcError for each status."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hmc.artifact.errors import InvalidRequestError, UnavailableError
from hmc.serving.client.errors import domain_errors, status_of
from hmc.serving.client.stream import ClientStream
from hmc.serving.requests.answers import Answer, LevelInfo, LevelList, ModelInfo, StreamAnswer
from hmc.serving.requests.checks import check_list, check_text
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.requests.results import DocumentPiece, Partial
from hmc.serving.requests.selectors import Selector
from hmc.serving.requests.text_options import Segmentation, TextOptions
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

    def translate(  # noqa: PLR0913 - the fields of one message, most by name
        self,
        texts: Sequence[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        *,
        target_prefixes: Sequence[str] = (),
        segmentation: Segmentation | str = Segmentation.AUTO,
        return_segments: bool = False,
        keep: Sequence[str] = (),
        model: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Answer:
        """Translates all texts in one call, or raises an error that names the text at fault.

        level: a level's name, a selector, or None for the server's default level. target_prefixes: the beginning of
        each translation; either none, or one for each text. segmentation: "auto", "sentence" or "none", see
        `Segmentation`. return_segments: each translation has its sentences with offsets. keep: phrases that are copied.

        model: the name of a model, of a server of several. source_language, target_language: BCP 47 tags such as `de`,
        or ISO 639 codes such as `deu`; the first model that fits translates, and `target_language` chooses the target
        token of a multilingual model. They replace the same fields of a selector; None leaves them as they are.
        """
        check_list(texts, "texts")
        check_list(target_prefixes, "target_prefixes")
        settings = _settings(level, options, model, source_language, target_language)
        settings |= {**_handling(segmentation, keep), "return_segments": return_segments}
        request = pb.TranslateRequest(texts=texts, target_prefixes=target_prefixes, **settings)
        with domain_errors(self.address):
            response = self._translation.Translate(request, timeout=_seconds(timeout), metadata=self._metadata)
        return converters.answer_from_proto(response)

    def translate_document(  # noqa: PLR0913 - as above
        self,
        text: str,
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        *,
        segmentation: Segmentation | str = Segmentation.SENTENCE,
        keep: Sequence[str] = (),
        model: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Iterator[DocumentPiece]:
        """Translates a text of any length. Yields each sentence, with what is copied before it, as soon as it and all
        before it are translated. All pieces together are the translation. Leaving the iteration early cancels the call.

        The other arguments: see `translate`; the segmentation "none" is refused.
        """
        check_text(text, "text")
        settings = _settings(level, options, model, source_language, target_language)
        request = pb.TranslateDocumentRequest(text=text, **_handling(segmentation, keep), **settings)
        with domain_errors(self.address):
            call = self._translation.TranslateDocument(request, timeout=_seconds(timeout), metadata=self._metadata)
            try:
                yield from map(converters.document_piece_from_proto, call)
            finally:
                call.cancel()

    def score(
        self,
        texts: Sequence[str],
        references: Sequence[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        *,
        model: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Answer:
        """Scores a given translation (reference) of each text in one call; see `Translator.score` and `translate`."""
        check_list(texts, "texts")
        check_list(references, "references")
        settings = _settings(level, options, model, source_language, target_language)
        request = pb.ScoreRequest(texts=texts, references=references, **settings)
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
        model: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Iterator[Partial]:
        """Yields each piece of a translation as soon as it is certain, and the whole translation last.

        See `Translator.stream`. Leaving the iteration early cancels the call.
        """
        check_text(text, "text")
        check_text(target_prefix, "target_prefix")
        settings = _settings(level, options, model, source_language, target_language)
        request = pb.TranslateTokensRequest(text=text, target_prefix=target_prefix, **settings)
        with domain_errors(self.address):
            call = self._translation.TranslateTokens(request, timeout=_seconds(timeout), metadata=self._metadata)
            try:
                yield from map(converters.partial_from_proto, call)
            finally:
                call.cancel()

    def translate_stream(  # noqa: PLR0913 - all but the first three by name
        self,
        texts: Iterable[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        *,
        in_order: bool = True,
        in_flight: int = 256,
        target_prefixes: Iterable[str] | None = None,
        timeout: float | None = None,
        model: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Iterator[StreamAnswer]:
        """Translates texts while they are read, with at most `in_flight` of them unanswered.

        Yields the answers in the order of the texts, or as they arrive if not `in_order`. target_prefixes: the
        beginning of each translation, one for each text. An error in one text is part of its answer. An error that
        `texts` raises, or that ends the whole stream, is raised here. Leaving the iteration early cancels the call.
        """
        settings = _settings(level, options, model, source_language, target_language)
        stream = ClientStream(texts, target_prefixes, settings, in_flight)
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

    def models(self, timeout: float | None = None) -> tuple[ModelInfo, ...]:
        """Lists the models of the server. The first one translates for calls that choose none."""
        with domain_errors(self.address):
            response = self._translation.ListModels(
                pb.ListModelsRequest(), timeout=_seconds(timeout), metadata=self._metadata
            )
        return level_converters.models_from_proto(response)

    def levels(self, timeout: float | None = None, *, model: str | None = None) -> LevelList:
        """Lists the levels of a model (None: the server's first one), loaded or not, from the best to the cheapest."""
        with domain_errors(self.address):
            response = self._translation.ListLevels(
                pb.ListLevelsRequest(model=model), timeout=_seconds(timeout), metadata=self._metadata
            )
        return level_converters.levels_from_proto(response)

    def load_level(self, name: str, timeout: float | None = None, *, model: str | None = None) -> LevelInfo:
        """Loads a level of a model (None: the server's first one), and returns its description when it serves."""
        check_text(name, "level")
        with domain_errors(self.address):
            request = pb.LoadLevelRequest(name=name, model=model)
            response = self._admin.LoadLevel(request, timeout=_seconds(timeout), metadata=self._metadata)
        return level_converters.level_from_proto(response.level)

    def unload_level(self, name: str, timeout: float | None = None, *, model: str | None = None) -> LevelInfo:
        """Takes a level out of service, and returns its description when its last request has ended and it is freed."""
        check_text(name, "level")
        with domain_errors(self.address):
            request = pb.UnloadLevelRequest(name=name, model=model)
            response = self._admin.UnloadLevel(request, timeout=_seconds(timeout), metadata=self._metadata)
        return level_converters.level_from_proto(response.level)

    def set_default_level(self, name: str, timeout: float | None = None, *, model: str | None = None) -> LevelInfo:
        """Makes a loaded level the one that serves calls which choose none, until the next reload."""
        check_text(name, "level")
        with domain_errors(self.address):
            request = pb.SetDefaultLevelRequest(name=name, model=model)
            response = self._admin.SetDefaultLevel(request, timeout=_seconds(timeout), metadata=self._metadata)
        return level_converters.level_from_proto(response.level)

    def reload(
        self, bundle: Path | str | None = None, timeout: float | None = None, *, model: str | None = None
    ) -> str:
        """Replaces the bundle of a model, and returns the version of the new one when it serves.

        bundle: a path on the server's machine; None reads the path of the current bundle again.
        """
        path = str(bundle) if bundle is not None else None
        check_text(path or "", "bundle")
        with domain_errors(self.address):
            request = pb.ReloadRequest(bundle_path=path, model=model)
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


def _settings(
    level: Level,
    options: DecodeOptions | None,
    model: str | None,
    source_language: str | None,
    target_language: str | None,
) -> dict[str, Any]:
    selector = Selector.of(level)
    selector = replace(
        selector,
        model=selector.model if model is None else model,
        source_language=selector.source_language if source_language is None else source_language,
        target_language=selector.target_language if target_language is None else target_language,
    )
    return {
        "level": converters.selector_to_proto(selector),
        "options": converters.options_to_proto(options or DecodeOptions()),
    }


def _handling(segmentation: Segmentation | str, keep: Sequence[str]) -> dict[str, Any]:
    try:
        chosen = Segmentation(segmentation)
    except ValueError:
        names = ", ".join(each.value for each in Segmentation)
        raise InvalidRequestError(f"segmentation {segmentation!r}: choose {names}") from None
    check_list(keep, "keep")
    return {"segmentation": converters.segmentation_to_proto(chosen), "keep": TextOptions(keep=tuple(keep)).keep}


def _read_authorities(path: Path | str) -> bytes | None:
    return None if path == "" else read_authorities(Path(path))
