"""What a server has besides its own parts when it is one process of several: its private socket, an AdminService by
which all of them change what one is asked to change, and the metrics of all of them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from hmc.artifact.errors import FailedPreconditionError, HmcError, LevelNotFoundError
from hmc.serving.server.access.entry import Entry
from hmc.serving.server.access.gate import AccessGate, Allowance
from hmc.serving.server.edge import Edge, EdgedServer
from hmc.serving.server.handlers import Handlers
from hmc.serving.server.observing.calls import CallLog
from hmc.serving.server.processes.group import Group, shared_allowance
from hmc.serving.server.servicers import AdminServicer
from hmc.serving.wire.rules import MAX_MESSAGE_BYTES
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

SERVICE = "hmc.processes.Metrics"
METHOD = "Get"
ANSWER_S = 2.0
"""Seconds in which a process must answer. One that does not is shown as down."""
LABEL = "process"


def metrics_handler(registry: CollectorRegistry) -> grpc.GenericRpcHandler:
    """The method by which a process gives its own metrics to the others, as Prometheus's text."""

    async def get(_request: bytes, _context: object) -> bytes:
        return generate_latest(registry)

    handler: Any = grpc.unary_unary_rpc_method_handler(get)  # without serializers: bytes are sent as they are
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})


class GroupMetrics(Collector):
    """Asks every process for its metrics whenever Prometheus collects."""

    def __init__(self, group: Group, own: CollectorRegistry) -> None:
        self._group = group
        self._own = own

    def describe(self) -> list[Metric]:
        return []  # else a registry would ask for the metrics to learn their names

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("hmc_process_up", "1 for a process of the server that answers, else 0.", labels=[LABEL])
        families: dict[str, Metric] = {}
        for index in range(self._group.processes):
            text = self._text(index)
            up.add_metric([str(index)], float(text is not None))
            for family in text_string_to_metric_families(text or ""):
                joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                joined.samples += [s._replace(labels={**s.labels, LABEL: str(index)}) for s in family.samples]
        yield up
        yield from families.values()

    def _text(self, index: int) -> str | None:
        """The metrics of a process; None if it does not answer."""
        if index == self._group.index:
            return generate_latest(self._own).decode()
        if index not in self._group.others():
            return None
        options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        with grpc.insecure_channel(self._group.address(index), options) as channel:
            ask: Any = channel.unary_unary(f"/{SERVICE}/{METHOD}")
            try:
                return bytes(ask(b"", timeout=ANSWER_S)).decode()
            except grpc.RpcError:
                return None


log = logging.getLogger(__name__)
T = TypeVar("T")
ENDED_S = 0.5
"""Seconds in which the supervisor notices that a process has ended."""


class GroupAdminServicer(AdminServicer):
    """The service `hmc.v1.AdminService` of a process that has siblings.

    A change is made here first. If that fails, the others are not asked; the error is the one that a single process
    would give.
    """

    def __init__(self, handlers: Handlers, group: Group) -> None:
        super().__init__(handlers)
        self._group = group
        self._making: set[asyncio.Future[Any]] = set()

    async def LoadLevel(self, request: pb.LoadLevelRequest, context: object) -> pb.LoadLevelResponse:
        return await self._everywhere("LoadLevel", request, super().LoadLevel(request, context))

    async def UnloadLevel(self, request: pb.UnloadLevelRequest, context: object) -> pb.UnloadLevelResponse:
        return await self._everywhere("UnloadLevel", request, super().UnloadLevel(request, context))

    async def SetDefaultLevel(self, request: pb.SetDefaultLevelRequest, context: object) -> pb.SetDefaultLevelResponse:
        return await self._everywhere("SetDefaultLevel", request, super().SetDefaultLevel(request, context))

    async def Reload(self, request: pb.ReloadRequest, context: object) -> pb.ReloadResponse:
        return await self._everywhere("Reload", request, super().Reload(request, context))

    async def _everywhere(self, method: str, request: Message, here: Awaitable[T]) -> T:
        """Makes a change in this process and then in all others at once. Returns this process's answer.

        A call that is cancelled leaves the change going on, as in a single process; else the others would not make it.
        Raises FailedPreconditionError if another one could not make it; those that could keep it.
        """
        making = asyncio.ensure_future(self._make(method, request, here))
        self._making.add(making)
        making.add_done_callback(self._forget)
        return await asyncio.shield(making)

    def _forget(self, making: asyncio.Future[Any]) -> None:
        self._making.discard(making)
        if not making.cancelled():
            making.exception()  # marks it as seen, if no call is left to see it

    async def _make(self, method: str, request: Any, here: Awaitable[T]) -> T:
        async with self._group.changing():
            answer = await here
            named = type(request)()
            named.CopyFrom(request)
            named.model = self._handlers.model_name(request.model)
            self._group.note(method, named)  # a process that is started again makes it too
            others = self._group.others()
            failed = await asyncio.gather(*(self._ask(index, method, request) for index in others))
        problems = [f"process {index}: {why}" for index, why in zip(others, failed, strict=True) if why]
        if problems:
            raise FailedPreconditionError(
                f"{method} is done in {self._group.processes - len(problems)} of {self._group.processes} processes, "
                f"which keep it, and not in the others ({'; '.join(problems)}): repeat it, or restart the server"
            )
        return answer

    async def _ask(self, index: int, method: str, request: Message) -> str | None:
        """Has another process make a change. Returns why it could not."""
        async with grpc.aio.insecure_channel(self._group.address(index)) as channel:
            stub: Any = rpc.AdminServiceStub(channel)
            try:
                await getattr(stub, method)(request)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    await asyncio.sleep(ENDED_S)
                if index not in self._group.others():  # it has ended, and makes all changes when it is started again
                    return None
                return error.details() or error.code().name
        return None


