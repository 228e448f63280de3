"""Refused calls say when to come again, and gRPC's own retries keep to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tests.serving.fakes import GUARD_S, FakeFactory, FakeTranslator

from hmc.artifact.errors import DeadlineExceededError, OverloadedError
from hmc.engine.requests.caller import Caller
from hmc.serving.client import ONCE, Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.wire.metadata import ELSEWHERE_S, TRAILER, retry_after_s, retry_trailers
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

SERVICE = "hmc.v1.TranslationService"


def retrying(address: str, backoff: str) -> grpc.Channel:
    """A channel that tries refused calls up to five times. backoff: seconds between two tries, if nobody says else."""
    retry = {
        "maxAttempts": 5, "initialBackoff": backoff, "maxBackoff": backoff, "backoffMultiplier": 1,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"],
    }  # fmt: skip
    config = {"methodConfig": [{"name": [{"service": SERVICE}], "retryPolicy": retry}]}
    return grpc.insecure_channel(address, [("grpc.service_config", json.dumps(config))])


@pytest.fixture
def full(server: BackgroundServer, factory: FakeFactory) -> Iterator[FakeTranslator]:
    """A level whose queue is full until it is released."""
    level = factory["full"]
    with Client(server.address) as client:
        futures = [next(client._turns).Translate.future(pb.TranslateRequest(texts=["hold"])) for _ in range(8)]
        level.wait_for(lambda: level.pending == 8)
        yield level
        level.release.set()
        for future in futures:
            future.result(GUARD_S)


def test_a_client_with_a_retry_policy_waits_as_long_as_it_is_told(
    server: BackgroundServer, full: FakeTranslator
) -> None:
    """Its own back-off would be longer than the test."""
    full.retry_after_s = 0.5
    with retrying(server.address, "1000s") as channel:
        call = rpc.TranslationServiceStub(channel).Translate.future(pb.TranslateRequest(texts=["a"]), timeout=60)
        full.wait_for(lambda: full.refused == 1)
        full.release.set()
        assert call.result().translations[0].text == "full:a"


def test_a_client_does_not_try_again_what_is_useless(server: BackgroundServer, full: FakeTranslator) -> None:
    full.retry_after_s = -1.0
    with retrying(server.address, "0.001s") as channel, pytest.raises(grpc.RpcError) as refused:
        rpc.TranslationServiceStub(channel).Translate(pb.TranslateRequest(texts=["a"]), timeout=60)
    error: Any = refused.value
    assert (error.code().name, full.refused) == ("RESOURCE_EXHAUSTED", 1)
    assert (TRAILER, "-1") in [tuple(pair) for pair in error.trailing_metadata()]


def test_the_python_client_says_when_to_come_again(server: BackgroundServer, full: FakeTranslator) -> None:
    full.retry_after_s = 0.5
    with Client(server.address, retry=ONCE) as client:
        with pytest.raises(OverloadedError) as refused:
            client.translate(["a"])
        after = refused.value.retry_after_s
        assert after is not None
        assert 0.5 <= after <= 1.0
        with pytest.raises(DeadlineExceededError, match="gave no answer in time") as late:
            client.translate(["hold"], level="h6", timeout=0.2)
        assert late.value.retry_after_s is None


def test_a_deadline_that_cannot_be_met_is_told_in_the_servers_words(
    server: BackgroundServer, client: Client, factory: FakeFactory
) -> None:
    busy = factory["full"].submit("hold")
    factory["full"].refusal = DeadlineExceededError("2 s are left, and this level needs 3 s", -1.0)
    with pytest.raises(DeadlineExceededError, match=r"^texts\[0\]: 2 s are left, and this level needs 3 s$") as refused:
        client.translate(["a"], timeout=60)
    assert refused.value.retry_after_s is not None
    assert refused.value.retry_after_s < 0
    seen = factory["full"].within_s[-1]
    assert seen is not None
    assert 0 < seen <= 61  # gRPC counts from a reading of the clock that may be old by a tenth of a second
    with pytest.raises(DeadlineExceededError):
        next(client.translate_tokens("a", timeout=60))
    factory["full"].refusal = None
    client.translate(["a"])
    assert factory["full"].within_s[-1] is None
    busy.cancel()
    client.translate(["a", "b"], timeout=60)
    assert factory["full"].within_s[-2:] == [None, None], "an idle level accepts all texts of a call"


def test_a_draining_server_sends_callers_elsewhere_soon(server: BackgroundServer, stub: Any) -> None:
    stub.Translate(pb.TranslateRequest(texts=["a"]))
    running = server.server
    assert running is not None
    running._draining.set()  # as in the moment before the connection is closed
    with pytest.raises(grpc.RpcError) as refused:
        stub.Translate(pb.TranslateRequest(texts=["a"]))
    error: Any = refused.value
    after = retry_after_s(error.trailing_metadata())
    assert error.code().name == "UNAVAILABLE"
    assert after is not None
    assert ELSEWHERE_S <= after <= 2 * ELSEWHERE_S


def test_the_caller_of_a_call_is_the_host_that_it_comes_from(client: Client, factory: FakeFactory) -> None:
    client.translate(["a"])
    list(client.translate_stream(["b", "c"]))
    list(client.translate_tokens("d"))
    assert set(factory["full"].callers) == {Caller("ipv4:127.0.0.1")}


def test_trailers_are_read_as_written() -> None:
    assert retry_trailers(ValueError("a")) == retry_trailers(OverloadedError("a")) == ()
    assert retry_trailers(OverloadedError("a", 0.0)) == ((TRAILER, "1"),)
    assert retry_after_s([("other", "1"), (TRAILER, "250")]) == 0.25
    assert retry_after_s([(TRAILER, "soon")]) == -1.0
    assert retry_after_s(None) is None
