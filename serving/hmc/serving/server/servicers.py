"""The gRPC services. Each method converts the request, calls a handler, and converts the answer. The interceptor turns
errors into statuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from hmc.artifact.errors import HmcError
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.requests.options import Target, scoring_options, targets_of
from hmc.serving.server.access.entry import check_stream_text
from hmc.serving.server.handlers import Handlers
from hmc.serving.server.streams import StreamText, answer_each
from hmc.serving.wire import messages as converters
from hmc.serving.wire.rules import check_request, checked_settings
from hmc.serving.wire.status import new_reference
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

log = logging.getLogger(__name__)


class TranslationServicer(rpc.TranslationServiceServicer):
    """The service `hmc.v1.TranslationService`."""

    def __init__(self, handlers: Handlers, stream_window: int, closing: asyncio.Event) -> None:
        """stream_window: most texts of one stream under way. closing: set when the server drains."""
        self._handlers = handlers
        self._window = stream_window
        self._closing = closing

    async def Translate(self, request: pb.TranslateRequest, _context: object) -> pb.TranslateResponse:
        with self._handlers.record() as record:
            self._handlers.check_count(len(request.texts))
            selector, options = checked_settings(request)
            targets = targets_of(request.texts, request.target_prefixes, complete=False)
            texts = converters.text_options_from_proto(request)
            answer = await self._handlers.translate(record, request.texts, selector, options, targets, texts)
        return converters.to_proto(pb.TranslateResponse, answer)

    async def Score(self, request: pb.ScoreRequest, _context: object) -> pb.ScoreResponse:
        with self._handlers.record() as record:
            self._handlers.check_count(len(request.texts))
            check_request(request)
            selector = converters.selector_from_proto(request.level)
            options = scoring_options(converters.from_proto(DecodeOptions, request.options))
            targets = targets_of(request.texts, request.references, complete=True)
            answer = await self._handlers.translate(record, request.texts, selector, options, targets)
        return converters.to_proto(pb.ScoreResponse, answer)

    async def TranslateTokens(
        self, request: pb.TranslateTokensRequest, _context: object
    ) -> AsyncIterator[pb.TranslateTokensResponse]:
        with self._handlers.record() as record:
            check_request(request)
            selector = converters.selector_from_proto(request.level)
            options = converters.from_proto(DecodeOptions, request.options)
            target = Target(request.target_prefix)
            async for piece in self._handlers.translate_tokens(record, request.text, selector, options, target):
                yield converters.piece_to_proto(piece)

    async def TranslateDocument(
        self, request: pb.TranslateDocumentRequest, _context: object
    ) -> AsyncIterator[pb.TranslateDocumentResponse]:
        with self._handlers.record() as record:
            check_request(request)
            selector = converters.selector_from_proto(request.level)
            options = converters.from_proto(DecodeOptions, request.options)
            texts = converters.text_options_from_proto(request)
            async for piece in self._handlers.translate_document(record, request.text, selector, options, texts):
                yield converters.to_proto(pb.TranslateDocumentResponse, piece)

    async def TranslateStream(
        self, requests: AsyncIterator[pb.TranslateStreamRequest], _context: object
    ) -> AsyncIterator[pb.TranslateStreamResponse]:
        async for text in answer_each(requests, self._begin, self._window, self._closing):
            try:
                response = converters.stream_answer_to_proto(text.id, text.result())
            except Exception as error:
                reference = ""
                if not isinstance(error, HmcError):
                    reference = new_reference()
                    log.exception("unexpected error %s in TranslateStream, request %s", reference, text.call.request_id)
                response = converters.stream_error_to_proto(
                    text.id, error, reference, level=text.level, bundle_version=text.bundle_version
                )
            yield response

    async def _begin(self, request: pb.TranslateStreamRequest) -> StreamText:
        with self._handlers.stream_text(request.id) as begun:
            selector, options = checked_settings(request)
            check_stream_text(request)
            target = Target(request.target_prefix)
            within_ms = request.timeout_ms if request.HasField("timeout_ms") else None
            await self._handlers.begin_one(begun, request.text, selector, options, target, within_ms)
        return begun

    async def ListLevels(self, request: pb.ListLevelsRequest, _context: object) -> pb.ListLevelsResponse:
        check_request(request)
        return converters.levels_to_proto(await self._handlers.levels(request.model))

    async def ListModels(self, request: pb.ListModelsRequest, _context: object) -> pb.ListModelsResponse:
        check_request(request)
        return pb.ListModelsResponse(models=[converters.to_proto(pb.Model, model) for model in self._handlers.models()])


class AdminServicer(rpc.AdminServiceServicer):
    """The service `hmc.v1.AdminService`."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    async def LoadLevel(self, request: pb.LoadLevelRequest, _context: object) -> pb.LoadLevelResponse:
        check_request(request)
        level = await self._handlers.load(request.name, request.model)
        return pb.LoadLevelResponse(level=converters.level_to_proto(level))

    async def UnloadLevel(self, request: pb.UnloadLevelRequest, _context: object) -> pb.UnloadLevelResponse:
        check_request(request)
        level = await self._handlers.unload(request.name, request.model)
        return pb.UnloadLevelResponse(level=converters.level_to_proto(level))

    async def SetDefaultLevel(self, request: pb.SetDefaultLevelRequest, _context: object) -> pb.SetDefaultLevelResponse:
        check_request(request)
        level = await self._handlers.set_default(request.name, request.model)
        return pb.SetDefaultLevelResponse(level=converters.level_to_proto(level))

    async def GetStatus(self, request: pb.GetStatusRequest, _context: object) -> pb.GetStatusResponse:
        check_request(request)
        return converters.to_proto(pb.GetStatusResponse, await self._handlers.status(request.model))

    async def Reload(self, request: pb.ReloadRequest, _context: object) -> pb.ReloadResponse:
        check_request(request)
        path = Path(request.bundle_path) if request.HasField("bundle_path") else None
        levels = converters.levels_to_proto(await self._handlers.reload(path, request.model))
        return pb.ReloadResponse(bundle_version=levels.bundle_version, levels=levels.levels)
