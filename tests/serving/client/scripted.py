"""A real server on a real socket that fails as a test has written down."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from hmc.serving.wire.metadata import KEY, TRAILER
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

SERVICE = "hmc.v1.TranslationService"


@dataclass
class Failure:
    """A status. after: answers that the call gives before it."""

    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    pushback_ms: int | None = None
    after: int = 0


@dataclass
class Script(rpc.TranslationServiceServicer, rpc.AdminServiceServicer):
    """Call by call, how calls fail. When the failures are used up, calls succeed: a text `a` becomes `NAME:a`."""

    name: str = "server"
    failures: list[Failure] = field(default_factory=list)
    seen: list[list[str]] = field(default_factory=list)
    """The texts that each call sent, as far as they were read."""
    ids: list[str] = field(default_factory=list)
    """The request id of each call."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def _begin(self, context: Any, texts: list[str]) -> Failure | None:
        with self.lock:
            self.ids.append(dict(context.invocation_metadata()).get(KEY, ""))
            self.seen.append(texts)
            return self.failures.pop(0) if self.failures else None

    def _fail(self, context: Any, failure: Failure) -> None:
        if failure.pushback_ms is not None:
            context.set_trailing_metadata(((TRAILER, str(failure.pushback_ms)),))
        context.abort(failure.code, "as written down")

    def Translate(self, request: Any, context: Any) -> Any:
        failure = self._begin(context, list(request.texts))
        if failure is not None:
            self._fail(context, failure)
        return pb.TranslateResponse(translations=[self._translated(text) for text in request.texts], level="full")

    def TranslateDocument(self, request: Any, context: Any) -> Iterator[Any]:
        failure = self._begin(context, [request.text])
        for index, word in enumerate(request.text.split()):
            if failure is not None and index == failure.after:
                self._fail(context, failure)
            yield pb.TranslateDocumentResponse(text=word)

    def TranslateStream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        texts: list[str] = []
        failure = self._begin(context, texts)
        for index, request in enumerate(requests):
            texts.append(request.text)
            if failure is not None and index == failure.after:
                self._fail(context, failure)
            yield pb.TranslateStreamResponse(id=request.id, translation=self._translated(request.text), level="full")

    def LoadLevel(self, request: Any, context: Any) -> Any:
        failure = self._begin(context, [request.name])
        if failure is not None:
            self._fail(context, failure)
        return pb.LoadLevelResponse(level=pb.Level(name=request.name))

    def _translated(self, text: str) -> Any:
        return pb.Translation(text=f"{self.name}:{text}")


class ScriptedServer:
    """Serves a script on a free port while its `with` block runs."""

    def __init__(self, script: Script) -> None:
        self.script, self.health = script, health.HealthServicer()
        self._server = grpc.server(ThreadPoolExecutor(8))
        rpc.add_TranslationServiceServicer_to_server(script, self._server)
        rpc.add_AdminServiceServicer_to_server(script, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.serving(True)
        self.address = f"localhost:{self._server.add_insecure_port('localhost:0')}"

    def serving(self, yes: bool) -> None:
        """Sets the health."""
        status = health_pb2.HealthCheckResponse
        self.health.set(SERVICE, status.SERVING if yes else status.NOT_SERVING)

    def __enter__(self) -> ScriptedServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
