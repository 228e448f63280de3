"""Translations of a text under many head masks at once, by greedy search or beam search.

In greedy search a row leaves the batch when its translation has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.common.masks import BATCH_TOKENS, Masks, RowMasks, encode, mask_chunks, sentence_groups
from hmc.training.analysis.common.subject import Progress, overflow, silent
from hmc.training.data.batches import pad_rows
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.model.beam_search import Hypothesis, beam_search, length_limit
from hmc.training.model.transformer import Transformer

LEAVE_SHARE = 8
"""Ended rows are removed once they are 1/8 of the batch. Removing them copies the caches, so it must be worth it."""


@torch.no_grad()
def translations(
    model: Transformer,
    vocabulary: Vocabulary,
    texts: Sequence[str],
    masks: Masks,
    *,
    beam: int = 1,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress = silent,
) -> list[list[str]]:
    """Translations of N texts under each of M masks `[M, total]`: M lists of N strings.

    beam 1 is greedy search. `length_limit` bounds each translation by its own source. The model should be in evaluation
    mode. Its own gates are replaced during the call and put back after it. Raises InvalidRequestError for a beam below
    1, and where the model's scores are NaN.
    """
    if beam < 1:
        raise InvalidRequestError(f"beam {beam}: choose 1 (greedy) or more")
    device = model.shared.weight.device
    limit = model.arch.max_positions
    ids = [vocabulary.cut(vocabulary.encode(text), limit) for text in texts]
    layouts = torch.from_numpy(masks).to(device)
    translated = [[""] * len(texts) for _ in range(len(masks))]
    done = 0
    with RowMasks(model) as gates:
        for group in sentence_groups(list(map(len, ids))):
            sources = [ids[i] for i in group]
            openings = [vocabulary.opening(texts[i]) for i in group]
            size = batch_tokens // (len(group) * beam * max(map(len, sources)))
            for rows, chunk in mask_chunks(layouts, gates.encoder_heads, size):
                if beam == 1:
                    decoded = _greedy(model, gates, sources, openings, chunk)
                else:
                    decoded = _beams(model, gates, sources, openings, chunk, beam)
                for number, outputs in zip(rows.tolist(), decoded, strict=True):
                    for i, output in zip(group, outputs, strict=True):
                        translated[number][i] = vocabulary.decode(output)
            done += len(group)
            progress(f"translation: {done} of {len(texts)} sentences under {len(masks)} masks")
    return translated


def best_ids(hypotheses: Sequence[Hypothesis]) -> list[int]:
    """Ids of the best hypothesis of a sentence. Raises InvalidRequestError if beam search found no hypothesis.

    Beam search keeps no hypothesis whose score is NaN.
    """
    if not hypotheses:
        raise overflow("the model's scores of translations")
    return hypotheses[0].ids


def _greedy(
    model: Transformer, gates: RowMasks, sources: list[list[int]], openings: list[list[int]], masks: Tensor
) -> list[list[list[int]]]:
    """Ids of B sources under masks `[M, total]`, as lists `[M][B]` of ids; an id may be EOS.

    openings: the token with which each of the B translations begins, or none.
    Raises InvalidRequestError where the highest score of a running row is NaN or infinite.
    """
    arch = model.arch
    device = masks.device
    encoded = encode(model, gates, pad_rows(sources, arch.pad_id).to(device), masks)
    cache = model.start_cache(encoded.memory)
    cache.select(encoded.rows)
    mask = None if encoded.mask is None else encoded.mask.index_select(0, encoded.rows)
    per_row = masks.repeat_interleave(len(sources), 0)  # [R, total]
    gates.set_decoder(per_row)
    limits = torch.tensor([length_limit(model, len(s)) for s in sources], device=device).repeat(len(masks))
    first = torch.tensor([[*opening, -1][0] for opening in openings], device=device).repeat(len(masks))
    output = torch.full((len(per_row), int(limits.max())), arch.eos_id, device=device)
    rows = torch.arange(len(per_row), device=device)  # the row of `output` that each running row writes to
    ended = torch.zeros(len(per_row), dtype=torch.bool, device=device)
    broken = torch.zeros((), dtype=torch.bool, device=device)
    tokens = torch.full((len(per_row), 1), arch.decoder_start, device=device)
    for position in range(output.size(1)):
        logits = model.step(tokens, cache, mask)
        logits[:, arch.pad_id] = float("-inf")
        highest, best = logits.max(-1)  # NaN is the highest score
        broken = broken | ~(highest.isfinite() | ended).all()
        if position == 0:
            best = torch.where(first.ge(0), first, best)
        best = best.masked_fill(ended, arch.eos_id)
        output[rows, position] = best
        ended = ended | best.eq(arch.eos_id) | (limits[rows] <= position + 1)
        count = int(ended.sum())
        if count == len(rows):
            break
        if count * LEAVE_SHARE >= len(rows):
            keep = (~ended).nonzero().squeeze(1)
            rows = rows[keep]
            ended = ended[keep]
            best = best[keep]
            cache.select(keep)
            mask = None if mask is None else mask.index_select(0, keep)
            gates.set_decoder(per_row[rows])
        tokens = best[:, None]
    if broken:
        raise overflow("the model's scores of translations")
    return output.view(len(masks), len(sources), -1).tolist()


def _beams(
    model: Transformer,
    gates: RowMasks,
    sources: list[list[int]],
    openings: list[list[int]],
    masks: Tensor,
    beam: int,
) -> list[list[list[int]]]:
    """As `_greedy`, by beam search. The rows of a sentence keep their places in the batch, so the masks do not move."""
    batch = len(sources)
    gates.set_encoder(masks.repeat_interleave(batch, 0))
    gates.set_decoder(masks.repeat_interleave(batch * beam, 0))
    limits = [length_limit(model, len(source)) for source in sources]
    searched = beam_search(
        model,
        sources * len(masks),
        openings=openings * len(masks),
        beam=beam,
        max_length=limits * len(masks),
    )
    best = list(map(best_ids, searched))
    return [best[start : start + batch] for start in range(0, len(best), batch)]
