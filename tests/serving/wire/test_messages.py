"""Conversion of plain data to messages and back."""

import dataclasses

import grpc
import pytest

from hmc.artifact import InvalidRequestError
from hmc.artifact.bundle.manifest import Latency, Quality
from hmc.artifact.errors import InternalServiceError, LevelNotFoundError, OverloadedError
from hmc.engine.requests.work import BatchLoad
from hmc.serving import Alternative, DecodeOptions, Sampling, Selector, Token, Translation
from hmc.serving.client import (
    Answer,
    DeviceUse,
    LatencySummary,
    LevelBytes,
    LevelInfo,
    LevelList,
    LevelLoad,
    ModelInfo,
    ServerStatus,
)
from hmc.serving.wire import messages as converters
from hmc.v1 import translation_pb2 as pb

TRANSLATION = Translation(
    "Grüße ☃",
    -0.25,
    5,
    6,
    source_truncated=True,
    hit_max_length=True,
    much_shorter=True,
    alternatives=(Alternative("a", -0.5, 3, True, (Token("▁a", -0.125), Token("</s>"))), Alternative("", -1.5)),
    tokens=(Token("▁Grüße", -0.25, (0.5, 0.25, 0.25)), Token("</s>", -0.0)),
    source_pieces=("▁a", "▁b", "</s>"),
    queue_s=0.5,
    compute_s=1.5,
)


@pytest.mark.parametrize(
    "selector",
    [
        Selector(),
        Selector(name="h72"),
        Selector(max_heads=0),
        Selector(max_heads=72),
        Selector(max_bleu_drop=0.0),
        Selector(max_bleu_drop=0.25),
        Selector(latency_budget_ms=20),
        Selector(auto=True),
    ],
)
def test_selectors_are_the_same_after_both_conversions(selector: Selector) -> None:
    request = pb.TranslateRequest(level=converters.selector_to_proto(selector))
    assert converters.selector_from_proto(pb.TranslateRequest.FromString(request.SerializeToString()).level) == selector


def test_no_selector_is_absent_and_auto_false_is_none() -> None:
    assert not pb.TranslateRequest(level=converters.selector_to_proto(Selector())).HasField("level")
    assert converters.selector_from_proto(pb.LevelSelector(auto=False)) == Selector()


@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions(),
        DecodeOptions(beam_size=8, length_penalty=0.0, max_length=7, n_best=3),
        DecodeOptions(
            min_length=3,
            patience=0.5,
            coverage_penalty=0.25,
            repetition_penalty=1.5,
            no_repeat_ngram_size=3,
            suppress_unknown=True,
            suppressed_tokens=("▁a", "b"),
            suppressed_phrases=("a b",),
            token_scores=True,
            alignment=True,
            attention_heads=("cross.0.1",),
        ),
        DecodeOptions(sampling=Sampling()),
        DecodeOptions(n_best=5, sampling=Sampling(temperature=0.5, top_k=3, top_p=0.25, seed=0)),
    ],
)
def test_options_are_the_same_after_both_conversions(options: DecodeOptions) -> None:
    assert converters.from_proto(DecodeOptions, converters.to_proto(pb.DecodingOptions, options)) == options


def test_absent_options_take_defaults_and_zero_is_not_absent() -> None:
    assert converters.from_proto(DecodeOptions, pb.DecodingOptions()) == DecodeOptions()
    assert converters.from_proto(DecodeOptions, pb.DecodingOptions(length_penalty=0.0)).length_penalty == 0.0
    with pytest.raises(InvalidRequestError, match="beam_size 0: choose 1 to 16"):
        converters.from_proto(DecodeOptions, pb.DecodingOptions(beam_size=0))


def test_answers_are_the_same_after_both_conversions() -> None:
    answer = Answer((TRANSLATION, Translation("", 0.0, 0, 0)), "h72", "v1", 500.0, 1500.0)
    back = converters.answer_from_proto(converters.to_proto(pb.TranslateResponse, answer))
    assert back == answer
    assert [t.text for t in back] == ["Grüße ☃", ""]
    assert (back[0].queue_s, back[0].compute_s) == (0.5, 1.5)


def test_stream_answers_are_the_same_after_both_conversions() -> None:
    answer = Answer((TRANSLATION,), "h72", "v1", 500.0, 1500.0)
    back = converters.stream_answer_from_proto(converters.stream_answer_to_proto("x", answer), 7)
    assert (back.index, back.translation, back.error, back.level, back.bundle_version) == (
        7,
        TRANSLATION,
        None,
        "h72",
        "v1",
    )
    assert back.result() == TRANSLATION


