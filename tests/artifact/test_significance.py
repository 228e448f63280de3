"""Significance: against hand-computed cases, against sacreBLEU's functions, and against its command line."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest, Result
from tests.support.files import write_lines

from hmc.artifact import InvalidRequestError
from hmc.artifact.significance import (
    SEED,
    SEED_VARIABLE,
    Floats,
    Resampler,
    Statistics,
    bleu,
    bleu_signature,
    bleu_statistics,
    default_seed,
    difference,
    interval,
    p_value,
    tokenizer_of,
)

WORDS = "ein der mann hund frau läuft auf einem sofa und , rot blau mit kind".split()  # noqa: SIM905


def corpus(seed: int, length: int = 60) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(4, 14))) + "." for _ in range(length)]


def damaged(sentences: list[str], share: float, seed: int) -> list[str]:
    """Sentences with this share of their words taken out."""
    rng = np.random.default_rng(seed)
    return [" ".join(w for w in s.split() if rng.random() > share) for s in sentences]


REFERENCES = corpus(0)
GOOD, CLOSE, BAD = damaged(REFERENCES, 0.2, 1), damaged(REFERENCES, 0.22, 2), damaged(REFERENCES, 0.5, 3)


def statistics(hypotheses: list[str]) -> Statistics:
    return bleu_statistics(hypotheses, REFERENCES)


def mean(totals: Statistics) -> Floats:
    """The mean of the values of rows (value, 1), as a score."""
    return np.asarray(totals[..., 0] / totals[..., 1], np.float64)


def rows(values: list[float]) -> Statistics:
    return np.stack([np.array(values), np.ones(len(values))], axis=1)


def sacrebleu_command(folder: Path, systems: dict[str, list[str]], *options: str, seed: int) -> list[float]:
    """The p-values that `python -m sacrebleu` prints for all systems but the first, which is the baseline."""
    for name, lines in {"reference": REFERENCES, **systems}.items():
        write_lines(folder / name, lines)
    command = [sys.executable, "-m", "sacrebleu", "reference", "-i", *systems, "-m", "bleu", *options]
    environment = {**os.environ, SEED_VARIABLE: str(seed)}
    ran = subprocess.run(
        [*command, "--format", "json"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return [system["BLEU"]["p_value"] for system in json.loads(ran.stdout)[1:]]


@pytest.mark.parametrize("seed", [SEED, 7])
def test_p_values_are_those_that_sacrebleus_command_prints(tmp_path: Path, seed: int) -> None:
    systems = {"good": GOOD, "close": CLOSE, "bad": BAD}
    printed = sacrebleu_command(tmp_path, systems, "--paired-ar", "--paired-ar-n", "2000", seed=seed)
    good = statistics(GOOD)
    found = [p_value(statistics(one), good, bleu, trials=2000, seed=seed) for one in (CLOSE, BAD)]
    assert found == pytest.approx(printed, abs=1e-4)  # the command prints four digits
    assert 0.05 < found[0] < 1
    assert found[1] == pytest.approx(1 / 2001)


def test_the_seed_changes_the_trials() -> None:
    good, close = statistics(GOOD), statistics(CLOSE)
    found = {seed: p_value(close, good, bleu, trials=500, seed=seed) for seed in (1, 2, 3)}
    assert len(set(found.values())) > 1
    assert p_value(close, good, bleu, trials=500, seed=1) == found[1]


@pytest.mark.parametrize(("share", "seed"), [(0.2, 3), (0.21, 3), (0.22, 4), (0.24, 5), (0.3, 6)])
def test_p_values_are_sacrebleus_to_the_last_bit(monkeypatch: pytest.MonkeyPatch, share: float, seed: int) -> None:
    other = damaged(REFERENCES, share, seed)
    monkeypatch.setenv(SEED_VARIABLE, str(seed))
    metric = BLEU(references=[REFERENCES])
    _, theirs = PairedTest([("a", GOOD), ("b", other)], {"BLEU": metric}, None, test_type="ar", n_samples=1000)()
    result = theirs["BLEU"][1]
    assert isinstance(result, Result)
    assert p_value(statistics(other), statistics(GOOD), bleu, trials=1000, seed=seed) == result.p_value


def test_the_default_seed_is_sacrebleus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    assert default_seed() == 12345
    monkeypatch.setenv(SEED_VARIABLE, "99")
    assert default_seed() == 99


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("none", "environment variable SACREBLEU_SEED is 'none'; set a whole number, or unset it for 12345"),
        ("0", "seed 0: sacreBLEU takes 0 as no seed, so its test could not be repeated; choose 1 to 4294967295"),
        ("-1", "seed -1: choose 1 to 4294967295"),
    ],
)
def test_a_seed_that_cannot_be_repeated_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.setenv(SEED_VARIABLE, text)
    with pytest.raises(InvalidRequestError) as caught:
        default_seed()
    assert str(caught.value) == message


@pytest.mark.parametrize(("differing", "expected"), [(0, 1.0), (1, 1.0), (2, 0.5), (5, 1 / 16)])
def test_a_few_sentences_that_differ_prove_little(differing: int, expected: float) -> None:
    """n sentences differ, all for the worse. Of the 2^n ways to swap them, 2 give as large a difference."""
    baseline = rows([1.0] * 30)
    system = rows([0.0] * differing + [1.0] * (30 - differing))
    assert p_value(system, baseline, mean, trials=1000) == expected


def test_a_p_value_of_a_mean_by_hand() -> None:
    """Two sentences better by 1 and 18 worse by 1: a binomial test of 20 with 2 or fewer, or 18 or more."""
    baseline = rows([1.0] * 20)
    system = rows([2.0] * 2 + [0.0] * 18)
    # sacreBLEU counts only larger differences: 0, 1, 19 or 20 of 20 swapped.
    exact = 2 * (1 + 20) / 2**20
    found = p_value(system, baseline, mean, trials=20_000)
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000) + 1 / 20_000)


def test_bleu_of_a_translation_that_is_one_word_short() -> None:
    counts = bleu_statistics(["a b c d"], ["a b c d e"])
    assert counts.tolist() == [[4, 5, 4, 3, 2, 1, 4, 3, 2, 1]]
    # Every n-gram matches; only the brevity penalty exp(1 - 5/4) remains.
    assert float(bleu(counts.sum(axis=0))) == pytest.approx(100 * math.exp(-0.25), abs=1e-9)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_summed_statistics_give_sacrebleus_corpus_score(share: float) -> None:
    hypotheses = damaged(REFERENCES, share, 1)
    metric = BLEU()
    expected = metric.corpus_score(hypotheses, [REFERENCES]).score
    assert float(bleu(statistics(hypotheses).sum(axis=0))) == pytest.approx(expected, abs=1e-9)
    assert bleu_signature(REFERENCES) == str(metric.get_signature())


@pytest.mark.parametrize(
    ("tokenizer", "reference", "hypothesis"),
    [
        ("13a", "Ein Hund läuft über das Gras (草).", "Ein Hund rennt über das Gras (草)."),
        ("13a", "개가 잔디밭을 가로질러 달린다.", "개가 잔디밭을 달린다."),
        ("zh", "请打开 Firefox 浏览器的设置，然后重新启动。", "请打开 Firefox 浏览器设置，然后重新启动。"),
        ("char", "犬が芝生の上を走っています。", "犬が芝生を走っています。"),
        ("char", "สุนัขวิ่งผ่านสนามหญ้า", "สุนัขวิ่งข้ามสนามหญ้า"),
    ],
)
def test_text_without_spaces_is_not_one_word(tokenizer: str, reference: str, hypothesis: str) -> None:
    metric = BLEU(tokenize=tokenizer)
    expected = metric.corpus_score([hypothesis], [[reference]]).score
    assert float(bleu(bleu_statistics([hypothesis], [reference]).sum(axis=0))) == pytest.approx(expected, abs=1e-9)
    assert bleu_signature([reference]) == str(metric.get_signature())
    assert tokenizer_of([""]) == "13a"
    assert expected > 0


@pytest.mark.parametrize("longest", [3, 20, 2000])
def test_bleu_of_many_sums_is_sacrebleus_to_the_last_bit(longest: int) -> None:
    """Without matches in some orders, without n-grams in the last ones, without words, too short and too long."""
    rng = np.random.default_rng(longest)
    totals = np.sort(rng.integers(0, longest, (3000, 4)))[:, ::-1]
    matches = rng.integers(0, totals + 1) * (rng.random(totals.shape) < 0.8)
    sums = np.column_stack([totals[:, 0], rng.integers(0, longest + 3, len(totals)), matches, totals])
    expected = [
        BLEU.compute_bleu(row[2:6], row[6:], row[0], row[1], smooth_method="exp").score for row in sums.tolist()
    ]
    assert bleu(sums.reshape(30, 100, 10)).ravel().tolist() == expected


def test_resamples_are_those_of_sacrebleu() -> None:
    metric = BLEU(references=[REFERENCES])
    _, theirs = PairedTest([("a", GOOD), ("b", CLOSE)], {"BLEU": metric}, None, test_type="bs", n_samples=200)()
    ours = bleu(Resampler(len(REFERENCES), 200).totals(statistics(CLOSE)))
    # sacreBLEU sums the counts in float32: exact for these, its scores are not.
    result = theirs["BLEU"][1]
    assert isinstance(result, Result)
    assert ours.mean() == pytest.approx(result.mean, abs=1e-4)


def test_an_interval_by_hand() -> None:
    resampled = np.arange(100.0)
    assert interval(resampled) == pytest.approx((0.025 * 99, 0.975 * 99))
    assert interval(resampled, 0.8) == pytest.approx((0.1 * 99, 0.9 * 99))


def test_the_interval_of_a_mean_has_its_textbook_width() -> None:
    """95 % of a mean of 400 standard normal values: ± 1.96 / 20."""
    values = np.random.default_rng(3).standard_normal(400)
    resampler = Resampler(len(values), resamples=4000, seed=1)
    low, high = interval(resampler.totals(values) / len(values))
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.06)
    assert (resampler.weights.sum(1) == len(values)).all()


def test_the_same_translations_differ_by_nothing() -> None:
    good = statistics(GOOD)
    found = difference(good, good, bleu)
    assert (found.value, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, None)
    assert p_value(good, good, bleu) == 1.0


def test_a_clear_loss_has_an_interval_below_zero_and_is_repeatable() -> None:
    good, bad = statistics(GOOD), statistics(BAD)
    found = difference(bad, good, bleu)
    assert found.low < found.value < found.high < 0
    assert difference(bad, good, bleu) == found
    assert difference(bad, good, bleu, seed=1) != found
    narrower = difference(bad, good, bleu, confidence=0.5)
    assert found.low < narrower.low < narrower.high < found.high


def test_systems_on_different_sentences_are_refused() -> None:
    good = statistics(GOOD)
    for function in (p_value, difference):
        with pytest.raises(ValueError, match="60 and 59 sentences: a paired"):
            function(good, good[1:], bleu)
