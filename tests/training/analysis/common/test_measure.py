"""Scores of masks: p-values are those that sacreBLEU gives for the translations, intervals those of its resamples."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest, Result
from tests.training.analysis.helpers import without

from hmc.artifact.significance import Estimate, bleu_statistics
from hmc.training.analysis.common.decoding import translations
from hmc.training.analysis.common.masks import Losses, close_heads
from hmc.training.analysis.common.measure import Measurement, Settings, measure
from hmc.training.analysis.common.subject import Subject, Text

SETTINGS = Settings(resamples=500, seed=7)


def test_p_values_of_bleu_are_those_of_sacrebleu(
    demo: Subject, demo_text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = demo.layout
    closed = [[], list(layout.heads())[20:30], list(layout.heads())[60:80]]
    masks = np.stack([close_heads(layout, heads) for heads in closed])
    found = measure(demo, demo_text, masks, SETTINGS)
    outputs = translations(demo.model, demo.vocabulary, demo_text.sources, masks)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    systems: list[tuple[str, Sequence[str]]] = [(str(number), output) for number, output in enumerate(outputs)]
    test = PairedTest(systems, {"BLEU": BLEU()}, [demo_text.references], test_type="ar", n_samples=500)
    _, theirs = test()
    results = [result for result in theirs["BLEU"] if isinstance(result, Result)]
    assert [found.deltas(mask)["delta_bleu"].p_value for mask in (1, 2)] == [r.p_value for r in results[1:]]
    assert list(found.bleu) == pytest.approx([result.score for result in results])
    assert os.environ["SACREBLEU_SEED"] == "7"


def test_a_mask_does_not_differ_from_itself(subject: Subject, text: Text) -> None:
    open_heads = close_heads(subject.layout, [])
    found = measure(subject, text, [open_heads, open_heads], SETTINGS).deltas(1)
    for delta in ("delta_loss", "delta_bleu"):
        assert found[delta] == Estimate(0.0, 0.0, 0.0, 1.0)


def test_the_p_value_of_a_loss_by_hand() -> None:
    """12 sentences of 3 tokens, all worse by 3 nats: of 2^12 ways to swap them none gives a larger difference."""
    sums = np.array([np.full(12, 6.0), np.full(12, 9.0)])
    found = Measurement(Losses(sums, np.full(12, 3)), None, SETTINGS).delta_loss(1)
    assert found.value == pytest.approx(1.0)
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))
    assert found.p_value == pytest.approx(1 / 501)


def test_the_statistics_of_a_translation_that_masks_share_are_equal(subject: Subject, text: Text) -> None:
    masks = np.stack([close_heads(subject.layout, []), close_heads(subject.layout, without([]).heads())])
    found = measure(subject, text, masks, SETTINGS)
    outputs = translations(subject.model, subject.vocabulary, text.sources, masks)
    assert found.counts is not None
    for counts, output in zip(found.counts, outputs, strict=True):
        assert (counts == bleu_statistics(output, text.references)).all()
