"""TranslateStream on a real socket, through the stub and through the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
import pytest
from tests.serving.fakes import DEADLINE_S, FakeFactory, FakeTranslator, failure
from tests.tiny import SENTENCES

from hmc.artifact import InvalidRequestError, read_manifest
from hmc.artifact.errors import InternalServiceError, OverloadedError
from hmc.engine.requests.caller import Priority
from hmc.serving import DecodeOptions, Target, Translator
from hmc.serving.client import Client
from hmc.serving.levels.slots import Lease, Slot
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings
from hmc.serving.server.streams import WaitingLine, answer_each
from hmc.v1 import translation_pb2 as pb

Answered = TypeVar("Answered")


def requests(count: int) -> Iterator[pb.TranslateStreamRequest]:
    return (pb.TranslateStreamRequest(id=str(i), text=f"hold {i}") for i in range(count))


def test_a_stream_answers_in_order_of_completion(stub: Any, factory: FakeFactory) -> None:
    requests = [pb.TranslateStreamRequest(id=text, text=text) for text in ("hold", "b", "c")]
    answers = stub.TranslateStream(iter(requests))
    assert {next(answers).id, next(answers).id} == {"b", "c"}
    factory["full"].release.set()
    assert next(answers).translation.text == "full:hold"
    assert list(answers) == []


def test_an_error_of_a_text_is_in_its_answer(client: Client) -> None:
    answers = list(client.translate_stream(["a", "x" * 100_000, "crash", "", "b"]))
    assert [a.index for a in answers] == [0, 1, 2, 3, 4]
    assert [a.translation.text if a.translation else type(a.error) for a in answers] == [
        "full:a", InvalidRequestError, InternalServiceError, "", "full:b",
    ]  # fmt: skip
    with pytest.raises(InvalidRequestError, match="longer than"):
        answers[1].result()


def test_errors_of_a_stream_name_the_level_if_one_was_chosen(stub: Any) -> None:
    requests = [
        pb.TranslateStreamRequest(id="late", text="crash", level=pb.LevelSelector(name="h6")),
        pb.TranslateStreamRequest(id="early", text="x", level=pb.LevelSelector(name="nope")),
    ]
    answers = {a.id: a for a in stub.TranslateStream(iter(requests))}
    assert (answers["late"].level, answers["late"].bundle_version) == ("h6", "0123456789abcdef")
    assert (answers["early"].level, answers["early"].bundle_version) == ("", "")


def test_each_text_of_a_stream_chooses_its_level(stub: Any) -> None:
    levels = ("h6", "nope", "h12")
    requests = [pb.TranslateStreamRequest(id=n, text="a", level=pb.LevelSelector(name=n)) for n in levels]
    answers = {a.id: a for a in stub.TranslateStream(iter(requests))}
    assert (answers["h6"].level, answers["h12"].level) == ("h6", "h12")
    assert answers["nope"].error.code == grpc.StatusCode.NOT_FOUND.value[0]


def test_the_stream_has_no_more_texts_under_way_than_its_window(
    stub: Any, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, pending = factory["full"], list[int]()
    full.queue_size = 1000
    submit = full.submit

    def counted(*arguments: Any, **named: Any) -> Any:
        future = submit(*arguments, **named)
        pending.append(full.pending)
        return future

    monkeypatch.setattr(full, "submit", counted)
    answers = stub.TranslateStream(requests(50))
    full.wait_for(lambda: full.pending == 4)
    full.release.set()
    assert {a.translation.text for a in answers} == {f"full:hold {i}" for i in range(50)}
    assert max(pending) <= 4


class Begun(Generic[Answered]):
    """A request of a stream whose answer a coroutine makes."""

    def __init__(self, answer: Coroutine[Any, Any, Answered]) -> None:
        self.future = asyncio.create_task(answer)

    def answer(self) -> Answered:
        return self.future.result()


def test_a_stream_is_read_when_an_answer_is_taken() -> None:
    read: list[int] = []
    release: list[asyncio.Event] = []

    async def numbers() -> AsyncIterator[int]:
        for number in range(6):
            read.append(number)
            release.append(asyncio.Event())
            yield number

    async def begin(number: int) -> Begun[int]:
        async def answer() -> int:
            await release[number].wait()
            return number

        return Begun(answer())

    async def run() -> None:
        answers = answer_each(numbers(), begin, 2, asyncio.Event())
        first = asyncio.ensure_future(anext(answers))
        await until_idle()
        assert read == [0, 1]
        release[1].set()
        await until_idle()
        assert (await first).answer() == 1
        assert read == [0, 1]  # the answer was given out, and the next one is not asked for yet
        second = asyncio.ensure_future(anext(answers))
        await until_idle()
        assert read == [0, 1, 2]
        for event in release:
            event.set()
        assert (await second).answer() in (0, 2)
        await answers.aclose()  # type: ignore[attr-defined]  # a generator

    asyncio.run(run())


async def until_idle() -> None:
    """Lets the tasks of the event loop run until all of them wait, if they take no more turns than this."""
    for _ in range(50):
        await asyncio.sleep(0)


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
    assert most <= 18  # 16, one that waits to be sent, and one that is answered but not yet counted


def test_leaving_a_stream_early_cancels_it(client: Client, factory: FakeFactory) -> None:
    answers = client.translate_stream(["a", "hold", "hold"], in_order=False)
    assert next(answers).index == 0
    factory["full"].wait_for(lambda: factory["full"].pending == 2)
    answers.close()  # a generator
    factory["full"].wait_for(lambda: factory["full"].pending == 0)


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


# ---- a queue that is full ----


def test_texts_of_a_stream_wait_for_a_full_queue_and_leave_half_of_it_to_calls(
    stub: Any, client: Client, factory: FakeFactory
) -> None:
    full = factory["full"]
    full.queue_size = 4
    answers = stub.TranslateStream(requests(20))
    full.wait_for(lambda: len(full.waiting) == 1)
    assert full.texts == ["hold 0", "hold 1"]
    assert client.translate(["a", "b"])[1].text == "full:b"
    with pytest.raises(OverloadedError):
        client.translate(["hold", "hold", "hold"])
    full.release.set()
    assert sorted(a.translation.text for a in answers) == sorted(f"full:hold {i}" for i in range(20))


def test_a_stream_that_waits_can_be_cancelled_and_runs_out_of_time(stub: Any, factory: FakeFactory) -> None:
    full = factory["full"]
    full.queue_size = 2
    call = stub.TranslateStream(requests(20))
    full.wait_for(lambda: len(full.waiting) == 1)
    call.cancel()
    full.wait_for(lambda: full.pending == 0)
    late = stub.TranslateStream(requests(20), timeout=DEADLINE_S)
    assert failure(lambda: list(late))[0] == "DEADLINE_EXCEEDED"
    full.wait_for(lambda: full.pending == 0)
    full.release.set()
    (answer,) = stub.TranslateStream(requests(1))
    assert answer.translation.text == "full:hold 0"
    assert full.texts == ["hold 0"] * 3


def test_streams_that_wait_get_free_places_in_turn(bundle: Path) -> None:
    translator: Any = FakeTranslator("full", queue_size=2)  # of which streams may take one place
    read: list[str] = []

    async def texts(name: str) -> AsyncIterator[str]:
        for index in range(4):
            read.append(f"{name}{index}")
            yield f"hold {name}{index}"

    async def run() -> None:
        line, slot = WaitingLine(), Slot(read_manifest(bundle).level("full"), translator)
        lease = Lease(slot, "", lambda _: None, Priority.BULK)

        async def begin(text: str) -> Begun[str]:
            future = asyncio.wrap_future(await line.submit(lease, text, DecodeOptions(), Target()))

            async def answer() -> str:
                return (await future).text

            return Begun(answer())

        async def follow(name: str) -> list[str]:
            return [begun.answer() async for begun in answer_each(texts(name), begin, 100, asyncio.Event())]

        streams = []
        for name in "abc":
            streams.append(asyncio.create_task(follow(name)))
            await until_idle()
        assert read == ["a0", "a1", "b0", "c0"]  # a stream is not read while one of its texts waits for a place
        translator.release.set()
        for name, answers in zip("abc", await asyncio.gather(*streams), strict=True):
            assert sorted(answers) == [f"full:hold {name}{index}" for index in range(4)]  # the fake's threads race

    asyncio.run(run())
    assert [text.removeprefix("hold ") for text in translator.texts] == [
        "a0", "a1", "b0", "c0", "a2", "b1", "c1", "a3", "b2", "c2", "b3", "c3",
    ]  # fmt: skip


def test_many_streams_at_a_small_queue_get_every_answer(lively_bundle: Path) -> None:
    texts, options = [f"{a} {b}" for a in SENTENCES[:6] for b in SENTENCES], DecodeOptions(max_length=20)
    with Translator(lively_bundle, "h5", device="cpu", threads=1) as translator:
        expected = [t.text for t in translator.translate(texts, options, segmentation="none")]
    settings = ServerSettings(port=0, device="cpu", levels=("h5",), default_level="h5", threads=1, queue_size=10)
    with BackgroundServer(lively_bundle, settings) as server, Client(server.address) as client:

        def stream(_: int) -> list[str]:
            return [a.result().text for a in client.translate_stream(texts, None, options)]

        with ThreadPoolExecutor(5) as pool:
            assert list(pool.map(stream, range(5))) == [expected] * 5
