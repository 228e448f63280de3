"""The statistics: against hand-computed cases, and against sacreBLEU."""

import math

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest, Result

from hmc.benchmark.bootstrap import bleu_counts, bleu_of_counts, difference, paired_bootstrap, resampled_bleu

WORDS = (
    "ein",
    "der",
    "mann",
    "hund",
    "frau",
    "läuft",
    "auf",
    "einem",
    "sofa",
    "und",
    ",",
    "rot",
    "blau",
    "mit",
    "kind",
)


def corpus(seed: int, length: int = 60) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(4, 14))) + "." for _ in range(length)]


def damaged(sentences: list[str], share: float, seed: int) -> list[str]:
    """Sentences with this share of their words taken out."""
    rng = np.random.default_rng(seed)
    return [" ".join(w for w in s.split() if rng.random() > share) for s in sentences]


def test_bleu_of_a_translation_that_is_one_word_short() -> None:
    counts = bleu_counts(["a b c d"], ["a b c d e"])
    assert counts.tolist() == [[4, 5, 4, 3, 2, 1, 4, 3, 2, 1]]
    # Every n-gram matches; only the brevity penalty exp(1 - 5/4) remains.
    assert bleu_of_counts(counts.sum(axis=0)) == pytest.approx(100 * math.exp(-0.25), abs=1e-9)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_summed_counts_give_sacrebleus_corpus_score(share: float) -> None:
    references = corpus(0)
    hypotheses = damaged(references, share, 1)
    expected = BLEU().corpus_score(hypotheses, [references]).score
    assert bleu_of_counts(bleu_counts(hypotheses, references).sum(axis=0)) == pytest.approx(expected, abs=1e-9)


def test_resamples_are_those_of_sacrebleu() -> None:
    references = corpus(0)
    first, second = damaged(references, 0.2, 1), damaged(references, 0.3, 2)
    metric = BLEU(references=[references])
    _, theirs = PairedTest([("a", first), ("b", second)], {"BLEU": metric}, None, test_type="bs", n_samples=200)()
    ours = resampled_bleu(bleu_counts(second, references), resamples=200)
    # sacreBLEU sums the counts in float32: exact for these, its scores are not.
    result = theirs["BLEU"][1]
    assert isinstance(result, Result)
    assert ours.mean() == pytest.approx(result.mean, abs=1e-4)


def test_interval_and_p_value_by_hand() -> None:
    resampled = np.arange(-3.0, 97.0)  # -3, -2, -1, 0 are at most zero: 4 of 100
    found = difference(46.5, resampled)
    assert (found.ci_low, found.ci_high) == pytest.approx((-3 + 0.025 * 99, -3 + 0.975 * 99))
    assert found.p_value == pytest.approx(0.08)
    mirrored = difference(-46.5, -resampled)
    assert (mirrored.ci_low, mirrored.ci_high) == pytest.approx((-found.ci_high, -found.ci_low))
    assert mirrored.p_value == pytest.approx(0.08)


def test_one_sentence_of_two_differs() -> None:
    """A resample misses the one that differs with probability 1/4: p = 2 × 1/4."""
    references = ["a b c d e", "v w x y z"]
    better, worse = bleu_counts(references, references), bleu_counts(["a b c d e", "v w x y q"], references)
    found = paired_bootstrap(worse, better, resamples=4000)
    # Four standard deviations of twice a share of 4000 draws.
    assert found.p_value == pytest.approx(0.5, abs=8 * math.sqrt(0.25 * 0.75 / 4000))
    assert found.ci_high == 0.0
    assert found.ci_low < found.delta < 0


def test_the_same_translations_differ_by_nothing() -> None:
    references = corpus(0)
    counts = bleu_counts(damaged(references, 0.2, 1), references)
    found = paired_bootstrap(counts, counts)
    assert (found.delta, found.ci_low, found.ci_high, found.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_a_clear_loss_is_significant_and_repeatable() -> None:
    references = corpus(0)
    good = bleu_counts(damaged(references, 0.05, 1), references)
    bad = bleu_counts(damaged(references, 0.4, 2), references)
    found = paired_bootstrap(bad, good)
    assert found.ci_low < found.delta < found.ci_high < 0
    assert found.p_value == 0.0
    assert paired_bootstrap(bad, good) == found
    assert paired_bootstrap(bad, good, seed=1) != found


def test_systems_on_different_sentences_are_refused() -> None:
    counts = bleu_counts(corpus(0), corpus(0))
    with pytest.raises(ValueError, match="60 and 59 sentences: a paired test needs the same ones"):
        paired_bootstrap(counts, counts[1:])
