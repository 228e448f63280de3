"""Translating a text under many head masks at once: greedy rows leave the batch as they end; beams on request."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.masks import BATCH_TOKENS, Masks, RowMasks, encode, mask_chunks, sentence_groups
from hmc.training.analysis.subject import Progress, silent
from hmc.training.batches import pad_rows
from hmc.training.beam_search import beam_search
from hmc.training.transformer import Transformer
from hmc.training.vocabulary import Vocabulary

LEAVE_SHARE = 8
"""Ended rows are taken out of the batch once they are an eighth of it: each time copies the caches."""


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

    beam 1 is greedy search. A translation has at most 2 · S + 10 tokens, S those of its source (with beams: of the
    longest source it is batched with). The model should be in evaluation mode; its own gates are set aside meanwhile.
    Raises InvalidRequestError.
    """
    if beam < 1:
        raise InvalidRequestError(f"beam {beam}: choose 1 (greedy) or more")
    device, limit = model.shared.weight.device, model.arch.max_positions
    ids = [vocabulary.cut(vocabulary.encode(text), limit) for text in texts]
    layouts = torch.from_numpy(masks).to(device)
    found = [[""] * len(texts) for _ in range(len(masks))]
    done = 0
    with RowMasks(model) as gates:
        for group in sentence_groups([len(row) for row in ids]):
            sources = [ids[i] for i in group]
            size = batch_tokens // (len(group) * beam * max(map(len, sources)))
            for rows, chunk in mask_chunks(layouts, gates.encoder_heads, size):
                if beam == 1:
                    decoded = _greedy(model, gates, sources, chunk)
                else:
                    decoded = _beams(model, gates, sources, chunk, beam)
                for number, outputs in zip(rows.tolist(), decoded, strict=True):
                    for i, output in zip(group, outputs, strict=True):
                        found[number][i] = vocabulary.decode(output)
            done += len(group)
            progress(f"translation: {done} of {len(texts)} sentences under {len(masks)} masks")
    return found


def _limit(model: Transformer, length: int) -> int:
    """Most tokens of a translation, EOS included, for a source of `length` tokens."""
    return min(model.arch.max_positions - 1, 2 * length + 10)


def _greedy(model: Transformer, gates: RowMasks, sources: list[list[int]], masks: Tensor) -> list[list[list[int]]]:
    """Ids of B sources under masks `[M, total]`, masks outermost; EOS may be among them."""
    arch, device = model.arch, masks.device
    encoded = encode(model, gates, pad_rows(sources, arch.pad_id).to(device), masks)
    cache = model.start_cache(encoded.memory)
    cache.select(encoded.rows)
    mask = None if encoded.mask is None else encoded.mask.index_select(0, encoded.rows)
    per_row = masks.repeat_interleave(len(sources), 0)  # [R, total]
    gates.set_decoder(per_row)
    limits = torch.tensor([_limit(model, len(s)) for s in sources], device=device).repeat(len(masks))
    output = torch.full((len(per_row), int(limits.max())), arch.eos_id, device=device)
    rows = torch.arange(len(per_row), device=device)  # the row of `output` that each running row writes to
    ended = torch.zeros(len(per_row), dtype=torch.bool, device=device)
    tokens = torch.full((len(per_row), 1), arch.pad_id, device=device)
    for position in range(output.size(1)):
        logits = model.step(tokens, cache, mask)
        logits[:, arch.pad_id] = float("-inf")
        best = logits.argmax(-1).masked_fill(ended, arch.eos_id)
        output[rows, position] = best
        ended = ended | best.eq(arch.eos_id) | (limits[rows] <= position + 1)
        count = int(ended.sum())
        if count == len(rows):
            break
        if count * LEAVE_SHARE >= len(rows):
            keep = (~ended).nonzero().squeeze(1)
            rows, ended, best = rows[keep], ended[keep], best[keep]
            cache.select(keep)
            mask = None if mask is None else mask.index_select(0, keep)
            gates.set_decoder(per_row[rows])
        tokens = best[:, None]
    return output.view(len(masks), len(sources), -1).tolist()


def _beams(
    model: Transformer, gates: RowMasks, sources: list[list[int]], masks: Tensor, beam: int
) -> list[list[list[int]]]:
    """As `_greedy`, by beam search: rows of a sentence never leave its block of `beam` rows, so masks stay in place."""
    batch = len(sources)
    gates.set_encoder(masks.repeat_interleave(batch, 0))
    gates.set_decoder(masks.repeat_interleave(batch * beam, 0))
    limit = _limit(model, max(map(len, sources)))
    found = beam_search(model, sources * len(masks), beam=beam, max_length=limit)
    best = [hypotheses[0].ids for hypotheses in found]
    return [best[start : start + batch] for start in range(0, len(best), batch)]
