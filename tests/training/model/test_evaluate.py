"""Dev scores: a diverged model is reported as such, texts are shortened as the engine does, limits are per sentence."""

from pathlib import Path

import pytest
import torch
from tests.tiny import SENTENCES, tiny_architecture, tiny_tokenizer

from hmc.artifact import InvalidRequestError, read_manifest
from hmc.serving.text.tokenizer import BundleTokenizer
from hmc.training import Hypothesis, Transformer, Vocabulary, beam_search, build_transformer, translate


@pytest.mark.parametrize("beam", [1, 4])
def test_weights_that_are_not_finite(beam: int) -> None:
    model, vocabulary = build_transformer(tiny_architecture()), Vocabulary(tiny_tokenizer())
    assert len(translate(model, vocabulary, SENTENCES[:2], beam=beam)) == 2
    with torch.no_grad():
        model.shared.weight.fill_(float("nan"))
    with pytest.raises(InvalidRequestError, match=r"no translation has a finite score: .* training has diverged"):
        translate(model, vocabulary, SENTENCES[:2], beam=beam)


def test_long_texts_are_cut_as_the_engine_cuts_them(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both keep the first tokens and EOS, so dev scores and scores of a bundle are of the same text."""
    seen: list[list[int]] = []

    def look(_: Transformer, sources: list[list[int]], **__: object) -> list[list[Hypothesis]]:
        seen.extend(sources)
        return [[Hypothesis([], 0.0)] for _ in sources]

    monkeypatch.setattr("hmc.training.model.evaluate.beam_search", look)
    manifest = read_manifest(tiny_bundle)
    model, vocabulary = build_transformer(manifest.architecture), Vocabulary(tiny_tokenizer())
    text = " ".join(SENTENCES)
    translate(model, vocabulary, [text, SENTENCES[0]])
    engine = BundleTokenizer(tiny_bundle, manifest)
    assert seen == [engine.encode(text)[0], engine.encode(SENTENCES[0])[0]]
    assert engine.encode(text)[1]


def test_the_length_limit_of_a_sentence_does_not_depend_on_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that never ends a sentence writes up to the limit: 2 n + 10 tokens for a source of n tokens."""
    model, vocabulary = build_transformer(tiny_architecture()), Vocabulary(tiny_tokenizer())
    with torch.no_grad():
        model.final_logits_bias[vocabulary.eos_id] = -1e4
        model.final_logits_bias[7] = 1e4
    monkeypatch.setattr(Vocabulary, "decode", lambda _, ids: str(len(ids)))
    texts = ["A cat.", " ".join(SENTENCES[:2])]
    alone = [translate(model, vocabulary, [text], beam=2)[0] for text in texts]
    assert alone == [str(min(2 * len(vocabulary.encode(text)) + 10, 95)) for text in texts]
    assert translate(model, vocabulary, texts, beam=2) == alone


@pytest.mark.parametrize("beam", [1, 3])
def test_limits_of_single_sentences_give_what_each_sentence_alone_gives(beam: int) -> None:
    torch.manual_seed(3)
    model, vocabulary = build_transformer(tiny_architecture()).eval(), Vocabulary(tiny_tokenizer())
    sources, limits = [vocabulary.encode(text) for text in SENTENCES[:5]], [4, 30, 1, 12, 7]
    together = beam_search(model, sources, openings=(), beam=beam, max_length=limits)
    for source, limit, found in zip(sources, limits, together, strict=True):
        [alone] = beam_search(model, [source], openings=(), beam=beam, max_length=limit)
        assert [h.ids for h in found] == [h.ids for h in alone]
        assert [h.score for h in found] == pytest.approx([h.score for h in alone], abs=1e-4)
        assert all(len(h.ids) <= limit for h in found)
