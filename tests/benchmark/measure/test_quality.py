"""Quality of fake and of real levels."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.benchmark.fakes import FakeTranslator, quality
from tests.support.files import write_lines

from hmc.artifact import InvalidRequestError, validate
from hmc.artifact.bundle.manifest import Quality, Significance
from hmc.artifact.errors import LevelNotFoundError
from hmc.benchmark import TestSet, measure_quality, record_quality
from hmc.benchmark.measure.quality import Output, over_kinds, score, translate_all

SOURCES = tuple(f"a man number {i} walks his old dog along the long river" for i in range(30))
PAIRS = TestSet("fake", SOURCES, tuple(source.upper() for source in SOURCES))


def test_scores_of_a_fake_translator() -> None:
    calls = []
    perfect = FakeTranslator(str.upper, lambda texts, beam: calls.append((len(texts), beam)))
    shorter = FakeTranslator(lambda text: " ".join(text.upper().split()[:-2]))
    full = translate_all(perfect, "full", SOURCES, 3)
    small = translate_all(shorter, "h36", SOURCES, 3)
    assert calls == [(30, 3)]

    best = score(full, full, PAIRS, 3)
    assert (best.bleu, best.chrf) == pytest.approx((100, 100))
    assert (best.bleu_delta, best.ci_low, best.ci_high, best.p_value) == (0, 0, 0, 1)
    worse = score(small, full, PAIRS, 3)
    assert worse.bleu_delta == pytest.approx(worse.bleu - 100)
    assert worse.ci_low <= worse.bleu_delta <= worse.ci_high < 0
    assert worse.p_value == pytest.approx(1 / 10_001)  # the least that 10 000 trials can give
    assert (worse.test_set, worse.sentences, worse.beam, worse.reference_level) == ("fake", 30, 3, "full")
    assert worse.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert worse.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_the_recorded_p_value_is_the_one_that_sacrebleu_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m sacrebleu` on the same files, with the seed and the number of trials that the quality records."""
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    first = Output("full", tuple(line if n % 3 else line.lower() for n, line in enumerate(PAIRS.references or ())))
    second = Output("h36", tuple(line if n % 4 else line[:-6] for n, line in enumerate(PAIRS.references or ())))
    quality = score(second, first, PAIRS, 1)
    recorded = quality.significance
    assert recorded == Significance(test="sacrebleu paired-ar", trials=10_000, resamples=1000, seed=77)
    for name, lines in (("ref", PAIRS.references or ()), ("base", first.hypotheses), ("sys", second.hypotheses)):
        write_lines(tmp_path / name, lines)
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "base", "sys", "-m", "bleu", "--paired-ar"]
    ran = subprocess.run([*command, "--format", "json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = json.loads(ran.stdout)[1]["BLEU"]["p_value"]
    assert 0.001 < printed < 0.999
    assert quality.p_value == pytest.approx(printed, abs=1e-4)  # the command prints four digits


def test_a_quality_recorded_without_its_test_is_still_read() -> None:
    output = Output("full", PAIRS.references or ())
    old = score(output, output, PAIRS, 1).model_dump()
    del old["significance"]
    assert Quality.model_validate(old).significance is None


def test_quality_without_references_is_refused() -> None:
    output = Output("full", SOURCES)
    with pytest.raises(InvalidRequestError, match="references: the quality on fake needs them"):
        score(output, output, TestSet("fake", SOURCES), 4)


def test_one_sentence_says_nothing_of_significance() -> None:
    output, other = Output("full", ("A B C D E",)), Output("h36", ("A B C D",))
    with pytest.raises(InvalidRequestError, match="fake: 1 sentence pair, and the significance"):
        score(other, output, TestSet("fake", ("a b c d e",), ("A B C D E",)), 4)


@pytest.fixture
def pairs(tmp_path: Path) -> TestSet:
    src, ref = tmp_path / "set.en", tmp_path / "set.de"
    src.write_text("A man.\nA dog runs.\nTwo women.\n", encoding="utf-8")
    ref.write_text("Ein Mann.\nEin Hund läuft.\nZwei Frauen.\n", encoding="utf-8")
    return TestSet.read(src, ref, name="mine")


def test_the_reference_is_full_even_if_it_is_not_asked_for(tiny_bundle: Path, pairs: TestSet) -> None:
    steps: list[str] = []
    found = measure_quality(tiny_bundle, pairs, ["h5"], beam=1, progress=steps.append)
    assert list(found) == ["h5"]
    assert found["h5"].reference_level == "full"
    assert [line.partition(":")[0] for line in steps] == ["full", "h5"]


def test_sources_that_were_cut_are_warned_of(tiny_bundle: Path, pairs: TestSet) -> None:
    warnings: list[str] = []
    measure_quality(tiny_bundle, pairs, ["full"], beam=1, warn=warnings.append)
    assert warnings == []
    long = replace(pairs, sources=("A man. " * 100, *pairs.sources[1:]))
    measure_quality(tiny_bundle, long, ["full"], beam=1, warn=warnings.append)
    assert [line.partition(";")[0] for line in warnings] == ["mine: 1 of 3 sources are longer than the model takes"]


def test_unknown_levels_are_refused_with_those_there_are(tiny_bundle: Path, pairs: TestSet) -> None:
    with pytest.raises(LevelNotFoundError, match="unknown level 'h7'; this bundle has: full"):
        measure_quality(tiny_bundle, pairs, ["h7"])


def test_recording_keeps_the_version_and_a_valid_bundle(tiny_bundle: Path, tmp_path: Path, pairs: TestSet) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    before = validate(bundle)
    found = measure_quality(bundle, pairs, ["full", "h5-int8"], beam=2)
    record_quality(bundle, found)
    after = validate(bundle)
    assert after.version == before.version
    assert after.level("h5-int8").quality == found["h5-int8"]
    assert found["h5-int8"].test_set == "mine"
    assert after.level("h12").quality is None


def test_kinds_of_text_count_alike_whatever_their_size() -> None:
    """The half-widths of intervals add up as standard errors do: 0.3 and 0.4 make 0.5, and half of that for a mean."""
    captions = quality("h36", 38.0, -0.5, 0.1, reference=38.2)
    ui = quality("h36", 34.0, -1.4, -0.6, reference=35.0).model_copy(update={"sentences": 990})
    found = over_kinds({"captions": captions, "ui": ui}, "two kinds", "python -m scores")
    assert (found.test_set, found.bleu, found.sentences) == ("two kinds", 36.0, 1000)
    assert [found.bleu_delta, found.ci_low, found.ci_high] == pytest.approx([-0.6, -0.85, -0.35])
    assert found.kinds["ui"].bleu_delta == pytest.approx(-1.0)
    assert found.kinds["ui"].ci_high == -0.6
    assert found.command == "python -m scores"
    assert found.p_value < 1e-4
    surely = quality("h36", 38.0, -0.5, 0.5, reference=38.0)
    assert over_kinds({"captions": surely, "ui": surely}, "", "").p_value == pytest.approx(1.0)
    edge = quality("h36", 38.0, -1.0, 0.0, reference=38.5)
    assert over_kinds({"captions": edge}, "", "").p_value == pytest.approx(0.05), "the interval just has no 0"
