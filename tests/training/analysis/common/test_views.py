"""Texts as the model reads them."""

from __future__ import annotations

from dataclasses import replace

from hmc.training.analysis.common.subject import Subject, Text
from hmc.training.analysis.common.views import tokenize


def test_a_translation_is_limited_by_its_own_source(subject: Subject, text: Text) -> None:
    """A model that never ends a sentence: every translation stops at 2 · S + 10 tokens of its own source."""
    model, bias = subject.model, subject.model.final_logits_bias.clone()
    try:
        model.final_logits_bias[model.arch.eos_id] = -1e9
        found = tokenize(subject, text, forced=False)
        alone = [tokenize(subject, replace(text, pairs=(pair,)), forced=False).pairs[0] for pair in text.pairs]
    finally:
        model.final_logits_bias.copy_(bias)
    lengths = [len(pair.source) for pair in found.pairs]
    assert len(set(lengths)) > 3
    # EOS is added behind the last token.
    limits = [min(model.arch.max_positions - 1, 2 * length + 10) + 1 for length in lengths]
    assert [len(pair.target) for pair in found.pairs] == limits
    assert found.pairs == alone
