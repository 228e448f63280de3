"""Clients that cancel at random, that vanish, and that do not read, beside clients that behave: nothing is lost, no
place stays taken, and nobody else notices.

`HMC_CHAOS_SECONDS=300 python -m pytest tests/serving/server/test_chaos.py` goes on for so long.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.serving.fakes import eventually
from tests.serving.held_steps import HeldSteps
from tests.tiny import SENTENCES

from hmc.serving import DecodeOptions
from hmc.serving.levels.slots import Slot
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings
from hmc.serving.wire.messages import to_proto
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

SECONDS = float(os.environ.get("HMC_CHAOS_SECONDS", "0"))
pytestmark = pytest.mark.timeout(600 + SECONDS)
CANCELLING, VANISHING, SLOW, BEHAVING = 200, 50, 20, 40
LEVEL = "h12-int8"
LONG = to_proto(pb.DecodingOptions, DecodeOptions(beam_size=2, min_length=40, max_length=40))
SHORT = to_proto(pb.DecodingOptions, DecodeOptions(beam_size=2, max_length=8))
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture
def real(lively_bundle: Path) -> Iterator[BackgroundServer]:
    settings = ServerSettings(
        port=0, levels=(LEVEL,), default_level=LEVEL, queue_size=4096, threads=1, stream_window=8, cache="none"
    )
    with BackgroundServer(lively_bundle, settings) as server:
        yield server


@asynccontextmanager
async def passing(address: str) -> AsyncIterator[tuple[str, list[asyncio.BaseTransport]]]:
    """A relay to the server. Yields its address and the connections of its clients; aborting one is as if the client
    had lost its power."""
    host, port = address.split(":")
    clients: list[asyncio.BaseTransport] = []
    relays: list[asyncio.Task[None]] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_server = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, to_server), copy(behind, writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.append(writer.transport)
        relays.append(asyncio.create_task(relay(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", clients
    finally:
        server.close()
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)


async def cancels(stub: Any, text: str, after_s: float) -> str:
    call = stub.Translate(pb.TranslateRequest(texts=[text] * 2, options=LONG))
    await asyncio.wait([asyncio.ensure_future(call.code())], timeout=after_s)
    call.cancel()
    return str((await call.code()).name)


async def vanishes(stack: AsyncExitStack, address: str, text: str) -> Any:
    """A call on a connection of its own."""
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=OWN_CONNECTION))
    await channel.channel_ready()
    return rpc.TranslationServiceStub(channel).Translate(pb.TranslateRequest(texts=[text] * 2, options=LONG))


async def does_not_read(stub: Any) -> Any:
    """A stream that sends many texts and reads a single answer."""

    async def requests() -> AsyncIterator[pb.TranslateStreamRequest]:
        for n in range(200):
            yield pb.TranslateStreamRequest(id=str(n), text=SENTENCES[n % len(SENTENCES)], options=SHORT)

    call = stub.TranslateStream(requests())
    assert (await call.read()).HasField("translation")
    return call


async def behaves(stub: Any, number: int) -> list[str]:
    """Calls one after the other; returns the translations."""
    texts = [SENTENCES[(number + n) % len(SENTENCES)] for n in range(3)]
    return [(await stub.Translate(pb.TranslateRequest(texts=[t], options=SHORT))).translations[0].text for t in texts]


async def chaos(address: str, slot: Slot, steps: HeldSteps) -> tuple[Counter[str], Counter[str], list[list[str]]]:
    """All of them at once. Returns the statuses of those that cancel and that vanish, and what the others got."""
    rng = np.random.default_rng(7)
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        stub = rpc.TranslationServiceStub(channel)
        through, connections = await stack.enter_async_context(passing(address))
        slow = [await does_not_read(stub) for _ in range(SLOW)]
        steps.hold()  # no call ends before its connection does
        gone = await asyncio.gather(*(vanishes(stack, through, SENTENCES[n % 5]) for n in range(VANISHING)))
        await asyncio.to_thread(eventually, lambda: slot.translator.pending_interactive == 2 * VANISHING)
        assert len(connections) == VANISHING
        for connection in connections:
            connection.abort()  # type: ignore[attr-defined]  # a transport of a socket
        lost = Counter([(await call.code()).name for call in gone])
        steps.release()
        good = asyncio.gather(*(behaves(stub, n) for n in range(BEHAVING)))
        waits = rng.uniform(0.0, 0.3, CANCELLING)
        cancelled = asyncio.gather(*(cancels(stub, SENTENCES[n % 5], s) for n, s in enumerate(waits.tolist())))
        answers = await good
        statuses = Counter(await cancelled)
        for call in slow:
            call.cancel()
        return statuses, lost, answers


def test_bad_clients_take_nothing_from_good_ones(real: BackgroundServer, steps: HeldSteps) -> None:
    with grpc.insecure_channel(real.address) as channel:
        stub: Any = rpc.TranslationServiceStub(channel)

        def alone(text: str) -> str:
            return str(stub.Translate(pb.TranslateRequest(texts=[text], options=SHORT)).translations[0].text)

        slot = real.host.cache.bundle.slots[LEVEL]
        expected = {text: alone(text) for text in SENTENCES}
        right = [[expected[SENTENCES[(n + k) % len(SENTENCES)]] for k in range(3)] for n in range(BEHAVING)]
        end, statuses, lost = time.monotonic() + SECONDS, Counter[str](), Counter[str]()
        while not statuses or time.monotonic() < end:
            ended, gone, answers = asyncio.run(chaos(real.address, slot, steps))
            assert answers == right
            assert sum(ended.values()) == CANCELLING
            statuses, lost = statuses + ended, lost + gone
            eventually(lambda: slot.translator.pending == 0 and slot.users == 0)
        print(f"\ncancelling: {dict(statuses)}, vanishing: {dict(lost)}")
        assert set(statuses) <= {"CANCELLED", "OK"}
        assert set(lost) == {"UNAVAILABLE"}, "every connection was lost in the middle of a call"
        assert real.server is not None
        seen = {
            s.labels["code"] for m in real.server._metrics.registry.collect() for s in m.samples if "code" in s.labels
        }
        assert seen <= {"OK", "CANCELLED"}
        assert {text: alone(text) for text in SENTENCES} == expected
