"""How an RPC's status, details and trailers become an HTTP answer, and what an RPC without code answers."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import grpc
import httpx
from prometheus_client import CollectorRegistry

from hmc.artifact.errors import InvalidRequestError, Violation
from hmc.serving.http.app import application
from hmc.serving.http.methods import Methods
from hmc.serving.wire.status import HTTP_STATUS, trailers_of
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc


class Refusing(rpc.TranslationServiceServicer, rpc.AdminServiceServicer):
    """Refuses in ways that are hard to bring about. It is called without the edge that turns errors into statuses."""

    async def SetDefaultLevel(self, request: pb.SetDefaultLevelRequest, context: Any) -> pb.SetDefaultLevelResponse:
        error = InvalidRequestError(f"not {request.name}", [Violation("name", "is odd")])
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error), trailers_of(error, str(error)))
        raise AssertionError("abort returned")

    async def Score(self, _request: pb.ScoreRequest, context: Any) -> pb.TranslateResponse:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "later", (("grpc-retry-pushback-ms", "2400"),))
        raise AssertionError("abort returned")


def undressed(_name: str, handler: Any) -> Any:
    """Decodes requests, as the server's edge does, and no more. None for a method that a servicer does not have."""
    if not inspect.iscoroutinefunction(handler.unary_unary):
        return None

    async def call(data: bytes, context: Any) -> Any:
        return await handler.unary_unary(await handler.request_deserializer(data), context)

    return grpc.unary_unary_rpc_method_handler(call)


def ask(verb: str, path: str, **request: Any) -> httpx.Response:
    """Asks an application in this process."""
    methods = Methods(undressed)
    rpc.add_TranslationServiceServicer_to_server(Refusing(), methods)
    rpc.add_AdminServiceServicer_to_server(Refusing(), methods)
    app = application(methods, CollectorRegistry(), lambda: None, False)

    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.request(verb, path, **request)

    return asyncio.run(call())


def test_details_of_a_status_and_when_to_retry() -> None:
    answer = ask("POST", "/v1/admin/set-default-level", json={"name": "h1"})
    assert (answer.status_code, "retry-after" in answer.headers) == (400, False)
    said = answer.json()
    assert (said["code"], said["message"]) == ("INVALID_ARGUMENT", "not h1")
    violations = [{"field": "name", "description": "is odd"}]
    assert said["details"] == [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]
    pushed = ask("POST", "/v1/score", json={})
    assert (pushed.status_code, pushed.headers["retry-after"]) == (503, "3")


def test_an_rpc_without_code_is_501() -> None:
    answer = ask("POST", "/v1/admin/reload", json={})
    assert (answer.status_code, answer.json()["code"]) == (501, "UNIMPLEMENTED")


def test_every_status_has_an_http_status() -> None:
    assert set(HTTP_STATUS) == set(grpc.StatusCode)
