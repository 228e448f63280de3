"""The JSON twins of the RPCs: which path is the twin of which RPC, and what answers there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.http.bodies import (
    JSON,
    MAX_BODY_BYTES,
    Body,
    check_type,
    json_of,
    message_from_data,
    read_message,
)
from hmc.serving.http.call import PlainCall
from hmc.serving.http.exchange import EVENTS, LINES, Answers, BodyLine, Lines, gone, unless
from hmc.serving.http.methods import Given, Methods
from hmc.v1 import translation_pb2 as pb

ADMIN = "AdminService"
PATHS = {
    "Translate": "translate",
    "TranslateStream": "stream",
    "TranslateTokens": "tokens",
    "TranslateDocument": "document",
    "Score": "score",
    "ListLevels": "levels",
    "ListModels": "models",
}
"""RPC → the last part of its path; other RPCs have their name with hyphens."""


@dataclass(frozen=True)
class Twin:
    """One RPC over HTTP."""

    method: MethodDescriptor
    verb: str
    """GET for lists, POST for everything else."""
    path: str

    @property
    def streams_answers(self) -> bool:
        """Whether the RPC gives several answers."""
        return bool(self.method.server_streaming)

    @property
    def streams_requests(self) -> bool:
        """Whether the RPC takes several requests."""
        return bool(self.method.client_streaming)


def twins() -> list[Twin]:
    """The twins of all RPCs of the protocol."""
    services: list[ServiceDescriptor] = list(pb.DESCRIPTOR.services_by_name.values())
    return [_twin(service, method) for service in services for method in service.methods]


def _twin(service: ServiceDescriptor, method: MethodDescriptor) -> Twin:
    hyphened = re.sub(r"(?<!^)(?=[A-Z])", "-", method.name).lower()
    if service.name == ADMIN:
        return Twin(method, "POST", f"/v1/admin/{hyphened}")
    verb = "GET" if method.name.startswith("List") else "POST"
    return Twin(method, verb, f"/v1/{PATHS.get(method.name, hyphened)}")


def twin_routes(methods: Methods) -> list[Route]:
    """A route for every RPC of the services that the server has."""
    return [_route(methods, twin) for twin in twins() if methods.has(twin.method.containing_service)]


def _route(methods: Methods, twin: Twin) -> Route:
    async def one(request: Request) -> Response:
        call = PlainCall.from_request(request)
        given, left = _given(request, twin)
        answer = await unless(left, methods.unary(twin.method, given, call))
        return await _json(answer, call)

    async def several(request: Request) -> Response:
        call = PlainCall.from_request(request)
        given, left = _given(request, twin)
        answers = methods.answers(twin.method, given, call)
        if EVENTS in request.headers.get("accept", ""):
            context = copy_context()
            first = await unless(left, _first(answers), context)
            return Answers(first, answers, EVENTS, call.headers(), gone(request), context)
        return await _json(await unless(left, _together(answers)), call)

    async def stream(request: Request) -> Response:
        check_type(request, LINES)
        call = PlainCall.from_request(request)
        kind = twin.method.input_type
        sent = Lines(request, MAX_BODY_BYTES)
        answers = methods.stream(twin.method, aiter(sent), lambda line: _parse_line(line, kind), call)
        context = copy_context()
        first = await unless(sent.disconnected(), _first(answers), context)
        return Answers(first, answers, LINES, call.headers(), sent.disconnected(), context, sent)

    endpoint = one
    if twin.streams_requests:
        endpoint = stream
    elif twin.streams_answers:
        endpoint = several
    return Route(twin.path, endpoint, methods=[twin.verb])


async def _parse_line(line: bytes, kind: Descriptor) -> Message:
    """The message of a line. Raises InvalidRequestError, which names the line."""
    assert isinstance(line, BodyLine)
    if line.is_cut:
        raise InvalidRequestError(f"line {line.number} is longer than {MAX_BODY_BYTES // 2**20} MiB: split its text")
    try:
        return await read_message(line, kind)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"line {line.number}: {error}") from error


def _given(request: Request, twin: Twin) -> tuple[Given, Coroutine[Any, Any, None]]:
    """What reads the message of a request, and what returns when the client leaves. Raises HttpError if the body is not
    declared as JSON."""
    kind = twin.method.input_type
    body = Body(request)

    async def sent() -> Message:
        return await read_message(await body.read(), kind)

    async def asked() -> Message:
        values = dict(request.query_params)
        if len(values) < len(request.query_params.multi_items()):
            raise InvalidRequestError("a parameter is given twice")
        return message_from_data(values, kind)

    if twin.verb != "POST":
        return asked, gone(request)
    check_type(request, JSON)
    return sent, body.disconnected()


async def _json(answer: Message, call: PlainCall) -> Response:
    return Response(await json_of(answer), media_type="application/json", headers=call.headers())


async def _first(answers: AsyncIterator[Message]) -> Message | None:
    return await anext(answers, None)


async def _together(answers: AsyncIterator[Message]) -> Message:
    """All answers as one message: of tokens, the last, which has the whole; of a document, all texts and segments."""
    async with aclosing(answers):  # type: ignore[type-var]  # they are generators
        got = [answer async for answer in answers]
    if got and isinstance(got[-1], pb.TranslateTokensResponse):
        return got[-1].done
    return await asyncio.to_thread(_joined, [one for one in got if isinstance(one, pb.TranslateDocumentResponse)])


def _joined(parts: list[pb.TranslateDocumentResponse]) -> Message:
    """The answer of Translate that has the same translation: a document is one text."""
    segments = [part.segment for part in parts if part.HasField("segment")]
    tokens = sum(segment.target_tokens for segment in segments)
    whole = pb.Translation(
        text="".join(part.text for part in parts),
        score=sum(segment.score * segment.target_tokens for segment in segments) / max(1, tokens),
        segments=segments,
        source_tokens=sum(segment.source_tokens for segment in segments),
        target_tokens=tokens,
        hit_max_length=any(segment.hit_max_length for segment in segments),
        much_shorter=any(segment.much_shorter for segment in segments),
        mostly_unknown=any(segment.mostly_unknown for segment in segments),
        joined_lines=sum(segment.joined_lines for segment in segments),
    )
    served = next((part for part in parts if part.level), pb.TranslateDocumentResponse())
    return pb.TranslateResponse(translations=[whole], level=served.level, bundle_version=served.bundle_version)
