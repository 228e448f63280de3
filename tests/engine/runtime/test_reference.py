"""The reference executor behind every option of a request: the answers of ONNX Runtime, by another way."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.bundles import bundle_at
from tests.manifests import changed_manifest
from tests.once import Once

from hmc.artifact import InvalidRequestError, Precision, load_checkpoint, read_manifest, save_checkpoint, validate
from hmc.artifact.errors import FailedPreconditionError
from hmc.artifact.program.operations import AttendSource, read_program
from hmc.compiler import LevelRequest, compile_bundle
from hmc.engine.support import EXECUTORS, Executor
from hmc.serving import DecodeOptions, Sampling, Translation, Translator
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

TEXTS = ["A man is standing on a ladder.", "Two dogs run.", "A girl in a red dress eats an apple.", "People dance."]
OPTIONS = {
    "greedy": DecodeOptions(beam_size=1, token_scores=True),
    "beam 4": DecodeOptions(token_scores=True),
    "beam 16": DecodeOptions(beam_size=16),
    "n-best": DecodeOptions(n_best=4),
    "lengths": DecodeOptions(length_penalty=0.6, patience=2.0, min_length=3, max_length=6),
    "bans": DecodeOptions(suppress_unknown=True, suppressed_tokens=("▁dog",), suppressed_phrases=("A man",)),
    "n-grams": DecodeOptions(no_repeat_ngram_size=2, repetition_penalty=1.3),
    "coverage": DecodeOptions(coverage_penalty=0.3),
    "alignment": DecodeOptions(alignment=True, token_scores=True),
    "sampling": DecodeOptions(n_best=2, sampling=Sampling(seed=3)),
    "nucleus": DecodeOptions(sampling=Sampling(top_k=5, top_p=0.9, seed=3)),
}


def translated(
    bundle: Path, level: str, executor: Executor, options: DecodeOptions, prefix: str = "", wrong: float = 0.0
) -> list[Translation]:
    """wrong: the planted error, by which share the weights of one layer of the reference executor are too large."""
    prefixes = [prefix] * len(TEXTS) if prefix else []
    with Translator(bundle, level, device="cpu", threads=1, workers=1, executor=executor) as translator:
        if wrong:
            tensors = translator._engine.sessions.program.tensors  # type: ignore[attr-defined]
            scale = "decoder.layers.0.fc2.weight_scale"
            name = scale if scale in tensors else scale.removesuffix("_scale")
            tensors[name] = tensors[name] * np.float32(1 + wrong)
        return translator.translate(TEXTS, options, prefixes, segmentation="none")


def assert_same(one: list[Translation], other: list[Translation], tolerance: float) -> None:
    """Equal texts, and scores and attention that differ by rounding."""
    for first, second in zip(one, other, strict=True):
        assert [each.text for each in first.hypotheses] == [each.text for each in second.hypotheses]
        for ours, theirs in zip(first.hypotheses, second.hypotheses, strict=True):
            assert ours.score == pytest.approx(theirs.score, abs=tolerance)
            for token, expected in zip(ours.tokens, theirs.tokens, strict=True):
                assert token.score == pytest.approx(expected.score, abs=10 * tolerance)
                assert token.attention == pytest.approx(expected.attention, abs=1e-3)


@pytest.mark.parametrize("level", ["full", "h12"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(lively_bundle: Path, level: str, name: str) -> None:
    ours = translated(lively_bundle, level, "reference", OPTIONS[name])
    assert_same(ours, translated(lively_bundle, level, "onnxruntime", OPTIONS[name]), 1e-4)


@pytest.fixture(scope="module")
def unordered(lively_bundle: Path, lively_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The levels full and h12, each from a checkpoint that holds nothing to order heads by."""
    folder = tmp_path_factory.mktemp("unordered")
    checkpoint, requests = load_checkpoint(lively_checkpoint).without_scores(), []
    for name in ("full", "h12"):
        save_checkpoint(checkpoint, folder / name)
        requests.append(LevelRequest(folder / name, read_manifest(lively_bundle).level(name).layout, name))
    compile_bundle(requests, folder / "bundle")
    return folder / "bundle"


