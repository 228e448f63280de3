"""Scores of a model on a parallel text: sacreBLEU on detokenised, cased text with its defaults and signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from sacrebleu.metrics import BLEU, CHRF

from hmc.artifact.errors import InvalidRequestError
from hmc.training.beam_search import beam_search
from hmc.training.transformer import Transformer
from hmc.training.vocabulary import Vocabulary


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF (both 0-100) with the signatures that make them comparable."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int
    beam: int

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def translate(
    model: Transformer, vocabulary: Vocabulary, texts: Sequence[str], *, beam: int = 4, batch_size: int = 64,
    length_penalty: float = 1.0,
) -> list[str]:  # fmt: skip
    """Translates texts with the PyTorch model, longest first; results in the order of `texts`.

    Raises InvalidRequestError when the model's scores are not finite.
    """
    was_training = model.training
    model.eval()
    ids = [vocabulary.cut(vocabulary.encode(text), model.arch.max_positions) for text in texts]
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    outputs = [""] * len(ids)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        limit = min(model.arch.max_positions - 1, 2 * max(len(ids[i]) for i in rows) + 10)
        found = beam_search(model, [ids[i] for i in rows], beam=beam, max_length=limit, length_penalty=length_penalty)
        for row, hypotheses in zip(rows, found, strict=True):
            if not hypotheses:
                raise InvalidRequestError(
                    "no translation has a finite score: the weights hold NaN or infinity, so training has diverged; "
                    "choose a lower learning rate, a longer warm-up, or gradient clipping"
                )
            outputs[row] = vocabulary.decode(hypotheses[0].ids)
    model.train(was_training)
    return outputs


def score(hypotheses: Sequence[str], references: Sequence[str], beam: int) -> Scores:
    """sacreBLEU and chrF of `hypotheses`."""
    bleu, chrf = BLEU(), CHRF()
    return Scores(
        bleu=bleu.corpus_score(list(hypotheses), [list(references)]).score,
        chrf=chrf.corpus_score(list(hypotheses), [list(references)]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(references),
        beam=beam,
    )


def evaluate(
    model: Transformer, vocabulary: Vocabulary, pairs: Sequence[tuple[str, str]], *, beam: int, bf16: bool = False
) -> Scores:
    """Translates the sources of `pairs` and scores them against the targets."""
    device = model.shared.weight.device.type
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        hypotheses = translate(model, vocabulary, [source for source, _ in pairs], beam=beam)
    return score(hypotheses, [target for _, target in pairs], beam)
