"""Resampling: BLEU is sacreBLEU's, intervals are those that `hmc bench` gives, equal systems differ by 0."""

from __future__ import annotations

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from hmc.benchmark.bootstrap import bleu_counts, paired_bootstrap
from hmc.training.analysis.bootstrap import (
    Resampler,
    bleu,
    bleu_signature,
    bleu_statistics,
    difference,
    estimate,
)

REFERENCES = [
    "Ein Hund läuft über das nasse Gras.",
    "Zwei Männer, ein Dach.",
    "Kinder sitzen um einen Tisch.",
    "Ja.",
] * 5
GOOD = ["Ein Hund läuft über das Gras.", "Zwei Männer, ein Dach.", "Kinder sitzen an einem Tisch.", "Ja."] * 5
BAD = ["Hund das Gras über Ein.", "Zwei Männer auf dem Dach.", "Kinder.", ""] * 5


def test_bleu_of_statistics_is_corpus_bleu() -> None:
    found = bleu(bleu_statistics([GOOD, BAD, REFERENCES], REFERENCES).sum(axis=1))
    for system, value in zip((GOOD, BAD, REFERENCES), found, strict=True):
        assert value == pytest.approx(BLEU().corpus_score(system, [REFERENCES]).score, abs=1e-9)
    metric = BLEU()
    metric.corpus_score(GOOD, [REFERENCES])
    assert bleu_signature() == str(metric.get_signature())


def test_differences_are_those_of_the_benchmark() -> None:
    expected = paired_bootstrap(bleu_counts(BAD, REFERENCES), bleu_counts(GOOD, REFERENCES))
    statistics = bleu_statistics([GOOD, BAD], REFERENCES)
    resampler = Resampler(len(REFERENCES))
    good, bad = (bleu(resampler.totals(rows)) for rows in statistics)
    totals = bleu(statistics.sum(axis=1))
    found = difference(float(totals[1] - totals[0]), bad - good)
    assert (found.value, found.low, found.high, found.p_value) == pytest.approx(
        (expected.delta, expected.ci_low, expected.ci_high, expected.p_value)
    )
    assert found.high < 0


def test_a_system_does_not_differ_from_itself() -> None:
    zero = np.zeros(1000)
    assert difference(0.0, zero).to_json() == {"value": 0.0, "low": 0.0, "high": 0.0, "p_value": 1.0}


def test_the_interval_of_a_mean_has_its_textbook_width() -> None:
    """95 % of a mean of 400 standard normal values: ± 1.96 / 20."""
    values = np.random.default_rng(3).standard_normal(400)
    resampler = Resampler(len(values), resamples=4000, seed=1)
    found = estimate(float(values.mean()), resampler.totals(values) / len(values))
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.06)
    assert (resampler.weights.sum(1) == len(values)).all()
