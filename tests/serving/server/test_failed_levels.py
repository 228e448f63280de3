"""A level that stopped unexpectedly: its status says so. If it is the default level, the server is NOT_SERVING."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.serving.fakes import FakeFactory

from hmc.serving.server.background import BackgroundServer

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
STOPPED = "the level stopped unexpectedly"


@pytest.mark.parametrize("service", ["", "hmc.v1.TranslationService"])
def test_the_server_does_not_serve_while_the_default_level_has_failed(
    server: BackgroundServer, channel: grpc.Channel, factory: FakeFactory, service: str
) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=30)
    assert next(watch).status == SERVING
    factory["full"].failure = STOPPED
    assert next(watch).status == NOT_SERVING
    assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == NOT_SERVING
    assert health.Check(health_pb2.HealthCheckRequest(service="hmc.v1.AdminService")).status == SERVING
    factory["full"].failure = None
    assert next(watch).status == SERVING
    watch.cancel()


def test_a_failure_of_another_level_is_listed_only(server: BackgroundServer, factory: FakeFactory) -> None:
    factory["h12"].failure = STOPPED
    assert server.host.failure is None
    failures = {status.name: status.failure for status in server.host.status().levels}
    assert failures == {"full": "", "h12": STOPPED, "h6": ""}
