"""Evaluates many head masks at once. A row of the batch is one sentence under one mask.

A mask holds one boolean for each of the model's own heads, `[total]`, True = open, in the order of
`HeadLayout.heads()`. Masks with the same encoder heads share one pass through the encoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import Head, HeadLayout
from hmc.training.analysis.common.subject import Progress, overflow, silent
from hmc.training.data.batches import make_batch
from hmc.training.data.vocabulary import Vocabulary
from hmc.training.model.gates import ImportanceGate
from hmc.training.model.layers import Attention
from hmc.training.model.regimes import restoring_gates
from hmc.training.model.transformer import Transformer

Masks = npt.NDArray[np.bool_]
"""`[M, total]`."""
BATCH_TOKENS = 8192
"""Padded positions of a forward pass, over all its masks."""
SENTENCES = 32
"""Sentences of a forward pass. The number does not depend on the masks, so their grouping changes no result."""
LOGIT_ROWS = 2048
"""Positions whose logits are computed together."""


def close_heads(layout: HeadLayout, closed: Iterable[Head]) -> npt.NDArray[np.bool_]:
    """The mask `[total]` of `layout` without `closed`. Raises InvalidRequestError for a head that is not open."""
    index = {head: position for position, head in enumerate(layout.heads())}
    mask = np.ones(len(index), bool)
    for head in closed:
        if head not in index:
            raise InvalidRequestError(f"head {head} is not open in this checkpoint, so it cannot be masked")
        mask[index[head]] = False
    return mask


class RowMasks:
    """Gives every row of a batch a mask of its own. A context manager: at its end the model has its own gates again."""

    def __init__(self, model: Transformer) -> None:
        self._encoder = [own for kind, _, own in model.open_attentions() if kind == "encoder_self"]
        self._decoder = [own for kind, _, own in model.open_attentions() if kind != "encoder_self"]
        self.encoder_heads = sum(attention.heads for attention in self._encoder)
        """Number of encoder heads. They are the first columns of a mask."""
        self._restoring = restoring_gates([*self._encoder, *self._decoder])

    def __enter__(self) -> RowMasks:
        self._restoring.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._restoring.__exit__(None, None, None)

    def set_encoder(self, masks: Tensor) -> None:
        """masks `[rows, total or encoder_heads]` for the next pass through the encoder."""
        _put(masks[:, : self.encoder_heads], self._encoder)

    def set_decoder(self, masks: Tensor) -> None:
        """masks `[rows, total]` for the next passes through the decoder."""
        _put(masks[:, self.encoder_heads :], self._decoder)


def _put(masks: Tensor, attentions: Sequence[Attention]) -> None:
    """masks `[rows, heads of all attentions]` → the gates of the attentions."""
    widths = [attention.heads for attention in attentions]
    for attention, mask in zip(attentions, torch.split(masks.float(), widths, 1), strict=True):
        attention.gate = ImportanceGate(mask)


@dataclass(frozen=True)
class Encoded:
    """Encoder output under E distinct encoder masks, and the place in it of each row."""

    memory: Tensor
    """`[E · B, S, d_model]`."""
    mask: Tensor | None
    """`[E · B, 1, 1, S]`, None without padding."""
    rows: Tensor
    """`[M · B]`: index into the first dimension above, masks outermost."""


def encode(model: Transformer, gates: RowMasks, source: Tensor, masks: Tensor) -> Encoded:
    """source `[B, S]` under masks `[M, total]`, once for every distinct setting of the encoder's heads."""
    distinct, which = _distinct(masks[:, : gates.encoder_heads])
    batch = source.size(0)
    gates.set_encoder(distinct.repeat_interleave(batch, 0))
    memory, mask = model.encode(source.repeat(len(distinct), 1))
    rows = which[:, None] * batch + torch.arange(batch, device=source.device)
    return Encoded(memory, mask, rows.reshape(-1))


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows of `[M, n]`, and for each row the number of its distinct row; n may be 0.

    `torch.unique` fails for n = 0.
    """
    if not rows.size(1):
        return rows[:1], torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    distinct, which = torch.unique(rows, dim=0, return_inverse=True)
    return distinct, which


def sentence_groups(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of sentences in groups of at most SENTENCES of similar length, longest first."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    return [order[start : start + SENTENCES] for start in range(0, len(order), SENTENCES)]


def mask_chunks(masks: Tensor, encoder_heads: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers and rows of masks `[M, total]`, `size` at a time; masks with the same encoder heads are adjacent."""
    _, which = _distinct(masks[:, :encoder_heads])
    for rows in torch.split(which.argsort(stable=True), max(1, size)):
        yield rows, masks[rows]