@pytest.mark.parametrize("level", ["full", "h12"])
def test_the_order_of_heads_changes_no_answer(lively_bundle: Path, unordered: Path, level: str) -> None:
    """Heads keep their names: also what each one looks at stays."""
    heads = {
        bundle: [each.original for each in read_program(bundle, level).step if isinstance(each, AttendSource)]
        for bundle in (lively_bundle, unordered)
    }
    assert heads[unordered] == [tuple(sorted(row)) for row in heads[unordered]]
    assert level != "full" or heads[lively_bundle] != heads[unordered]
    for layer, row in enumerate(read_manifest(unordered).level(level).layout.cross):
        for head in row:
            options = DecodeOptions(
                beam_size=1, alignment=True, token_scores=True, attention_heads=(f"cross.{layer}.{head}",)
            )
            expected = translated(unordered, level, "onnxruntime", options)
            for executor in EXECUTORS:
                assert_same(translated(lively_bundle, level, executor, options), expected, 1e-4)


@pytest.mark.parametrize("name", ["beam 4", "alignment"])
def test_a_wrong_weight_is_noticed(lively_bundle: Path, name: str) -> None:
    """The planted error beside the tolerances of scores, token scores and attention."""
    theirs = translated(lively_bundle, "full", "onnxruntime", OPTIONS[name])
    ours = translated(lively_bundle, "full", "reference", OPTIONS[name], wrong=0.02)
    assert [each.text for each in ours] == [each.text for each in theirs], "the texts do not show it"
    with pytest.raises(AssertionError, match="comparison failed"):
        assert_same(ours, theirs, 1e-4)
    tokens = [token for each in ours for token in each.tokens]
    others = [token for each in theirs for token in each.tokens]
    assert [each.score for each in tokens] != pytest.approx([each.score for each in others], abs=1e-3)
    if name == "alignment":
        looked = [[each.attention for each in found] for found in (tokens, others)]
        assert looked[0] != [pytest.approx(each, abs=1e-3) for each in looked[1]]


@pytest.mark.parametrize("beam", [1, 4])
def test_prefixes(lively_bundle: Path, beam: int) -> None:
    options = DecodeOptions(beam_size=beam)
    ours = translated(lively_bundle, "full", "reference", options, prefix="Two dogs")
    assert_same(ours, translated(lively_bundle, "full", "onnxruntime", options, prefix="Two dogs"), 1e-4)
    assert all(each.text.startswith("Two dogs") for each in ours)


def test_scores_of_given_translations(lively_bundle: Path) -> None:
    scored: dict[str, list[Translation]] = {}
    for executor in ("reference", "onnxruntime"):
        with Translator(lively_bundle, "full", device="cpu", threads=1, workers=1, executor=executor) as translator:
            scored[executor] = translator.score(TEXTS, TEXTS[::-1], DecodeOptions(token_scores=True))
    assert_same(scored["reference"], scored["onnxruntime"], 1e-4)


def test_int8_is_that_of_the_graph_for_beam_search(lively_bundle: Path) -> None:
    """Scores are within what one activation that rounds otherwise moves; and so much only of int8's own error."""
    ours = translated(lively_bundle, "h12-int8", "reference", DecodeOptions())
    theirs = translated(lively_bundle, "h12-int8", "onnxruntime", DecodeOptions())
    assert [each.text for each in ours] == [each.text for each in theirs]
    assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=0.02)
    exact = translated(lively_bundle, "h12", "reference", DecodeOptions())
    assert [each.score for each in exact] != pytest.approx([each.score for each in theirs], abs=0.02)


def test_a_sentence_does_not_depend_on_its_batch(lively_bundle: Path) -> None:
    for level in ("full", "h12-int8"):
        with Translator(lively_bundle, level, device="cpu", executor="reference") as translator:
            together = translator.translate(TEXTS, segmentation="none")
            alone = [translator.translate([text], segmentation="none")[0] for text in TEXTS]
            assert [each.score for each in together] == [each.score for each in alone]


