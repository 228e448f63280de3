"""The engine on real graphs: batch invariance, the PyTorch reference, cancelling, limits, errors."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serving.fakes import eventually
from tests.serving.held_steps import HeldSteps
from tests.tiny import SENTENCES

from hmc.artifact import InvalidArtifactError, InvalidRequestError
from hmc.artifact.errors import DeviceUnavailableError, LevelNotFoundError, OverloadedError, UnavailableError
from hmc.serving import DecodeOptions, Sampling, Translation, Translator

TEXTS = [*SENTENCES, *(f"{a} {b}" for a, b in pairwise(SENTENCES))]


@pytest.fixture(scope="module", params=["full", "h12", "h5", "full-int8", "h5-int8"])
def translator(request: pytest.FixtureRequest, tiny_bundle: Path) -> Iterator[Translator]:
    """One level of the tiny bundle, with few rows so that sentences queue, join and leave."""
    with Translator(tiny_bundle, request.param, device="cpu", threads=1, max_rows=16) as loaded:
        yield loaded


@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_does_not_depend_on_the_rest_of_the_batch(translator: Translator, beam: int) -> None:
    options = DecodeOptions(beam_size=beam, n_best=beam)
    together = translator.translate(TEXTS, options, segmentation="none")
    alone = [translator.translate([text], options, segmentation="none")[0] for text in TEXTS]
    assert [t.text for t in together] == [t.text for t in alone]
    texts = [[[a.text for a in t.alternatives] for t in found] for found in (together, alone)]
    assert texts[0] == texts[1]
    assert [t.score for t in together] == pytest.approx([t.score for t in alone], abs=1e-5)
    shuffled = random.Random(0).sample(range(len(TEXTS)), len(TEXTS))
    again = translator.translate([TEXTS[i] for i in shuffled], options, segmentation="none")
    assert [again[shuffled.index(i)].text for i in range(len(TEXTS))] == [t.text for t in alone]


def test_beams_of_different_size_run_side_by_side(translator: Translator) -> None:
    options = [DecodeOptions(beam_size=b, length_penalty=p) for b, p in ((1, 1.0), (4, 0.0), (2, 1.5), (5, 1.0))]
    jobs = [(text, options[i % 4]) for i, text in enumerate(TEXTS)]
    futures = [translator.submit(text, o) for text, o in jobs]
    assert [f.result().text for f in futures] == [
        translator.translate([t], o, segmentation="none")[0].text for t, o in jobs
    ]


@pytest.mark.parametrize("level", ["full", "h12", "h5"])
@pytest.mark.parametrize(("beam", "penalty", "limit"), [(1, 1.0, 40), (4, 1.0, 40), (4, 0.0, 12), (3, 2.0, 5)])
def test_equals_the_pytorch_reference(
    tiny_bundle: Path, tiny_checkpoint: Path, level: str, beam: int, penalty: float, limit: int
) -> None:
    from hmc.artifact import load_checkpoint, read_manifest
    from hmc.training import Vocabulary, beam_search, mask_to_layout, model_from_checkpoint

    checkpoint = load_checkpoint(tiny_checkpoint)
    model = model_from_checkpoint(checkpoint).eval()
    mask_to_layout(model, checkpoint.layout, read_manifest(tiny_bundle).level(level).layout)
    vocabulary = Vocabulary(checkpoint.tokenizer)
    expected = beam_search(
        model, [vocabulary.encode(t) for t in TEXTS], openings=(), beam=beam, max_length=limit, length_penalty=penalty
    )
    options = DecodeOptions(beam_size=beam, length_penalty=penalty, max_length=limit, n_best=beam)
    with Translator(tiny_bundle, level, device="cpu", threads=1) as translator:
        found = translator.translate(TEXTS, options, segmentation="none")
    for hypotheses, translation in zip(expected, found, strict=True):
        best = translation.hypotheses
        assert [vocabulary.decode(h.ids) for h in hypotheses] == [t.text for t in best]
        assert [t.score for t in best] == pytest.approx([h.score for h in hypotheses], abs=1e-4)


def test_blank_text_is_an_empty_translation(translator: Translator) -> None:
    assert [t.text for t in translator.translate(["", "   ", SENTENCES[0]], segmentation="none")][:2] == ["", ""]


def test_long_text_is_cut_and_says_so(translator: Translator) -> None:
    long = translator.translate([" ".join(SENTENCES * 3)], DecodeOptions(max_length=4), segmentation="none")[0]
    assert long.source_truncated
    assert long.source_tokens == 96
    assert long.hit_max_length
    assert long.target_tokens == 4


def test_a_huge_text_names_its_place_and_the_limit(translator: Translator) -> None:
    with pytest.raises(InvalidRequestError, match=r"text 1: .*65,536; divide it"):
        translator.translate(["a", "x" * 100_000], segmentation="none")
    with pytest.raises(InvalidRequestError, match="put a single text in a list"):
        translator.translate("a text", segmentation="none")


def test_lone_surrogate_is_refused(translator: Translator) -> None:
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        translator.submit("\ud800")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beam_size": 0}, "beam_size 0: choose 1 to 16"),
        ({"beam_size": 2, "n_best": 3}, "n_best 3"),
        ({"max_length": 0}, "max_length 0: choose 1 or more"),
        ({"max_length": 2**31}, "max_length 2147483648: choose 1 or more, up to 2147483647"),
        ({"min_length": 0}, "min_length 0: choose 1 or more"),
        ({"beam_size": 2.5}, "beam_size 2.5: choose a whole number"),
        ({"max_length": 5.5}, "max_length 5.5: choose a whole number"),
        ({"n_best": 2.0}, "n_best 2.0: choose a whole number"),
        ({"suppressed_tokens": "▁Hund"}, "suppressed_tokens takes a list: put a single one in a list"),
        ({"attention_heads": "cross.0.1"}, "attention_heads takes a list"),
        ({"suppressed_tokens": b"ab"}, "suppressed_tokens takes a list"),
        ({"suppressed_phrases": None}, "suppressed_phrases takes a list"),
        ({"length_penalty": "1"}, "length_penalty '1': choose a number"),
        ({"patience": "1"}, "patience '1': choose a number"),
        ({"beam_size": True}, "beam_size True: choose a whole number"),
        ({"length_penalty": -1.0}, "length_penalty -1"),
    ],
)
def test_options_out_of_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        DecodeOptions(**values)


def test_numbers_and_lists_of_other_kinds() -> None:
    with pytest.raises(InvalidRequestError, match=r"seed 2\.5: choose a whole number"):
        Sampling(seed=2.5)  # type: ignore[arg-type]  # as callers do
    options = DecodeOptions(beam_size=np.int64(2), suppressed_tokens=["▁a"])  # type: ignore[arg-type]  # as callers do
    assert options == DecodeOptions(beam_size=2, suppressed_tokens=("▁a",))
    assert hash(options)


def test_cancelled_work_frees_the_engine(tiny_bundle: Path, steps: HeldSteps) -> None:
    with Translator(tiny_bundle, "full", device="cpu", threads=1, max_rows=4) as translator:
        steps.hold()
        futures = [translator.submit(" ".join(SENTENCES), DecodeOptions(max_length=95)) for _ in range(20)]
        steps.wait()
        for future in futures:
            assert future.cancel()
        steps.release()
        eventually(lambda: translator.pending == 0)
        assert (
            translator.translate([SENTENCES[0]], segmentation="none")[0].text
            == translator.translate([SENTENCES[0]], segmentation="none")[0].text
        )


def test_a_full_queue_refuses_and_recovers(tiny_bundle: Path, steps: HeldSteps) -> None:
    with Translator(tiny_bundle, "full", device="cpu", threads=1, max_rows=4, queue_size=3) as translator:
        accepted: list[Future[Translation]] = []

        def flood() -> None:
            for _ in range(1000):
                accepted.append(translator.submit(SENTENCES[1]))  # noqa: PERF401 - kept as far as it gets

        steps.hold()
        with pytest.raises(OverloadedError, match="queue of 3 sentences is full"):
            flood()
        steps.release()
        assert len({f.result().text for f in accepted}) == 1
        assert len(translator.translate(SENTENCES, segmentation="none")) == len(
            SENTENCES
        )  # any number of texts: waits for space


def test_unknown_level_and_broken_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(LevelNotFoundError, match="this bundle has: full"):
        Translator(tiny_bundle, "h99")
    broken = Path(shutil.copytree(tiny_bundle, tmp_path / "b"))
    (broken / "h5" / "decoder.onnx").write_bytes(b"not a graph")
    with pytest.raises(InvalidArtifactError, match=r"h5/decoder\.onnx has sha256"):
        Translator(broken, "full")


@pytest.mark.usefixtures("no_cuda")
def test_cuda_asked_for_and_absent_is_an_error(tiny_bundle: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match="level 'full' on cuda: the NVIDIA driver is missing"):
        Translator(tiny_bundle, "full", device="cuda")
    with pytest.raises(InvalidRequestError, match="choose auto, cpu"):
        Translator(tiny_bundle, "full", device="tpu")


def test_closing_without_draining_cancels(tiny_bundle: Path, steps: HeldSteps) -> None:
    translator = Translator(tiny_bundle, "full", device="cpu", threads=1, max_rows=4)
    steps.hold()
    futures = [translator.submit(" ".join(SENTENCES), DecodeOptions(max_length=95)) for _ in range(30)]
    futures[-1].add_done_callback(lambda _: steps.release())  # closing waits for the workers after it has cancelled
    translator.close(drain=False)
    assert all(f.done() for f in futures)
    assert any(f.cancelled() for f in futures)
    with pytest.raises(UnavailableError, match="shutting down"):
        translator.submit("a")


@pytest.mark.parametrize(("max_rows", "workers"), [(1, 1), (3, 1), (1, 2)])
def test_a_level_with_few_rows_is_warmed_up_with_what_fits(tiny_bundle: Path, max_rows: int, workers: int) -> None:
    with Translator(tiny_bundle, "h5", device="cpu", max_rows=max_rows, workers=workers) as translator:
        translator.warm_up()
        with pytest.raises(InvalidRequestError, match=r"beam_size 4: this server runs at most \d rows .* or fewer"):
            translator.translate(["A man."], segmentation="none")
        assert (
            translator.translate(["A man."], DecodeOptions(beam_size=1, max_length=5), segmentation="none")[
                0
            ].target_tokens
            == 5
        )