@dataclass(frozen=True)
class Losses:
    """Cross-entropy of every sentence under every mask, without label smoothing."""

    sums: npt.NDArray[np.float64]
    """`[M, N]` nats, summed over the sentence's target tokens, EOS included."""
    tokens: npt.NDArray[np.int64]
    """`[N]`."""

    def mean(self) -> npt.NDArray[np.float64]:
        """`[M]` nats per target token of the whole text."""
        return self.sums.sum(1) / self.tokens.sum()


@torch.no_grad()
def sentence_losses(
    model: Transformer,
    vocabulary: Vocabulary,
    pairs: Sequence[tuple[str, str]],
    masks: Masks,
    *,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress = silent,
) -> Losses:
    """Losses of N sentence pairs under M masks `[M, total]`. Sentences are cut to the model's positions; EOS is kept.

    The model should be in evaluation mode. Its own gates are replaced during the call and put back after it. Raises
    InvalidRequestError for losses that are NaN or infinite.
    """
    device = model.shared.weight.device
    sources, targets = vocabulary.encode_pairs(pairs, model.arch.max_positions)
    layouts = torch.from_numpy(masks).to(device)
    sums = np.zeros((len(masks), len(pairs)))
    done = 0
    with RowMasks(model) as gates:
        for group in sentence_groups(list(map(max, map(len, sources), map(len, targets)))):
            batch = make_batch(
                [sources[i] for i in group], [targets[i] for i in group], model.arch.pad_id, model.arch.decoder_start
            ).to(device)
            longest = max(batch.source.size(1), batch.target_in.size(1))
            for rows, chunk in mask_chunks(layouts, gates.encoder_heads, batch_tokens // (len(group) * longest)):
                losses = _losses(model, gates, (batch.source, batch.target_in, batch.target_out), chunk)
                sums[np.ix_(rows.cpu().numpy(), np.array(group))] = losses.double().cpu().numpy()
            done += len(group)
            progress(f"loss: {done} of {len(pairs)} sentences under {len(masks)} masks")
    if not np.isfinite(sums).all():
        raise overflow(f"losses of {int((~np.isfinite(sums)).any(0).sum())} of {len(pairs)} sentences")
    return Losses(sums, np.array(list(map(len, targets)), np.int64))


def _losses(model: Transformer, gates: RowMasks, batch: tuple[Tensor, Tensor, Tensor], masks: Tensor) -> Tensor:
    """Source, target_in and target_out of B sentences, masks `[M, total]` → summed nats `[M, B]`."""
    source, target_in, target_out = batch
    encoded = encode(model, gates, source, masks)
    memory = encoded.memory.index_select(0, encoded.rows)
    mask = None if encoded.mask is None else encoded.mask.index_select(0, encoded.rows)
    gates.set_decoder(masks.repeat_interleave(len(source), 0))
    states = model.decode(memory, mask, target_in.repeat(len(masks), 1))  # [M · B, T, d_model]
    real = target_out.ne(model.arch.pad_id)
    rows = states[real.repeat(len(masks), 1)]
    targets = target_out[real].repeat(len(masks))
    nats = [
        functional.cross_entropy(model.logits(some).float(), wanted, reduction="none")
        for some, wanted in zip(torch.split(rows, LOGIT_ROWS), torch.split(targets, LOGIT_ROWS), strict=True)
    ]
    spread = torch.zeros(len(masks), *real.shape, device=states.device)  # [M, B, T]
    spread[real.expand_as(spread)] = torch.cat(nats)
    return spread.sum(-1)
