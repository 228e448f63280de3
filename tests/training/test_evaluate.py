"""Dev scores: a model that has diverged is said to have, rather than failing on an empty list."""

from pathlib import Path

import pytest
import torch
from tests.tiny import SENTENCES, tiny_architecture, tiny_tokenizer

from hmc.artifact.bundle import read_manifest
from hmc.artifact.errors import InvalidRequestError
from hmc.serving.tokenizer import Tokenizer
from hmc.training.beam_search import Hypothesis
from hmc.training.evaluate import translate
from hmc.training.transformer import Transformer, build_transformer
from hmc.training.vocabulary import Vocabulary


@pytest.mark.parametrize("beam", [1, 4])
def test_weights_that_are_not_finite(beam: int) -> None:
    model, vocabulary = build_transformer(tiny_architecture()), Vocabulary(tiny_tokenizer())
    assert len(translate(model, vocabulary, SENTENCES[:2], beam=beam)) == 2
    with torch.no_grad():
        model.shared.weight.fill_(float("nan"))
    with pytest.raises(InvalidRequestError, match=r"no translation has a finite score: .* training has diverged"):
        translate(model, vocabulary, SENTENCES[:2], beam=beam)


def test_long_texts_are_cut_as_the_engine_cuts_them(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tokens count, and EOS: dev scores and those of a bundle are of the same text."""
    seen: list[list[int]] = []

    def look(_: Transformer, sources: list[list[int]], **__: object) -> list[list[Hypothesis]]:
        seen.extend(sources)
        return [[Hypothesis([], 0.0)] for _ in sources]

    monkeypatch.setattr("hmc.training.evaluate.beam_search", look)
    manifest = read_manifest(tiny_bundle)
    model, vocabulary = build_transformer(manifest.architecture), Vocabulary(tiny_tokenizer())
    text = " ".join(SENTENCES)
    translate(model, vocabulary, [text, SENTENCES[0]])
    engine = Tokenizer(tiny_bundle, manifest)
    assert seen == [engine.encode(text)[0], engine.encode(SENTENCES[0])[0]]
    assert engine.encode(text)[1]
