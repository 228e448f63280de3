"""TranslateStream on a real socket, through the stub and through the client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from tests.serving.fakes import FakeFactory, eventually

from hmc.artifact.errors import (
    InternalServiceError,
    InvalidRequestError,
)
from hmc.serving.client import Client
from hmc.v1 import translation_pb2 as pb

TRANSLATE = "/hmc.v1.TranslationService/Translate"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_stream_answers_in_order_of_completion(stub: Any, factory: FakeFactory) -> None:
    requests = [pb.TranslateStreamRequest(id=text, text=text) for text in ("hold", "b", "c")]
    answers = stub.TranslateStream(iter(requests))
    assert {next(answers).id, next(answers).id} == {"b", "c"}
    factory["full"].release.set()
    assert next(answers).translation.text == "full:hold"
    assert list(answers) == []


def test_errors_of_a_stream_belong_to_their_texts(client: Client) -> None:
    answers = list(client.translate_stream(["a", "x" * 100_000, "crash", "", "b"]))
    assert [a.index for a in answers] == [0, 1, 2, 3, 4]
    assert [a.translation.text if a.translation else type(a.error) for a in answers] == [
        "full:a", InvalidRequestError, InternalServiceError, "", "full:b",
    ]  # fmt: skip
    with pytest.raises(InvalidRequestError, match="longer than"):
        answers[1].result()


def test_each_text_of_a_stream_chooses_its_level(stub: Any) -> None:
    levels = ("h6", "nope", "h12")
    requests = [pb.TranslateStreamRequest(id=n, text="a", level=pb.LevelSelector(name=n)) for n in levels]
    answers = {a.id: a for a in stub.TranslateStream(iter(requests))}
    assert (answers["h6"].level, answers["h12"].level) == ("h6", "h12")
    assert answers["nope"].error.code == grpc.StatusCode.NOT_FOUND.value[0]


def test_the_stream_is_read_no_further_than_its_window(stub: Any, factory: FakeFactory) -> None:
    factory["full"].queue_size = 1000
    answers = stub.TranslateStream(iter([pb.TranslateStreamRequest(id=str(i), text=f"hold {i}") for i in range(50)]))
    eventually(lambda: factory["full"].pending == 4)
    time.sleep(0.1)
    assert len(factory["full"].futures) == 4
    factory["full"].release.set()
    assert {a.translation.text for a in answers} == {f"full:hold {i}" for i in range(50)}


def test_a_long_stream_keeps_order_and_its_bound(client: Client) -> None:
    unanswered, most = 0, 0

    def texts() -> Iterator[str]:
        nonlocal unanswered, most
        for index in range(500):
            unanswered += 1
            most = max(most, unanswered)
            yield str(index)

    for index, answer in enumerate(client.translate_stream(texts(), in_flight=16)):
        unanswered -= 1
        assert answer.result().text == f"full:{index}"
    assert most <= 18  # the one that waits for its place, and the one that was answered but not yet counted


def test_leaving_a_stream_early_cancels_it(client: Client, factory: FakeFactory) -> None:
    answers = client.translate_stream(["a", "hold", "hold"], in_order=False)
    assert next(answers).index == 0
    eventually(lambda: factory["full"].pending == 2)
    answers.close()  # type: ignore[attr-defined]  # a generator
    eventually(lambda: factory["full"].pending == 0)


def test_an_error_of_the_texts_themselves_is_raised(client: Client) -> None:
    def texts() -> Iterator[str]:
        yield "a"
        raise OSError("disk is gone")

    answers = client.translate_stream(texts())
    assert next(answers).result().text == "full:a"
    with pytest.raises(OSError, match="disk is gone"):
        next(answers)
    with pytest.raises(InvalidRequestError, match="text 0 cannot be written as UTF-8"):
        list(client.translate_stream(["\ud800"]))
