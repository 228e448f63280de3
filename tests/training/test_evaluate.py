"""Dev scores: a model that has diverged is said to have, rather than failing on an empty list."""

import pytest
import torch
from tests.tiny import SENTENCES, tiny_architecture, tiny_tokenizer

from hmc.artifact.errors import InvalidRequestError
from hmc.training.evaluate import translate
from hmc.training.transformer import build_transformer
from hmc.training.vocabulary import Vocabulary


@pytest.mark.parametrize("beam", [1, 4])
def test_weights_that_are_not_finite(beam: int) -> None:
    model, vocabulary = build_transformer(tiny_architecture()), Vocabulary(tiny_tokenizer())
    assert len(translate(model, vocabulary, SENTENCES[:2], beam=beam)) == 2
    with torch.no_grad():
        model.shared.weight.fill_(float("nan"))
    with pytest.raises(InvalidRequestError, match=r"no translation has a finite score: .* training has diverged"):
        translate(model, vocabulary, SENTENCES[:2], beam=beam)
