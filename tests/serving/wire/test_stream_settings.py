"""Settings of a stream that repeat are checked once, and every text is checked all the same."""

from collections.abc import Callable

import pytest

from hmc.artifact import InvalidRequestError
from hmc.serving import DecodeOptions
from hmc.serving.wire.messages import from_proto, selector_from_proto
from hmc.serving.wire.rules import MAX_REMEMBERED_BYTES, check_request, checked_settings
from hmc.v1 import translation_pb2 as pb

GOOD = {"level": pb.LevelSelector(max_heads=36), "options": pb.DecodingOptions(beam_size=2, n_best=2)}
BAD = {"level": pb.LevelSelector(max_bleu_drop=-1.0), "options": pb.DecodingOptions(beam_size=40)}
LONG = {"options": pb.DecodingOptions(suppressed_phrases=["x" * 100] * (MAX_REMEMBERED_BYTES // 100 + 1))}
TEXTS = [
    {},
    {"text": "A dog.", "id": "7"},
    {"text": "x" * 65537},
    {"target_prefix": "x" * 65537, "id": "y" * 1025},
    {"timeout_ms": 0},
    {"timeout_ms": 1},
]


@pytest.mark.parametrize("settings", [{}, GOOD, BAD, LONG], ids=["none", "good", "bad", "long"])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_the_answers_are_those_without_a_memory(settings: dict[str, object], text: dict[str, object]) -> None:
    request = pb.TranslateStreamRequest(**settings, **text)  # type: ignore[arg-type]  # each of its own type
    expected = outcome(without_memory, request)
    assert [outcome(checked_settings, request) for _ in range(2)] == [expected] * 2


def without_memory(request: pb.TranslateStreamRequest) -> object:
    check_request(request)
    return selector_from_proto(request.level), from_proto(DecodeOptions, request.options)


def outcome(checks: Callable[[pb.TranslateStreamRequest], object], request: pb.TranslateStreamRequest) -> object:
    """What it returns, or the error's message and violations."""
    try:
        return checks(request)
    except InvalidRequestError as error:
        return str(error), list(error.violations)


def test_every_rule_is_of_one_field() -> None:
    """The settings and the rest of a request are checked apart, which a rule of the whole message would not notice."""
    from buf.validate import validate_pb2

    rules = {field.full_name for field, _ in pb.TranslateStreamRequest.DESCRIPTOR.GetOptions().ListFields()}
    assert validate_pb2.message.full_name not in rules
