"""Addresses, tokens and sizes of answers that can be sent."""

from __future__ import annotations

import dataclasses

import pytest

from hmc.artifact import InvalidRequestError
from hmc.serving import Alternative, Token, Translation
from hmc.serving.client import Answer, Segment
from hmc.serving.wire import messages as converters
from hmc.serving.wire.rules import AnswerSize, check_address, check_token, translation_bytes
from hmc.v1 import translation_pb2 as pb


@pytest.mark.parametrize(
    "address",
    ["localhost:50051", "10.0.0.1:1", "[::1]:65535", "host.name:80", "unix:/tmp/socket", "dns:///host:1", "xds:name"],
)
def test_addresses_that_can_be_used(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("localhost", "give HOST:PORT"),
        (":50051", "give HOST:PORT"),
        (" :50051", "give HOST:PORT"),
        ("::1:50051", "give HOST:PORT"),
        ("http://host:1", "give HOST:PORT"),
        ("a b:1", "give HOST:PORT"),
        ("host:", "port '': choose 1 to 65535"),
        ("host:0", "port '0': choose 1 to 65535"),
        ("host:65536", "port '65536': choose 1 to 65535"),
        ("host:½", "port '½': choose 1 to 65535"),
    ],
)
def test_addresses_that_are_refused(address: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_address(address)


@pytest.mark.parametrize("token", ["", " ", "ü", "a\n"])
def test_tokens_that_cannot_be_sent(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="printable ASCII"):
        check_token(token)


@pytest.mark.parametrize("count", [0, 1, 40])
def test_the_estimated_size_is_an_upper_bound(count: int) -> None:
    tokens = tuple(Token("▁Straße" * (i % 3), -1e9, (1e-9,) * count) for i in range(count))
    others = tuple(Alternative("ü" * i, -3e8, 2**31 - 1, True, tokens) for i in range(count))
    pieces = tuple("▁Häuser" for _ in range(count))
    translation = Translation("ö" * count, -2e7, 2**31 - 1, 2**31 - 1, True, True, others, tokens, pieces, 1e9, 1e9)
    numbers = (2**31 - 1,) * 4
    segments = (Segment(*numbers, -2e7, 2**31 - 1, 2**31 - 1, True, tokens, pieces),) * count
    translation = dataclasses.replace(translation, segments=segments)
    message = converters.to_proto(pb.TranslateResponse, Answer((translation,) * 3, "level", "version", 1.0, 1.0))
    assert message.ByteSize() <= 3 * translation_bytes(translation) + 1024


def test_an_answer_is_refused_when_it_gets_too_large() -> None:
    translation = Translation("a" * 1000, -1.0, 1, 1)
    size = AnswerSize(1024 + 2 * translation_bytes(translation))
    for _ in range(2):
        assert size.add(translation) is translation
    with pytest.raises(InvalidRequestError, match=r"larger than 0 MiB.*fewer texts in a call"):
        size.add(translation)
