"""The rules of fields: every violation is named, and the ranges are those of the Python API."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmc.artifact import InvalidRequestError
from hmc.serving import DecodeOptions
from hmc.serving.requests.options import MAX_TEXT_BYTES
from hmc.serving.wire.messages import from_proto
from hmc.serving.wire.rules import MAX_LISTED_BYTES, check_request
from hmc.v1 import translation_pb2 as pb


def violations(request: Any) -> dict[str, str]:
    with pytest.raises(InvalidRequestError) as caught:
        check_request(request)
    return {one.field: one.description for one in caught.value.violations}


def test_all_violations_are_named_at_once() -> None:
    options = pb.DecodingOptions(
        beam_size=0, patience=math.nan, suppressed_tokens=["a" * 1001], sampling=pb.Sampling(top_p=0.0)
    )
    level = pb.LevelSelector(max_bleu_drop=math.inf, target_language="d e")
    request = pb.TranslateRequest(level=level, options=options, target_prefixes=["a"], segmentation=9)  # type: ignore[arg-type]
    assert violations(request) == {
        "texts": "texts is empty: send at least one text",
        "target_prefixes": "1 target_prefixes for 0 texts: give one for each",
        "level.max_bleu_drop": "level.max_bleu_drop inf: choose 0 or more",
        "level.target_language": "level.target_language is no language tag: give one such as en, pt-BR or zh_Hans",
        "options.sampling": "patience and coverage_penalty are for beam search: leave them out when sampling",
        "options.beam_size": "options.beam_size 0: choose 1 to 16",
        "options.patience": "options.patience nan: choose more than 0, up to 10",
        "options.suppressed_tokens[0]": "options.suppressed_tokens[0] has 1001 characters: give at most 1000",
        "options.sampling.top_p": "options.sampling.top_p 0: choose more than 0, up to 1",
        "segmentation": "segmentation 9: choose SEGMENTATION_AUTO or SEGMENTATION_SENTENCE or SEGMENTATION_NONE",
    }


@pytest.mark.parametrize(
    ("request_", "field", "description"),
    [
        (pb.LoadLevelRequest(), "name", "is empty"),
        (pb.SetDefaultLevelRequest(name="x" * 201), "name", "has 201 characters: give at most 200"),
        (pb.ReloadRequest(bundle_path="a\0"), "bundle_path", "null character"),
        (pb.TranslateStreamRequest(timeout_ms=0), "timeout_ms", "timeout_ms 0: choose 1 or more"),
        (pb.TranslateStreamRequest(text="é" * (MAX_TEXT_BYTES // 2 + 1)), "text", "is longer than 65536 bytes"),
        (pb.TranslateDocumentRequest(keep=[""]), "keep", "has an empty phrase"),
        (pb.TranslateDocumentRequest(segmentation="SEGMENTATION_NONE"), "segmentation", "_AUTO or SEGMENTATION"),
        (pb.ScoreRequest(texts=["a"]), "references", "0 references for 1 texts: give one for each"),
    ],
)  # fmt: skip
def test_each_request_has_rules(request_: Any, field: str, description: str) -> None:
    found = violations(request_)
    assert list(found) == [field]
    assert description in found[field]


def test_of_a_huge_request_only_the_first_violation_is_named() -> None:
    phrases = ["a" * 1001] * (MAX_LISTED_BYTES // 1001 + 1)
    assert len(violations(pb.TranslateDocumentRequest(keep=phrases))) == 1


NUMBERS = st.sampled_from([-1, 0, 1, 2, 4, 16, 17, 100, 101, 2**31 - 1]) | st.none()
REALS = st.sampled_from([-0.1, 0.0, 0.05, 0.1, 0.5, 1.0, 10.0, 10.1, math.inf, math.nan]) | st.none()
GIVEN = st.fixed_dictionaries(
    {
        **dict.fromkeys(("beam_size", "max_length", "n_best", "min_length", "no_repeat_ngram_size"), NUMBERS),
        **dict.fromkeys(("length_penalty", "patience", "coverage_penalty", "repetition_penalty"), REALS),
        "sampling": st.none()
        | st.fixed_dictionaries({"temperature": REALS, "top_p": REALS, "top_k": NUMBERS, "seed": NUMBERS}),
        "suppressed_tokens": st.sampled_from([[], ["a"] * 256, ["a"] * 257, ["a" * 1001]]),
        "attention_heads": st.sampled_from([[], ["a"] * 1025]),
    }
)


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(GIVEN, st.data())
def test_the_python_api_has_the_same_ranges(given_: dict[str, Any], data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(sorted(given_)), max_size=4))
    options = pb.DecodingOptions(**{name: given_[name] for name in kept})
    by_rules = by_python = True
    try:
        check_request(options)
    except InvalidRequestError:
        by_rules = False
    try:
        from_proto(DecodeOptions, options)
    except InvalidRequestError:
        by_python = False
    assert by_rules == by_python, options


def test_the_defaults_keep_the_rules() -> None:
    assert from_proto(DecodeOptions, pb.DecodingOptions()) == DecodeOptions()
    check_request(pb.DecodingOptions())
