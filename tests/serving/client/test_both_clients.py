"""Both clients against real servers: the same answers, retries, deadlines and errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
from tests.serving.client.both import CLIENTS
from tests.serving.client.scripted import Failure, Script, ScriptedServer

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InternalServiceError,
    OverloadedError,
    UnavailableError,
)
from hmc.serving.client import ONCE, AsyncClient, Retry

FAST = Retry(attempts=3, first_s=0.001)
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(params=CLIENTS)
def new(request: pytest.FixtureRequest) -> Any:
    return CLIENTS[request.param]


@pytest.fixture
def client(new: Any, server: ScriptedServer) -> Iterator[Any]:
    with new(server.address, retry=FAST) as connected:
        yield connected


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, FULL, grpc.StatusCode.CANCELLED])
def test_a_call_is_sent_again_under_its_name(client: Any, script: Script, code: grpc.StatusCode) -> None:
    script.failures = [Failure(code), Failure(code, pushback_ms=1)]
    assert client.translate(["a"], request_id="mine")[0].text == "server:a"
    assert script.ids == ["mine"] * 3


def test_the_last_error_is_raised_with_the_name_of_the_call(client: Any, script: Script) -> None:
    script.failures = [Failure()] * 3
    with pytest.raises(UnavailableError, match="as written down") as raised:
        client.translate(["a"])
    assert [raised.value.request_id] * 3 == script.ids


@pytest.mark.parametrize(
    "failure",
    [
        Failure(FULL, pushback_ms=-1),
        Failure(FULL, pushback_ms=100_000),
        Failure(grpc.StatusCode.INTERNAL),
        Failure(grpc.StatusCode.INVALID_ARGUMENT),
        Failure(grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_what_is_not_sent_again(client: Any, script: Script, failure: Failure) -> None:
    script.failures = [failure]
    with pytest.raises((OverloadedError, InternalServiceError, InvalidRequestError, DeadlineExceededError)):
        client.translate(["a"])
    assert len(script.seen) == 1


def test_a_deadline_that_says_when_to_come_again(client: Any, script: Script) -> None:
    script.failures = [Failure(grpc.StatusCode.DEADLINE_EXCEEDED, pushback_ms=1)]
    assert client.translate(["a"], timeout=60)[0].text == "server:a"


def test_a_wait_beyond_the_deadline_is_not_begun(client: Any, script: Script) -> None:
    script.failures = [Failure(FULL, pushback_ms=50_000)]
    with pytest.raises(OverloadedError) as refused:
        client.translate(["a"], timeout=20)
    assert refused.value.retry_after_s == 50


def test_changes_of_a_server_are_not_sent_again(client: Any, script: Script) -> None:
    script.failures = [Failure(pushback_ms=1)]
    with pytest.raises(UnavailableError):
        client.load_level("full")
    assert script.seen == [["full"]]


def test_a_client_that_sends_once(new: Any, server: ScriptedServer, script: Script) -> None:
    script.failures = [Failure(pushback_ms=1)]
    with new(server.address, retry=ONCE) as client, pytest.raises(UnavailableError):
        client.translate(["a"])


def test_a_document_is_sent_again_before_its_first_piece(client: Any, script: Script) -> None:
    script.failures = [Failure()]
    assert [piece.text for piece in client.translate_document("a b")] == ["a", "b"]
    assert len(script.seen) == 2


def test_a_document_is_not_sent_again_after_its_first_piece(client: Any, script: Script) -> None:
    script.failures = [Failure(after=1)]
    with closing(client.translate_document("a b")) as pieces:
        assert next(pieces).text == "a"
        with pytest.raises(UnavailableError):
            next(pieces)
    assert len(script.seen) == 1


@pytest.mark.parametrize("in_order", [True, False])
def test_a_broken_stream_goes_on_with_the_texts_without_an_answer(client: Any, script: Script, in_order: bool) -> None:
    """More breaks than attempts: each comes after an answer, so the attempts begin anew."""
    script.failures = [Failure(after=count) for count in (3, 1, 2, 5, 1)]
    texts = [str(number) for number in range(40)]
    answers = list(client.translate_stream(iter(texts), in_flight=7, in_order=in_order))
    assert [answer.result().text for answer in answers] == [f"server:{text}" for text in texts]
    assert [int(seen[0]) for seen in script.seen] == [0, 3, 4, 6, 11, 12]
    assert len(set(script.ids)) == 1


@pytest.mark.parametrize("after", [0, 1, 5, 9])
def test_the_status_that_ends_a_stream_is_the_servers(client: Any, script: Script, after: int) -> None:
    """Also where the server ends it while texts are being sent."""
    script.failures = [Failure(grpc.StatusCode.FAILED_PRECONDITION, after=after)]
    with pytest.raises(FailedPreconditionError, match="as written down"):
        list(client.translate_stream(map(str, range(1000)), in_flight=4))


def test_a_stream_that_gets_nowhere_is_given_up(client: Any, script: Script) -> None:
    script.failures = [Failure(after=2), *[Failure()] * 3]
    answers = client.translate_stream(["a", "b", "c"])
    with closing(answers):
        assert [next(answers).result().text for _ in range(2)] == ["server:a", "server:b"]
        with pytest.raises(UnavailableError):
            next(answers)


def test_the_source_is_read_as_far_as_the_window(client: Any, script: Script) -> None:
    read = list[int]()

    def texts() -> Iterator[str]:
        for number in range(1000):
            read.append(number)
            yield str(number)

    for count, _ in enumerate(client.translate_stream(texts(), in_flight=5), 1):
        assert len(read) <= count + 5
    assert len(read) == 1000


def test_an_error_of_the_source_comes_after_the_answers(client: Any) -> None:
    def texts() -> Iterator[str]:
        yield "a"
        raise KeyError("mine")

    answers = client.translate_stream(texts())
    with closing(answers):
        assert next(answers).result().text == "server:a"
        with pytest.raises(KeyError, match="mine"):
            next(answers)


def test_a_text_for_which_there_is_no_prefix(client: Any) -> None:
    with pytest.raises(InvalidRequestError, match="text 1 has no target prefix"):
        list(client.translate_stream(["a", "b"], target_prefixes=["x"]))


def test_leaving_a_stream_early(client: Any, script: Script) -> None:
    ended = threading.Event()

    def texts() -> Generator[str, None, None]:
        try:
            while True:
                yield "a"
        finally:
            ended.set()

    source = texts()
    answers: Any = client.translate_stream(source)
    assert next(answers).result().text == "server:a"
    answers.close()
    source.close()
    assert ended.is_set()
    assert client.translate(["a"])[0].text == "server:a"


def test_calls_take_turns_over_the_servers_that_serve(new: Any) -> None:
    with (
        ScriptedServer(Script("a")) as a,
        ScriptedServer(Script("b")) as b,
        ScriptedServer(Script("c")) as c,
    ):
        c.serving(False)
        with new([a.address, b.address, c.address]) as client:
            seen: set[str] = set()
            while seen < {"a", "b"}:  # until both are connected
                seen.add(client.translate(["x"])[0].text[0])
            taken = [client.translate(["x"])[0].text[0] for _ in range(6)]
            assert "".join(taken) in ("ababab", "bababa")
            with pytest.raises(InvalidRequestError, match="LoadLevel acts on one server"):
                client.load_level("full")
        assert c.script.seen == []


def test_another_server_takes_over(new: Any) -> None:
    with ScriptedServer(Script("a")) as a, ScriptedServer(Script("b")) as b:
        client = new([a.address, b.address], retry=Retry(attempts=10, first_s=0.01))
        with client:
            client.translate(["x"])
            b.__exit__(None, None, None)
            assert {client.translate(["x"])[0].text for _ in range(4)} == {"a:x"}


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_above_zero(client: Any, timeout: float) -> None:
    with pytest.raises(InvalidRequestError, match="choose more than 0 seconds"):
        client.translate(["a"], timeout=timeout)


@pytest.mark.parametrize(
    ("addresses", "said"),
    [
        ([], "no server address"),
        (["localhost:1", "unix:/a"], "give each as HOST:PORT"),
        (["127.0.0.1:1", "[::1]:1"], "all of IPv4 or all of IPv6"),
    ],
)
def test_what_cannot_be_addresses(new: Any, addresses: list[str], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        new(addresses)


def test_what_cannot_be_a_name_of_a_call(client: Any) -> None:
    with pytest.raises(InvalidRequestError, match="request_id"):
        client.translate(["a"], request_id="with blank")


def test_a_closed_client(new: Any, server: ScriptedServer) -> None:
    with new(server.address, retry=ONCE) as client:
        client.close()
        with pytest.raises(UnavailableError, match="is closed"):
            client.translate(["a"])


def test_a_source_that_is_cancelled_is_no_end_of_the_texts(server: ScriptedServer) -> None:
    """A generator that awaits a task which was cancelled: what follows is missing, so the stream must not end well."""

    async def texts() -> AsyncGenerator[str]:
        yield "a"
        raise asyncio.CancelledError

    async def answers() -> list[str]:
        async with AsyncClient(server.address, retry=FAST) as client:
            return [each.translation.text async for each in client.translate_stream(texts()) if each.translation]

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(answers())
