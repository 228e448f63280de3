"""Hostile requests against a real server: each gets a documented status, and the server goes on translating.

`HMC_HOSTILE_REQUESTS=20000 python -m pytest -s tests/serving/server/test_hostile.py` sends more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serving.hostile import PREFACE, Attack, Seen, attacks, send_raw

from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

REQUESTS = int(os.environ.get("HMC_HOSTILE_REQUESTS", "200"))
LEVELS = ("full", "h12-int8")
few = settings(
    max_examples=REQUESTS, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def server(tiny_bundle: Path) -> Iterator[BackgroundServer]:
    chosen = ServerSettings(
        port=0, device="cpu", levels=LEVELS, default_level="full", threads=1, max_texts_per_call=4, cache="none"
    )
    with BackgroundServer(tiny_bundle, chosen) as running:
        yield running


def translated(server: BackgroundServer) -> str:
    with Client(server.address) as client:
        return client.translate(["A man rides a bicycle."], timeout=60)[0].text


def test_every_generated_request_gets_a_documented_status(server: BackgroundServer) -> None:
    expected, seen = translated(server), Seen()
    with grpc.insecure_channel(server.address) as channel:

        @few
        @given(attacks())
        def send(attack: Attack) -> None:
            seen.send(channel, attack)

        send()
    print(f"\ncalls: {dict(seen.calls)}\ntexts of streams: {dict(seen.texts)}")
    assert seen.faults == []
    assert seen.calls["OK"] > 0  # some requests were good ones
    assert seen.calls["INVALID_ARGUMENT"] > 0
    assert translated(server) == expected


def test_raw_bytes_on_the_socket_do_no_harm(server: BackgroundServer) -> None:
    expected, sent = translated(server), 0

    @settings(few, max_examples=max(30, REQUESTS // 10))
    @given(st.binary(max_size=300), st.booleans())
    def send(data: bytes, preface: bool) -> None:
        nonlocal sent
        send_raw(server.address, (PREFACE if preface else b"") + data)
        sent += 1

    send()
    assert sent >= 30
    assert translated(server) == expected
