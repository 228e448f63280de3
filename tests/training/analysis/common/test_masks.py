"""Many masks in one pass give the same numbers as one mask at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tiny import tiny_architecture, tiny_checkpoint_at
from tests.training.analysis.helpers import LAYOUT

from hmc.artifact import Head, HeadLayout, InvalidRequestError
from hmc.training import OpenGate, beam_search, make_batch, mask_to_layout, open_gates, translate
from hmc.training.analysis.common import masks as masks_of_analysis
from hmc.training.analysis.common.decoding import translations
from hmc.training.analysis.common.masks import Masks, close_heads, sentence_losses
from hmc.training.analysis.common.subject import Subject, Text, load_subject
from hmc.training.model.loss import cross_entropy_sum

HEADS = list(LAYOUT.heads())


def several_masks() -> Masks:
    """Nothing closed, one head of each kind, a layer emptied, random ones, everything closed."""
    closed = [[], [HEADS[1]], [HEADS[5]], [HEADS[9]], [Head("encoder_self", 1, 2)]]
    rng = np.random.default_rng(0)
    random = rng.random((4, len(HEADS))) < 0.5
    return np.concatenate([[close_heads(LAYOUT, c) for c in closed], random, np.zeros((1, len(HEADS)), bool)])


def greedy_alone(subject: Subject, source: str) -> str:
    ids = subject.vocabulary.encode(source)
    [[best]] = beam_search(subject.model, [ids], openings=(), beam=1, max_length=2 * len(ids) + 10)
    return subject.vocabulary.decode(best.ids)


def layout_of(mask: np.ndarray) -> HeadLayout:
    return HeadLayout.from_heads([h for h, kept in zip(HEADS, mask, strict=True) if kept], 2, 2)


@pytest.mark.parametrize("batch_tokens", [1, 700, 10**6])
def test_losses_equal_one_mask_and_one_sentence_at_a_time(subject: Subject, text: Text, batch_tokens: int) -> None:
    model, masks = subject.model, several_masks()
    found = sentence_losses(model, subject.vocabulary, text.pairs, masks, batch_tokens=batch_tokens)
    assert all(type(attention.gate) is OpenGate for *_, attention in model.attentions()), "its own gates are back"
    try:
        for mask, losses in zip(masks, found.sums, strict=True):
            mask_to_layout(model, LAYOUT, layout_of(mask))
            for pair, loss, tokens in zip(text.pairs, losses, found.tokens, strict=True):
                source, target = (subject.vocabulary.encode(side) for side in pair)
                batch = make_batch([source], [target], model.arch.pad_id)
                with torch.no_grad():
                    alone, count = cross_entropy_sum(model, model(batch.source, batch.target_in), batch, 0.0)
                assert tokens == count
                assert loss == pytest.approx(float(alone), rel=1e-5)
    finally:
        open_gates(model)
    assert np.ptp(found.mean()) > 0.01, "masks make a difference here, so equality above says something"


def test_masks_with_the_same_encoder_heads_share_an_encoder_pass(
    subject: Subject, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    encode = subject.model.encode

    def counted(source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows.append(len(source))
        return encode(source)

    monkeypatch.setattr(subject.model, "encode", counted)
    decoder_only = np.stack([close_heads(LAYOUT, [h]) for h in HEADS if h.kind != "encoder_self"])
    sentence_losses(subject.model, subject.vocabulary, text.pairs, decoder_only)
    assert sum(rows) == len(text.pairs)


def test_greedy_translations_equal_one_sentence_at_a_time(subject: Subject, text: Text) -> None:
    model, masks, expected = subject.model, several_masks(), []
    try:
        for mask in masks:
            mask_to_layout(model, LAYOUT, layout_of(mask))
            expected.append([greedy_alone(subject, source) for source in text.sources])
    finally:
        open_gates(model)
    assert len({tuple(outputs) for outputs in expected}) > 5
    for batch_tokens in (1, 10**6):
        assert translations(model, subject.vocabulary, text.sources, masks, batch_tokens=batch_tokens) == expected


def test_rows_that_end_early_leave_and_change_nothing(subject: Subject, text: Text) -> None:
    """A model with a high probability of EOS: translations of different lengths, some of one token."""
    model, masks = subject.model, several_masks()
    before = model.final_logits_bias.clone()
    try:
        model.final_logits_bias[model.arch.eos_id] += 4.0
        found = translations(model, subject.vocabulary, text.sources, masks)
        lengths = {len(subject.vocabulary.encode(output)) for outputs in found for output in outputs}
        assert len(lengths) > 4
        for mask, outputs in zip(masks, found, strict=True):
            mask_to_layout(model, LAYOUT, layout_of(mask))
            assert outputs == [greedy_alone(subject, source) for source in text.sources]
    finally:
        model.final_logits_bias.copy_(before)
        open_gates(model)


def test_beam_translations_equal_one_mask_at_a_time(subject: Subject, text: Text) -> None:
    model, masks = subject.model, several_masks()
    found = translations(model, subject.vocabulary, text.sources, masks, beam=3, batch_tokens=2000)
    try:
        for mask, outputs in zip(masks, found, strict=True):
            mask_to_layout(model, LAYOUT, layout_of(mask))
            assert outputs == translate(model, subject.vocabulary, text.sources, beam=3)
    finally:
        open_gates(model)


def test_a_text_longer_than_a_group_keeps_its_order(
    subject: Subject, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = several_masks()[:3]
    whole = sentence_losses(subject.model, subject.vocabulary, text.pairs, masks)
    outputs = translations(subject.model, subject.vocabulary, text.sources, masks)
    monkeypatch.setattr(masks_of_analysis, "SENTENCES", 5)
    parts = sentence_losses(subject.model, subject.vocabulary, text.pairs, masks)
    np.testing.assert_allclose(parts.sums, whole.sums, rtol=1e-5)
    assert translations(subject.model, subject.vocabulary, text.sources, masks) == outputs


@pytest.mark.parametrize("empty", ["encoder_self", "decoder_self", "cross"])
def test_a_kind_may_have_no_heads_left(tmp_path: Path, text: Text, empty: str) -> None:
    layout = HeadLayout.from_heads([h for h in HEADS if h.kind != empty], 2, 2)
    tiny_checkpoint_at(tmp_path / "c", layout=layout, arch=tiny_architecture(head_dim=8), gates=False)
    other = load_subject(tmp_path / "c", "cpu")
    masks = np.stack([close_heads(layout, closed) for closed in ([], list(layout.heads())[-1:], list(layout.heads()))])
    losses = sentence_losses(other.model, other.vocabulary, text.pairs, masks).mean()
    assert len(set(losses.tolist())) == 3
    assert translations(other.model, other.vocabulary, text.sources, masks[:1]) == [
        [greedy_alone(other, source) for source in text.sources]
    ]


def test_a_closed_head_cannot_be_masked() -> None:
    with pytest.raises(InvalidRequestError, match=r"head encoder_self\.0\.2 is not open in this checkpoint"):
        close_heads(LAYOUT, [Head("encoder_self", 0, 2)])
    assert close_heads(LAYOUT, [Head("cross", 1, 3)]).tolist() == [True] * 11 + [False]


def test_no_beam_is_refused(subject: Subject, text: Text) -> None:
    with pytest.raises(InvalidRequestError, match="beam 0: choose 1"):
        translations(subject.model, subject.vocabulary, text.sources, several_masks(), beam=0)
