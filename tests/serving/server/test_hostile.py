"""Hostile requests against a server of its own: each gets a documented status, and the server goes on translating.

`HMC_HOSTILE_REQUESTS=20000 python -m pytest -s tests/serving/server/test_hostile.py` sends more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serving.attacked import Attacked, attacked, send_raw
from tests.serving.hostile import PREFACE, Attack, Seen, attacks

from hmc.serving.client import Client

SHORT = 200
REQUESTS = int(os.environ.get("HMC_HOSTILE_REQUESTS", SHORT))
pytestmark = pytest.mark.timeout(600 if REQUESTS == SHORT else 0)
ALLOWED_MIB = 64
"""What the server may grow by in a long run: heaps, and what ONNX Runtime keeps for the shapes that it met. In a short
run the allocator decides most of it, so a short run only says it."""
PARTS = 10
"""How often the memory is read, about."""
few = settings(
    max_examples=REQUESTS,
    deadline=None,
    database=None,
    derandomize=REQUESTS == SHORT,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server(tiny_bundle: Path) -> Iterator[Attacked]:
    with attacked(tiny_bundle) as running:
        yield running


def translated(server: Attacked) -> str:
    with Client(server.address) as client:
        return client.translate(["A man rides a bicycle."], timeout=60)[0].text


def test_every_generated_request_gets_a_documented_status(server: Attacked) -> None:
    expected, seen, readings = translated(server), Seen(), list[float]()
    before, sent = server.bytes, count(1)
    with grpc.insecure_channel(server.address) as channel:

        @few
        @given(attacks())
        def send(attack: Attack) -> None:
            seen.send(channel, attack)
            if next(sent) % max(1, REQUESTS // PARTS) == 0:
                readings.append((server.bytes - before) / 2**20)

        send()
    grown = server.bytes - before
    print(f"\ncalls: {dict(seen.calls)}\ntexts of streams: {dict(seen.texts)}")
    print(f"memory: {before / 2**20:.1f} MiB, and then {', '.join(f'{each:+.1f}' for each in readings)}")
    assert seen.faults == []
    assert REQUESTS == SHORT or grown < ALLOWED_MIB * 2**20
    server.check_alive()
    assert seen.calls["OK"] > 0  # some requests were good ones
    assert seen.calls["INVALID_ARGUMENT"] > 0
    assert translated(server) == expected


def test_raw_bytes_on_the_socket_do_no_harm(server: Attacked) -> None:
    expected, sent, before = translated(server), 0, server.bytes

    @settings(few, max_examples=max(30, REQUESTS // 10))
    @given(st.binary(max_size=300), st.booleans())
    def send(data: bytes, preface: bool) -> None:
        nonlocal sent
        send_raw(server.address, (PREFACE if preface else b"") + data)
        sent += 1

    send()
    grown = server.bytes - before
    print(f"\n{sent} connections; memory: {before / 2**20:.1f} {grown / 2**20:+.1f} MiB")
    assert sent >= 30
    assert REQUESTS == SHORT or grown < ALLOWED_MIB * 2**20
    server.check_alive()
    assert translated(server) == expected
