"""Measuring real levels of the tiny bundle."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny import SENTENCES

from hmc.artifact import InvalidRequestError, read_manifest
from hmc.benchmark import Limits, TestSet, measure_quality
from hmc.benchmark.budget.find import ROUNDS, TIMED_SENTENCES, LevelMeter, Workload
from hmc.serving import DecodeOptions, Translator

PAIRS = TestSet("tiny", tuple(SENTENCES), tuple(reversed(SENTENCES)))


def test_a_workload_is_single_sentences_and_no_blanks() -> None:
    workload = Workload.from_sources([" ", "A man.", "", *["A dog."] * TIMED_SENTENCES], 2, decides=True)
    assert workload.sentences == ("A man.", *["A dog."] * (TIMED_SENTENCES - 1))
    assert workload.rounds == ROUNDS > Workload.from_sources(["A man."], 2, decides=False).rounds
    assert f"{TIMED_SENTENCES} requests, one sentence each, beam 2" in str(workload)
    assert f"{ROUNDS} rounds or more in turns" in str(workload)
    with pytest.raises(InvalidRequestError, match="beam 0: choose 1 to"):
        Workload.from_sources(["A man."], 0, decides=True)


@pytest.fixture(scope="module")
def pairs(tiny_bundle: Path) -> TestSet:
    """References that the tiny model nearly writes: BLEU is far from 0, so intervals have a width."""
    with Translator(tiny_bundle, "full") as translator:
        written = [t.text for t in translator.translate(SENTENCES, DecodeOptions(beam_size=1))]
    references = [
        " ".join(words[:-1]) + " x" if i % 3 else " ".join(words) for i, words in enumerate(map(str.split, written))
    ]
    return TestSet("tiny", tuple(SENTENCES), tuple(references))


@pytest.mark.parametrize("confidence", [0.0, 0.8, 0.95])
def test_scores_are_those_of_eval_and_confidence_widens_the_loss(
    tiny_bundle: Path, pairs: TestSet, confidence: float
) -> None:
    manifest = read_manifest(tiny_bundle)
    expected = measure_quality(tiny_bundle, pairs, ["full", "h12"], beam=1)

    meter = LevelMeter(tiny_bundle, pairs, Workload(pairs.sources[:2], 1, 1), Limits(1.0, confidence=confidence))
    full, small = (meter.measure(manifest, manifest.level(name)) for name in ("full", "h12"))
    assert (full.quality, small.quality) == (expected["full"], expected["h12"])
    assert (full.loss_at_most, full.heads, small.heads) == (0, 24, 12)
    assert full.p50_ms > 0
    assert meter.devices == ["cpu", "cpu"]
    bound = {0.0: small.loss, 0.95: -small.quality.ci_low}.get(confidence)
    if bound is not None:
        assert small.loss_at_most == bound
    else:
        assert small.loss < small.loss_at_most < -small.quality.ci_low
