"""Dev scores: translations by the PyTorch model, scored with sacreBLEU, detokenised and cased."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from sacrebleu.metrics import BLEU, CHRF

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.significance import tokenizer_of
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.model.beam_search import beam_search, length_limit
from hmc.training.model.transformer import Transformer


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF of a text, both from 0 to 100, with sacreBLEU's signatures."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int
    """Number of scored sentences."""
    beam: int
    """Beam size of the translations."""

    def to_json(self) -> dict[str, object]:
        """Returns the fields as JSON values."""
        return asdict(self)


def translate(
    model: Transformer, vocabulary: Vocabulary, texts: Sequence[str], *, beam: int = 4, batch_size: int = 64,
    length_penalty: float = 1.0,
) -> list[str]:  # fmt: skip
    """Translates texts with the PyTorch model, without dropout; results are in the order of `texts`.

    A translation of a source of n tokens has at most 2 n + 10 tokens, and fewer than the model has positions. Sources
    longer than the model's positions are shortened. Raises InvalidRequestError when a score is NaN or infinite.
    """
    was_training = model.training
    model.eval()
    ids = [vocabulary.cut(vocabulary.encode(text), model.arch.max_positions) for text in texts]
    limits = [length_limit(model, len(row)) for row in ids]
    longest_first = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    outputs = [""] * len(ids)
    for start in range(0, len(ids), batch_size):
        rows = longest_first[start : start + batch_size]
        searched = beam_search(
            model, [ids[i] for i in rows], beam=beam, max_length=[limits[i] for i in rows],
            length_penalty=length_penalty, openings=[vocabulary.opening(texts[i]) for i in rows],
        )  # fmt: skip
        for row, hypotheses in zip(rows, searched, strict=True):
            if not hypotheses:
                raise InvalidRequestError(
                    "no translation has a finite score: the weights hold NaN or infinity, so training has diverged; "
                    "choose a lower learning rate, a longer warm-up, or gradient clipping"
                )
            outputs[row] = vocabulary.decode(hypotheses[0].ids)
    model.train(was_training)
    return outputs


def score(hypotheses: Sequence[str], references: Sequence[str], beam: int) -> Scores:
    """Scores `hypotheses` against `references`. beam: the beam size of the translations, for the record."""
    bleu = BLEU(tokenize=tokenizer_of(references))
    chrf = CHRF()
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
    """Translates the sources of `pairs` and scores the translations against the targets. Raises as `translate`.

    bf16: decode with bf16 autocast.
    """
    device = model.shared.weight.device.type
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        hypotheses = translate(model, vocabulary, [source for source, _ in pairs], beam=beam)
    return score(hypotheses, [target for _, target in pairs], beam)
