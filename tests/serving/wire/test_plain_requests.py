"""Requests that are checked without the library of rules, because they keep every rule for certain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hmc.artifact.errors import InvalidRequestError
from hmc.serving import DecodeOptions, Selector
from hmc.serving.wire import rules
from hmc.serving.wire.rules import SHORT, SHORT_ID, check_request, checked_settings
from hmc.v1 import translation_pb2 as pb

WIDE = "😀"  # four bytes of UTF-8
TEXTS: list[list[str]] = [[], [""], ["a"], [WIDE * SHORT], [WIDE * (SHORT + 1)], ["a", WIDE * SHORT], ["a" * 2_000_000]]
SETTINGS: list[pb.TranslateRequest] = [
    pb.TranslateRequest(),
    pb.TranslateRequest(target_prefixes=["a"]),
    pb.TranslateRequest(keep=[""]),
    pb.TranslateRequest(segmentation=pb.SEGMENTATION_NONE, return_segments=True),
    pb.TranslateRequest(segmentation=99),  # type: ignore[arg-type]  # of a newer client
]
STREAMED: list[pb.TranslateStreamRequest] = [
    pb.TranslateStreamRequest(text="a"),
    pb.TranslateStreamRequest(text="a", timeout_ms=0),
    pb.TranslateStreamRequest(text="a", timeout_ms=1),
    pb.TranslateStreamRequest(text="a", id=WIDE * SHORT_ID),
    pb.TranslateStreamRequest(text="a", id=WIDE * SHORT_ID + "a"),
    pb.TranslateStreamRequest(text=WIDE * SHORT),
    pb.TranslateStreamRequest(text=WIDE * SHORT + "a"),
    pb.TranslateStreamRequest(text="a", target_prefix=WIDE * SHORT + "a"),
]


def requests() -> list[pb.TranslateRequest | pb.TranslateStreamRequest]:
    """Requests at and beyond the limits."""
    found: list[pb.TranslateRequest | pb.TranslateStreamRequest] = list(STREAMED)
    for texts in TEXTS:
        for settings in SETTINGS:
            request = pb.TranslateRequest(texts=texts)
            request.MergeFrom(settings)
            found.append(request)
    return found


@pytest.mark.parametrize("request_", requests(), ids=lambda each: f"{type(each).__name__}-{each.ByteSize()}")
def test_what_is_plain_keeps_every_rule(request_: pb.TranslateRequest | pb.TranslateStreamRequest) -> None:
    """And what breaks one is refused with the same words as by the library."""
    assert outcome(checked_settings, request_) == outcome(check_request, request_)


def outcome(check: Callable[[Any], object], request: object) -> str:
    """What a check says; empty if it lets the request pass."""
    try:
        check(request)
    except InvalidRequestError as error:
        return str(error)
    return ""


def test_a_usual_request_is_not_given_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    request = pb.TranslateRequest(
        texts=["a"], level=pb.LevelSelector(name="h6"), options=pb.DecodingOptions(beam_size=2)
    )
    expected = Selector(name="h6"), DecodeOptions(beam_size=2)
    assert checked_settings(request) == expected

    def refuse(_: object) -> None:
        raise AssertionError("it was checked again")

    monkeypatch.setattr(rules, "check_request", refuse)
    assert checked_settings(request) == expected