@pytest.mark.parametrize("error", [InvalidRequestError("too long"), LevelNotFoundError("h1"), OverloadedError("full")])
def test_stream_errors_are_the_same_after_both_conversions(error: Exception) -> None:
    back = converters.stream_answer_from_proto(converters.stream_error_to_proto("x", error), 0)
    assert type(back.error) is type(error)
    with pytest.raises(type(error), match=str(error)):
        back.result()


def test_details_of_unexpected_errors_are_not_sent() -> None:
    message = converters.stream_error_to_proto("x", RuntimeError("secret"), "ab12")
    assert message.error.code == grpc.StatusCode.INTERNAL.value[0]
    assert "secret" not in message.error.message
    assert "ab12" in message.error.message


def test_an_answer_of_a_newer_server_is_an_error_not_a_crash() -> None:
    back = converters.stream_answer_from_proto(pb.TranslateStreamResponse(id="1"), 1)
    assert isinstance(back.error, InternalServiceError)


def test_levels_are_the_same_after_both_conversions() -> None:
    quality = Quality(
        test_set="synthetic", sentences=200, beam=4, bleu=37.0, chrf=60.0,
        bleu_delta=-0.5, ci_low=-0.9, ci_high=-0.1, p_value=0.03,
        reference_level="full", bleu_signature="b", chrf_signature="c",
    )  # fmt: skip
    recorded = Latency(p50_ms=1, p95_ms=2, p99_ms=3, batch=8, beam=4, requests=100, machine="two cores")
    kinds = {"encoder_self": [1, 0], "decoder_self": [2, 2], "cross": [0, 4]}
    measured, disk, memory = LatencySummary(1.0, 2.0, 3.0, 4), LevelBytes(56, 400), LevelBytes(0, 2**40)
    full = LevelInfo(
        "h9", 9, kinds, "int8", 123, 456, True, True, quality, measured, recorded, disk, memory, True, "stopped",
        LevelBytes(5, 2**41), "cuda:0,cuda:1",
    )  # fmt: skip
    bare = dataclasses.replace(
        full,
        name="bare",
        is_default=False,
        loaded=False,
        quality=None,
        latency=None,
        recorded_latency=None,
        memory=None,
        failure="",
        device_memory=None,
        device="",
    )
    levels = LevelList((full, bare), "v1", "en", "de", "cpu", 2**41, (DeviceUse("cuda:0", 2**40, 2**41, 2**42),))
    assert converters.levels_from_proto(converters.levels_to_proto(levels)) == levels


def test_a_kind_of_a_newer_server_is_left_out() -> None:
    message = pb.Level(
        name="x", heads_by_kind=[pb.KindHeads(kind=pb.HEAD_KIND_CROSS, heads_per_layer=[1]), pb.KindHeads()]
    )
    assert converters.level_from_proto(message).heads_by_kind == {"cross": [1]}


def test_the_model_of_a_selector_goes_both_ways() -> None:
    for selector in (
        Selector(model="en-de"),
        Selector(name="h6", source_language="en"),
        Selector(auto=True, model="m", source_language="en", target_language="de"),
    ):
        message = converters.selector_to_proto(selector)
        assert message is not None
        assert converters.selector_from_proto(message) == selector
    assert Selector(model="m").default_level
    assert not Selector(model="m", auto=True).default_level
    with pytest.raises(InvalidRequestError, match="target_language has 65 characters"):
        converters.selector_from_proto(pb.LevelSelector(target_language="x" * 65))


def test_models_go_both_ways() -> None:
    models = (ModelInfo("en-x", "en", ("de", "fr"), "v", 2), ModelInfo("a", "de", ("en",), "w", 0))
    message = pb.ListModelsResponse(models=[converters.to_proto(pb.Model, model) for model in models])
    assert converters.models_from_proto(message) == models


def test_the_status_of_a_server_goes_both_ways() -> None:
    batches = (BatchLoad(0, 3, 12, interactive=True), BatchLoad(1, 2, 2, interactive=False))
    busy = LevelLoad("en-de", "h36", 5, 1024, 2, 128, batches, LevelBytes(1, 2), LevelBytes(3, 0), "it stopped")
    idle = LevelLoad("en-fr", "full", 0, 1024, 1, 128, ())
    status = ServerStatus((busy, idle), 1 << 40, (DeviceUse("cuda:0", 1, 2, 3),))
    assert converters.from_proto(ServerStatus, converters.to_proto(pb.GetStatusResponse, status)) == status
    assert converters.from_proto(ServerStatus, pb.GetStatusResponse()) == ServerStatus((), 0)
