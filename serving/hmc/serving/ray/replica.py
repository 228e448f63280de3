"""One replica: the levels of the bundles, calls as in the plain server, and how many replicas there should be. Ray
makes it in a process of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from hmc.artifact.errors import UnavailableError
from hmc.engine.runtime.process_memory import limit_heaps
from hmc.serving.http.call import HttpError, PlainCall
from hmc.serving.http.methods import Methods, path_of
from hmc.serving.levels.models import parse_models
from hmc.serving.levels.slots import TranslatorFactory
from hmc.serving.ray.registering import TRANSLATION
from hmc.serving.requests.call import PresentCall
from hmc.serving.server.access.entry import Entry
from hmc.serving.server.access.gate import AccessGate
from hmc.serving.server.app import open_models
from hmc.serving.server.edge import Edge
from hmc.serving.server.handlers import Handlers
from hmc.serving.server.health import model_health
from hmc.serving.server.observing.calls import CallLog
from hmc.serving.server.observing.logs import set_up
from hmc.serving.server.observing.metrics import Metrics
from hmc.serving.server.servicers import TranslationServicer
from hmc.serving.server.settings import ServerSettings
from hmc.v1 import translation_pb2_grpc as rpc

log = logging.getLogger(__name__)

PENDING = "pending_texts"
"""What a replica tells Ray for scaling: texts that wait or run at all levels."""


class Replica:
    """What Ray calls. Methods have the names of the service's methods. A request is bytes."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, bundles: Sequence[str], settings: ServerSettings, _versions: Sequence[str]
    ) -> None:
        """Loads the levels. _versions: of the bundles; Ray starts new replicas when an argument changes.

        Raises as `open_models` and `Models.start`: the replica then does not start, and says why.
        """
        limit_heaps()
        set_up(settings.log_format, texts=settings.log_texts)
        self._models = open_models(parse_models(bundles), settings, self.factory())
        self._gate = AccessGate(settings.token, settings.tokens)
        metrics = Metrics(self._models.statuses, lambda: self._failure() is None, lambda: False)
        log_of_calls = CallLog(calls=settings.log_calls, texts=settings.log_texts, traces=None)

        def ended(call: PresentCall, code: grpc.StatusCode, error: BaseException | None) -> None:
            metrics.call(call, code, error)
            log_of_calls.end(call, code)

        self._methods = Methods(Edge(Entry(self._gate, lambda: None, log_of_calls), ended).wrap)
        handlers = Handlers(self._models, settings, metrics)
        servicer = TranslationServicer(handlers, settings.stream_window, asyncio.Event())
        rpc.add_TranslationServiceServicer_to_server(servicer, self._methods)
        await asyncio.to_thread(self._models.start)

    def factory(self) -> TranslatorFactory | None:
        """Loads the translators of levels. None: loads real translators."""
        return None

    def __del__(self) -> None:
        self._models.close(False)

    # ---- what Ray asks ----

    def check_health(self) -> None:
        """Raises an error if a level that should serve does not. Ray then replaces the replica."""
        self._gate.refresh()
        if failure := self._failure():
            raise UnavailableError(failure)

    def record_autoscaling_stats(self) -> dict[str, int]:
        """What the scaling policy reads."""
        return {PENDING: sum(level.pending for status in self._models.statuses() for level in status.levels)}

    def _failure(self) -> str | None:
        return next((host.failure for host in self._models.hosts if host.eager and host.failure), None)

    # ---- hmc.v1.TranslationService ----

    async def Translate(self, data: bytes, grpc_context: Any) -> Message:
        return await self._unary("Translate", data, grpc_context)

    async def Score(self, data: bytes, grpc_context: Any) -> Message:
        return await self._unary("Score", data, grpc_context)

    async def ListLevels(self, data: bytes, grpc_context: Any) -> Message:
        return await self._unary("ListLevels", data, grpc_context)

    async def ListModels(self, data: bytes, grpc_context: Any) -> Message:
        return await self._unary("ListModels", data, grpc_context)

    async def TranslateTokens(self, data: bytes, grpc_context: Any) -> AsyncIterator[Message]:
        async for answer in self._answers("TranslateTokens", data, grpc_context):
            yield answer

    async def TranslateDocument(self, data: bytes, grpc_context: Any) -> AsyncIterator[Message]:
        async for answer in self._answers("TranslateDocument", data, grpc_context):
            yield answer

    async def TranslateStream(self, requests: AsyncIterator[bytes], grpc_context: Any) -> AsyncIterator[Message]:
        async for answer in self._answers("TranslateStream", requests, grpc_context):
            yield answer

    async def _unary(self, name: str, data: bytes, ray: Any) -> Message:
        return await unary(self._methods, TRANSLATION.methods_by_name[name], data, ray)

    def _answers(self, name: str, sent: Any, ray: Any) -> AsyncIterator[Message]:
        return answers(self._methods, TRANSLATION.methods_by_name[name], sent, ray)

    # ---- grpc.health.v1.Health ----

    async def Check(self, data: bytes, grpc_context: Any) -> Message:
        """Whether a service, model or level serves; see the names of the plain server."""
        name = health_pb2.HealthCheckRequest.FromString(data).service
        serves = model_health(self._models).get(name)
        if serves is None:
            grpc_context.set_code(grpc.StatusCode.NOT_FOUND)
            return health_pb2.HealthCheckResponse()
        status = health_pb2.HealthCheckResponse.SERVING if serves else health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=status)


RayContext = Any
"""`ray.serve.grpc_util.RayServegRPCContext`"""


async def unary(methods: Methods, method: MethodDescriptor, data: bytes, ray: RayContext) -> Message:
    """The answer of a call with one answer, made through the same edge as calls of the plain server.

    Ray drops the trailers of a method that raises. So a call never raises. Its status is set in the context, and it
    returns an empty message.
    """
    call = _call(ray)
    answer: Message = Empty()
    with _statuses(call, ray):
        answer = await methods.handler(path_of(method)).unary_unary(data, call)
    return answer  # noqa: RET504 - empty if the call failed


async def answers(methods: Methods, method: MethodDescriptor, sent: Any, ray: RayContext) -> AsyncIterator[Message]:
    """The answers of a call with many answers; see `unary`. sent: the request as bytes, or an iterator of requests."""
    call = _call(ray)
    handler = methods.handler(path_of(method))
    behaviour = handler.stream_stream if method.client_streaming else handler.unary_stream
    with _statuses(call, ray):
        async for answer in behaviour(sent, call):
            yield answer


def _call(ray: RayContext) -> PlainCall:
    """The call, with the peer and the metadata that Ray knows. Ray does not say the deadline: it cancels the call when
    it passes."""
    return PlainCall(ray.peer(), tuple(ray.invocation_metadata()))


@contextmanager
def _statuses(call: PlainCall, ray: RayContext) -> Iterator[None]:
    """Tells Ray how the call in the `with` block ended."""
    try:
        yield
    except HttpError as error:
        ray.set_code(error.code)
        ray.set_details(error.message)
    ray.set_trailing_metadata(list(call.trailers.items()))


class QueuedTexts:
    """Ray's scaling policy. Ray applies its delays and bounds to the number that it returns."""

    def __init__(self, target: float) -> None:
        """target: texts that wait or run at a replica. A call may hold a thousand, so calls are no measure."""
        self._target = target

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """The replicas that the present texts want, and no state. context: Ray's `AutoscalingContext`."""
        pending = (context.aggregated_metrics or {}).get(PENDING, {})
        return sum(pending.values()) / self._target, {}
