"""Translate on a real socket: levels, refusals, deadlines and cancellation."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from tests.serving.fakes import DEADLINE_S, GUARD_S, FakeFactory, failure

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import DeadlineExceededError, InternalServiceError, OverloadedError
from hmc.engine.requests.caller import Priority
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.v1 import translation_pb2 as pb

TRANSLATE = "/hmc.v1.TranslationService/Translate"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING

# ---- Translate ----


def test_translate_at_the_requested_level(stub: Any) -> None:
    response = stub.Translate(pb.TranslateRequest(texts=["a", "", "b"], level=pb.LevelSelector(max_heads=12)))
    assert [t.text for t in response.translations] == ["h12:a", "", "h12:b"]
    assert (response.level, response.bundle_version) == ("h12", "0123456789abcdef")
    assert (response.queue_ms, response.compute_ms) == (pytest.approx(1.0), pytest.approx(2.0))


def test_short_lists_are_interactive_and_long_ones_are_not(
    stub: Any, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmc.serving.server.handlers.MAX_INTERACTIVE_TEXTS", 2)
    for count in (2, 3):
        stub.Translate(pb.TranslateRequest(texts=["a"] * count))
    assert factory["full"].priorities == [Priority.INTERACTIVE] * 2 + [Priority.STANDARD] * 3


@pytest.mark.parametrize(
    ("selector", "level"),
    [
        (None, "full"),
        (pb.LevelSelector(), "full"),
        (pb.LevelSelector(name="h6"), "h6"),
        (pb.LevelSelector(max_heads=6), "h6"),
        (pb.LevelSelector(max_bleu_drop=0.25), "h12"),
        (pb.LevelSelector(latency_budget_ms=20), "h12"),
        (pb.LevelSelector(auto=True), "full"),
    ],
)
def test_every_selector(stub: Any, selector: pb.LevelSelector | None, level: str) -> None:
    assert stub.Translate(pb.TranslateRequest(texts=["a"], level=selector)).level == level


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"texts": []}, "INVALID_ARGUMENT", "texts is empty: send at least one text"),
        ({"texts": ["a"] * 10_000}, "INVALID_ARGUMENT", "10000 texts in one call, but at most 10 are allowed: split"),
        (
            {"texts": ["a", "x " * 17], "segmentation": 3},
            "INVALID_ARGUMENT",
            "texts[1]: the text has 17 tokens, and the",
        ),
        ({"level": {"name": "h99"}}, "NOT_FOUND", "unknown level 'h99'; this bundle has: full, h12, h6"),
        ({"level": {"max_heads": 5}}, "NOT_FOUND", "the smallest is 'h6' with 6"),
        ({"level": {"max_heads": -1}}, "INVALID_ARGUMENT", "max_heads -1: choose 0 or more"),
        ({"options": {"beam_size": 99}}, "INVALID_ARGUMENT", "beam_size 99: choose 1 to 16"),
        ({"texts": ["hold"] * 9}, "RESOURCE_EXHAUSTED", "texts[8]: the queue is full"),
    ],
    ids=["no texts", "too many", "too long", "no such level", "no level so small", "negative", "beam", "overload"],
)
def test_refused_calls_say_why(stub: Any, fields: dict[str, Any], code: str, message: str) -> None:
    request = pb.TranslateRequest(**{"texts": ["a"], **fields})
    got_code, got_message = failure(lambda: stub.Translate(request, timeout=GUARD_S))
    assert got_code == code
    assert message in got_message
    assert stub.Translate(pb.TranslateRequest(texts=["still up"])).translations[0].text == "full:still up"


def test_one_bad_text_fails_the_call_and_cancels_the_others(client: Client, factory: FakeFactory) -> None:
    with pytest.raises(OverloadedError):
        client.translate(["hold"] * 9)
    factory["full"].wait_for(lambda: factory["full"].pending == 0)
    assert all(future.cancelled() for future in factory["full"].futures)


def test_a_bug_is_internal_logged_once_and_kept_secret(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(InternalServiceError, match="the server has a bug") as caught,
    ):
        client.translate(["crash"])
    assert "secret" not in str(caught.value)
    (record,) = [r for r in caplog.records if "unexpected error" in r.message]
    assert record.exc_info is not None
    assert str(caught.value).rsplit(" ", 1)[-1] in record.message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\x01a\x0a\x03b\xff\xfe", "texts[1] is not UTF-8: byte 0xff at 1"),
        (b"\x0a\x01a\x22\x01\xff", "target_prefixes[0] is not UTF-8: byte 0xff at 0"),
        (b"\x0a\x01a\x12\x03\x0a\x01\xff", "a field of the request is not UTF-8"),
        (b"\x0a\x7fa", "not a message of this method"),
    ],
)
def test_bytes_that_are_not_a_request(channel: grpc.Channel, stub: Any, data: bytes, message: str) -> None:
    call: Any = channel.unary_unary(TRANSLATE)
    code, got = failure(lambda: call(data))
    assert code == "INVALID_ARGUMENT"
    assert message in got
    assert stub.Translate(pb.TranslateRequest(texts=["up"])).translations[0].text == "full:up"


def test_a_stream_of_invalid_bytes(channel: grpc.Channel) -> None:
    call: Any = channel.stream_stream("/hmc.v1.TranslationService/TranslateStream")
    code, message = failure(lambda: list(call(iter([b"\x12\x01\xff"]))))
    assert (code, message) == ("INVALID_ARGUMENT", "text is not UTF-8: byte 0xff at 0; convert it to UTF-8")


def test_a_message_over_the_limit_says_to_split(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match=r"too large .* split it"):
        client.translate(["x" * 64_000] * 1100)


# ---- deadline and cancel ----


def test_the_deadline_cancels_the_texts(client: Client, factory: FakeFactory) -> None:
    client.translate(["a"])  # opens the connection
    with pytest.raises(DeadlineExceededError, match="choose a level with fewer heads"):
        client.translate(["hold", "hold"], timeout=DEADLINE_S)
    full = factory["full"]
    full.wait_for(lambda: len(full.futures) == 3 and all(future.cancelled() for future in full.futures[1:]))


def test_the_server_keeps_the_deadline_by_itself(stub: Any, server: BackgroundServer, factory: FakeFactory) -> None:
    stub.Translate(pb.TranslateRequest(texts=["a"]))  # opens the connection
    call = stub.Translate.future(pb.TranslateRequest(texts=["hold"]), timeout=DEADLINE_S)
    factory["full"].wait_for(lambda: factory["full"].pending == 1)
    factory["full"].wait_for(lambda: factory["full"].pending == 0)
    assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_cancel_cancels_the_texts(stub: Any, factory: FakeFactory) -> None:
    call = stub.Translate.future(pb.TranslateRequest(texts=["hold"]))
    factory["full"].wait_for(lambda: factory["full"].pending == 1)
    call.cancel()
    factory["full"].wait_for(factory["full"].futures[0].cancelled)


def test_a_cancelled_stream_cancels_its_texts(stub: Any, factory: FakeFactory) -> None:
    call = stub.TranslateStream(iter([pb.TranslateStreamRequest(id=str(i), text="hold") for i in range(3)]))
    factory["full"].wait_for(lambda: factory["full"].pending == 3)
    call.cancel()
    factory["full"].wait_for(lambda: all(f.cancelled() for f in factory["full"].futures))
