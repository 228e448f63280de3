"""Attention to tokens, confidence, and attention maps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.training.analysis.helpers import LAYOUT

from hmc.artifact import Head, InvalidRequestError
from hmc.training import make_batch
from hmc.training.analysis.attention import maps
from hmc.training.analysis.attention.confidence import analyse, confidence, summary
from hmc.training.analysis.common.subject import Subject, Text
from hmc.training.analysis.common.views import TokenPair, View, batch_views, corpus_views, peaks, tokenize, visible_keys

PAIRS = [TokenPair([5, 9, 30, 0], [40, 41, 0]), TokenPair([7, 0], [50, 51, 52, 0])]


def views_of(subject: Subject) -> dict[tuple[str, int], View]:
    batch = make_batch([pair.source for pair in PAIRS], [pair.target for pair in PAIRS], 2)
    return {(view.kind, view.layer): view for view in batch_views(subject.model, batch, [0, 1])}


def test_tokens_that_count(subject: Subject) -> None:
    views = views_of(subject)
    assert {place for place in views if place[0] != "cross"} == {
        ("encoder_self", 0), ("encoder_self", 1), ("decoder_self", 0),
    }  # fmt: skip
    encoder = views["encoder_self", 0].visible
    assert encoder[0].tolist() == [[True, True, True, False]] * 3 + [[False] * 4]  # EOS is neither query nor key
    assert encoder[1].sum() == 1
    decoder = views["decoder_self", 0].visible
    # reads <start> 40 41 <pad> and <start> 50 51 52: the start symbol counts neither way
    assert decoder[0].nonzero().tolist() == [[1, 1], [2, 1], [2, 2]]
    assert decoder[1].sum() == 6
    cross = views["cross", 0].visible
    # predicts 40 41 EOS and 50 51 52 EOS
    assert cross[0].any(1).tolist() == [True, True, False, False]
    assert cross[1].any(1).tolist() == [True, True, True, False]
    assert cross.any(1).tolist() == [[True, True, True, False], [True, False, False, False]]
    for view in views.values():
        assert (view.weights.masked_select(~view.visible[:, None]) == 0).all()
        assert (view.weights.sum(-1) < 1 + 1e-5).all()


def test_a_token_that_names_a_language_is_none(subject: Subject) -> None:
    batch = make_batch([pair.source for pair in PAIRS], [pair.target for pair in PAIRS], 2)
    views = {(v.kind, v.layer): v.visible for v in batch_views(subject.model, batch, [0, 1], [(1, 1), (0, 0)])}
    assert views["encoder_self", 0][0].any(0).tolist() == [False, True, True, False]
    assert views["encoder_self", 0][0].any(1).tolist() == [False, True, True, False]
    assert views["decoder_self", 0][0].nonzero().tolist() == [[2, 2]]  # reads <start> 40 41; 40 is the language
    assert views["cross", 0][0].any(1).tolist() == [False, True, False, False]
    assert views["cross", 0][1].any(1).tolist() == [True, True, True, False]


def test_peaks_ignore_what_does_not_count() -> None:
    weights = torch.tensor([[[[0.2, 0.3, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]]]])
    visible = torch.tensor([[[True, True, False], [True, False, False], [False, False, False]]])
    view = View("encoder_self", 0, weights, visible, [0])
    highest, at, counted = peaks(view, at_least=2)
    assert highest[0, 0, :2].tolist() == pytest.approx([0.3, 0.1])
    assert at[0, 0, :2].tolist() == [1, 0]
    assert counted.tolist() == [[True, False, False]]
    assert visible_keys(view, 0).tolist() == [[True, False, False]]
    assert visible_keys(view, 1).tolist() == [[True, False, False]]
    assert visible_keys(view, -1).tolist() == [[False, True, False]]
    assert not visible_keys(view, 3).any()


def test_confidence_is_the_mean_largest_weight_without_eos() -> None:
    first = torch.tensor([[[[0.2, 0.3, 0.5], [0.6, 0.1, 0.3], [0.9, 0.1, 0.0]]]])
    visible = torch.tensor([[[True, True, False]] * 2 + [[False] * 3]])  # position 2 is EOS
    view = View("encoder_self", 0, first * visible[:, None], visible, [0])
    assert confidence([view])["encoder_self", 0] == pytest.approx([(0.3 + 0.6) / 2])
    # A second batch: a mean over tokens, not over batches.
    second = replace(view, weights=torch.ones(1, 1, 1, 1), visible=torch.ones(1, 1, 1, dtype=torch.bool))
    assert confidence([view, second])["encoder_self", 0] == pytest.approx([(0.3 + 0.6 + 1.0) / 3])


def test_a_sentence_looks_the_same_in_any_batch(subject: Subject, text: Text) -> None:
    pairs = tokenize(subject, text, forced=True).pairs
    together = confidence(corpus_views(subject.model, pairs))
    alone = [view for pair in pairs for view in corpus_views(subject.model, [pair])]
    for place, values in confidence(alone).items():
        assert together[place] == pytest.approx(values, abs=1e-5)


def test_confidence_of_a_text(subject: Subject, text: Text) -> None:
    result = analyse(subject, text)
    assert len(result.data.heads) == LAYOUT.total
    assert all(0 < row.confidence <= 1 for row in result.data.heads)
    assert result.data.sentences_cut == 0
    assert len(summary(result).rows) == 10
    forced = analyse(subject, text, forced=True)
    own = {(row.kind, row.layer, row.index): row.confidence for row in result.data.heads}
    for row in forced.data.heads:
        same = own[row.kind, row.layer, row.index] == pytest.approx(row.confidence, abs=1e-6)
        assert same is (row.kind == "encoder_self")  # only the decoder reads something else


def test_long_sentences_are_cut_and_counted(subject: Subject, text: Text) -> None:
    long = replace(text, pairs=(("dog " * 200, "a"), *text.pairs))
    prepared = tokenize(subject, long, forced=True)
    assert prepared.cut == 1
    assert len(prepared.pairs[0].source) == subject.model.arch.max_positions
    assert prepared.pairs[0].source[-1] == subject.vocabulary.eos_id


def test_maps_of_a_sentence(subject: Subject) -> None:
    heads = [Head("encoder_self", 0, 3), Head("decoder_self", 0, 1), Head("cross", 1, 3)]
    result = maps.analyse(subject, "A cat sleeps.", heads, reference="A dog.")
    encoder, decoder, cross = result.data.maps
    assert "".join(encoder.keys) == "▁A▁cat▁sleeps.</s>"
    assert encoder.queries == encoder.keys == cross.keys
    assert decoder.queries[0] == "<s>"
    assert "".join(cross.queries) == "▁A▁dog.</s>"
    for one in (encoder, decoder, cross):
        assert len(one.weights) == len(one.queries)
        for row in one.weights:
            assert len(row) == len(one.keys)
            assert sum(row) == pytest.approx(1, abs=1e-5)
    assert decoder.weights[0][0] == pytest.approx(1)
    assert [row[0] for row in maps.summary(result).rows] == [str(head) for head in heads]


def test_maps_of_all_encoder_heads_by_default(subject: Subject) -> None:
    result = maps.analyse(subject, "A cat sleeps.")
    assert [(one.layer, one.index) for one in result.data.maps] == [(0, 0), (0, 1), (0, 3), (1, 2)]
    with pytest.raises(InvalidRequestError, match="empty"):
        maps.analyse(subject, "  ")