class Membership:
    """A server's part in its group, between `begin` and `end`."""

    def __init__(
        self, group: Group, handlers: Handlers, own: CollectorRegistry, check_running: Callable[[], None]
    ) -> None:
        """own: the metrics of this process alone. check_running: raises if it takes no calls."""
        self._group = group
        self._handlers = handlers
        self._admin = AdminServicer(handlers)
        self.servicer = GroupAdminServicer(handlers, group)
        """AdminService, which changes all processes."""
        self.registry = CollectorRegistry()
        """The metrics of all processes."""
        self.registry.register(GroupMetrics(group, own))
        entry = Entry(AccessGate(), check_running, CallLog())
        self._door = grpc.aio.server()
        """Where the other processes of the group reach this one."""
        self._door.add_generic_rpc_handlers([metrics_handler(own)])
        edge = Edge(entry, lambda *_: None)
        rpc.add_AdminServiceServicer_to_server(self._admin, EdgedServer(self._door, edge))

    async def begin(self) -> None:
        """Makes the changes that the others have made before, and then takes part in those to come. Call it when the
        levels are loaded.

        Raises what Reload and SetDefaultLevel raise. A level that can no longer be loaded or unloaded is logged.
        """
        async with self._group.changing():
            for method, request in self._group.changes():
                await self._make(method, request, needed=method not in ("LoadLevel", "UnloadLevel"))
            before = os.umask(0o177)
            try:
                self._door.add_insecure_port(self._group.address(self._group.index))
            finally:
                os.umask(before)
            await self._door.start()

    async def reload(self, model: str) -> None:
        """Reads a bundle again because its files have changed, as every process does by itself. Errors: see
        `ModelHost.reload`."""
        version = (await self._handlers.reload(None, model)).bundle_version
        async with self._group.changing():
            self._group.replaced(model, version)
            for method, request in self._group.changes():  # others may have been asked before this one was done
                its = request.model == model and method in ("SetDefaultLevel", "UnloadLevel")  # type: ignore[attr-defined]
                if its and isinstance(await self._make(method, request), LevelNotFoundError):
                    self._group.drop(method, request)  # of the bundle before; no process could begin with it

    async def _make(self, method: str, request: Message, *, needed: bool = False) -> HmcError | None:
        """Makes a change that another process has made. needed: raises its error, which else is logged and returned."""
        try:
            await getattr(self._admin, method)(request, None)
        except HmcError as error:
            if needed:
                raise
            log.warning("%s, which another process has made, is left out: %s", method, error)
            return error
        return None

    async def end(self) -> None:
        """Takes no more part."""
        self._group.leave()
        await self._door.stop(None)


def allowances_of(group: Group | None) -> Callable[[str, float, int], Allowance]:
    """Makes the allowances of callers: one for all processes of a group, or one in this process."""
    if group is None:
        return lambda _name, rate, burst: Allowance(rate, burst)
    return partial(shared_allowance, group.folder)