@pytest.mark.parametrize("level", ["full-shortlist", "full-int8-shortlist"])
@pytest.mark.parametrize("name", ["beam 4", "bans", "sampling"])
def test_shortlists(listed_bundle: Path, level: str, name: str) -> None:
    ours = translated(listed_bundle, level, "reference", OPTIONS[name])
    theirs = translated(listed_bundle, level, "onnxruntime", OPTIONS[name])
    if level == "full-shortlist":
        assert_same(ours, theirs, 1e-4)
    assert_near(ours, theirs, 0.05)
    wrong = translated(listed_bundle, level, "reference", OPTIONS[name], wrong=0.3)
    with pytest.raises(AssertionError):  # the planted error
        assert_near(wrong, theirs, 0.05)


def assert_near(one: list[Translation], other: list[Translation], tolerance: float) -> None:
    """Most texts are equal, and then the scores differ by rounding."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a.text == b.text]
    assert len(pairs) >= len(one) // 2
    for first, second in pairs:
        assert first.score == pytest.approx(second.score, abs=tolerance)


@pytest.fixture(scope="module")
def halves(lively_checkpoint: Path, once: Once) -> Path:
    precisions: tuple[Precision, ...] = ("fp16", "bf16", "int4")
    return once(bundle_at, lively_checkpoint, (24,), precisions)


@pytest.mark.parametrize("level", ["full-fp16", "full-bf16"])
def test_sixteen_bits_on_a_cpu(halves: Path, lively_bundle: Path, level: str) -> None:
    """Levels for CUDA run too: that is what kernels are compared with."""
    ours = translated(halves, level, "reference", DecodeOptions(beam_size=1))
    exact = translated(lively_bundle, "full", "reference", DecodeOptions(beam_size=1))
    assert_near(ours, exact, 0.1)
    wrong = translated(halves, level, "reference", DecodeOptions(beam_size=1), wrong=0.3)
    with pytest.raises(AssertionError):  # the planted error
        assert_near(wrong, exact, 0.1)


def test_what_it_does_not_run(halves: Path, lively_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="level 'full-int4' is int4; it runs fp32, fp16, bf16, int8"):
        Translator(halves, "full-int4", executor="reference")
    with pytest.raises(InvalidRequestError, match="runs on a CPU: choose device cpu, not cuda"):
        Translator(lively_bundle, "full", device="cuda", executor="reference")
    with pytest.raises(InvalidRequestError, match="executor 'cuda': choose auto, onnxruntime, native, reference"):
        Translator(lively_bundle, "full", executor="cuda")  # type: ignore[arg-type]
    old = Path(shutil.copytree(lively_bundle, tmp_path / "old"))
    with changed_manifest(old) as raw:
        for level in raw["levels"]:
            level["files"] = {name: digest for name, digest in level["files"].items() if "/program." not in name}
    with pytest.raises(InvalidRequestError, match="level 'full' has no step program; compile the bundle again"):
        Translator(old, "full", executor="reference")


def test_weights_of_a_wider_level_that_were_changed(lively_bundle: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(lively_bundle, tmp_path / "b"))
    manifest, program = validate(changed), read_program(changed, "h12")
    wider = next(p.file for p in program.tensors.values() if p.file not in manifest.level("h12").files)
    (changed / wider).write_bytes((changed / wider).read_bytes()[::-1])
    with pytest.raises(FailedPreconditionError, match=f"{wider} has changed since this bundle was opened"):
        Translator(changed, "h12", executor="reference", manifest=manifest)


def test_a_server(lively_bundle: Path) -> None:
    settings = ServerSettings(port=0, device="cpu", levels=("h5",), default_level="h5", executor="reference")
    with BackgroundServer(lively_bundle, settings) as running, Client(running.address) as client:
        answer = client.translate(TEXTS, options=replace(OPTIONS["beam 4"], token_scores=False), segmentation="none")
        assert [each.text for each in answer] == [
            each.text for each in translated(lively_bundle, "h5", "onnxruntime", DecodeOptions())
        ]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
