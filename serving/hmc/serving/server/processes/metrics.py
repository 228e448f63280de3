"""The metrics of all processes together. Each sample says which process it is of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from hmc.serving.server.processes.group import Group
from hmc.serving.wire.rules import MAX_MESSAGE_BYTES

SERVICE, METHOD = "hmc.processes.Metrics", "Get"
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
        self._group, self._own = group, own

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
