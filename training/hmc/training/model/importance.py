"""Head importance I_h = E_x |∂L(x)/∂ξ_h| from one backward pass (Michel et al. 2019; Sun et al. 2021, eq. 1 and 2).

`hmc.artifact.model.importance` has the other forms of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import KINDS, AttentionKind, HeadLayout, HeadScores
from hmc.artifact.model.importance import DEFAULT, Importance
from hmc.training.data.batches import Batch
from hmc.training.model.gates import ImportanceGate
from hmc.training.model.loss import cross_entropy_sum
from hmc.training.model.regimes import restoring_gates
from hmc.training.model.transformer import Transformer


def sentence_importance(
    model: Transformer, batch: Batch, label_smoothing: float = 0.0, how: Importance = DEFAULT
) -> Tensor:
    """Returns the part of every sentence x in the importance of head h: `[B, total]`, fp32 or wider, in nats.

    By default |∂L(x)/∂ξ_h| at ξ = 1; else the sum of the absolute values of its tokens, or -∂L(x)/∂ξ_h where `how`
    takes the absolute value of a whole batch, or none. L(x) is the summed cross-entropy of sentence x. Heads are in the
    order of `model.attentions()` (kind, layer, index). All gates are removed during the call, so every head is open.
    Dropout is active when the model is in training mode. The `.grad` of parameters does not change.
    """
    lengths = _lengths(batch) if how.estimator == "token" else None
    with importance_gates(model, batch.source.size(0), lengths) as xi, _frozen(model), torch.enable_grad():
        states = model(batch.source, batch.target_in, batch.source_padded)
        loss, _ = cross_entropy_sum(model, states, batch, label_smoothing)
        gradients = torch.autograd.grad(loss, xi)
    gained = how.sign == "signed" or how.estimator == "batch"
    values = list(map(torch.neg if gained else torch.abs, gradients))
    if how.estimator == "token":
        values = [of_tokens.sum(2) for of_tokens in values]
    return torch.cat(values, dim=1)


def importance_sums(
    model: Transformer, batches: Sequence[Batch], how: Importance = DEFAULT, label_smoothing: float = 0.0
) -> Tensor:
    """Returns the sums that `importance_of` divides, over all parts of one batch: `[2, total]`.

    The first row sums `sentence_importance`; the second counts the sentences or tokens of its mean. The sums of several
    processes may be added up before the division.
    """
    sums = []
    for batch in batches:
        rows = sentence_importance(model, batch, label_smoothing, how)
        sums.append(torch.stack([rows.sum(0), _counted(model, batch, how).to(rows)]))
    return torch.stack(sums).sum(0)


def importance_of(sums: Tensor, how: Importance, heads: Sequence[int]) -> Tensor:
    """Returns I_h `[total]` from the sums of one batch. The sums may be absolute already.

    heads: number of heads of each attention that has heads.
    """
    values = sums[0] / sums[1]
    if how.sign == "absolute":
        values = values.abs()
    if how.normalise == "layer":
        values = torch.cat([functional.normalize(part, dim=0) for part in values.split_with_sizes(list(heads))])
    return values


def heads_of_attentions(model: Transformer) -> list[int]:
    """Returns the number of heads of each attention that has heads, in the order of `model.attentions()`."""
    return [attention.heads for *_, attention in model.open_attentions()]


def _lengths(batch: Batch) -> dict[AttentionKind, int]:
    """Positions at which the heads of each kind compute an output."""
    source = batch.source.size(1)
    target = batch.target_in.size(1)
    return {"encoder_self": source, "decoder_self": target, "cross": target}


def _counted(model: Transformer, batch: Batch, how: Importance) -> Tensor:
    """`[total]`: what importance is a mean over. Tokens are those of the source for heads of the encoder, else those of
    the target."""
    sentences = batch.source.size(0)
    source = batch.source.ne(model.arch.pad_id).sum()
    whole = torch.full_like(source, sentences if how.estimator != "token" else batch.tokens)
    counts = {"encoder_self": source if how.estimator == "token" else whole}
    return torch.cat([counts.get(kind, whole).expand(heads.heads) for kind, _, heads in model.attentions()])


@contextmanager
def _frozen(model: Transformer) -> Iterator[None]:
    """Computes no gradients of parameters: importance does not need them, and they are half of a backward pass."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextmanager
def importance_gates(
    model: Transformer, batch_size: int, lengths: Mapping[AttentionKind, int] | None = None
) -> Iterator[list[Tensor]]:
    """Puts an `ImportanceGate` on every attention that has heads; restores the former gates at the end.

    lengths: positions of each kind, for a ξ of each token. Yields ξ of every attention: `[B, H]` ones, or `[B, H, T]`,
    that require a gradient. Raises InvalidRequestError when the model has no heads.
    """
    attentions = model.open_attentions()
    if not attentions:
        raise InvalidRequestError("this model has no attention heads left, so there is no importance to measure")
    ones = []
    with restoring_gates(attention for *_, attention in attentions):
        for kind, _, attention in attentions:
            shape = [batch_size, attention.heads]
            if lengths:
                shape.append(lengths[kind])
            ones.append(attention.out_bias.new_ones(shape).requires_grad_())
            attention.gate = ImportanceGate(ones[-1])
        yield ones


def corpus_importance(
    model: Transformer,
    batches: Iterable[Batch],
    layout: HeadLayout | None = None,
    *,
    how: Importance = DEFAULT,
) -> HeadScores:
    """Returns I_h over a text, without dropout: kind → `[layers, heads]` at original head indices.

    layout: the model's head layout (default: every head of its architecture); heads outside it get 0. Raises
    InvalidRequestError when there are no sentences or the model has no heads.
    """
    was_training = model.training
    model.eval()
    device = model.shared.weight.device
    # Not float64: Apple's MPS devices lack it.
    total: Tensor | None = None
    try:
        for batch in batches:
            sums = importance_sums(model, [batch.to(device)], how)
            if how.sign == "absolute":
                sums = sums.abs()
            total = sums if total is None else total + sums
    finally:
        model.train(was_training)
    if total is None or not bool(total[1].any()):
        raise InvalidRequestError("head importance needs at least one sentence pair; the corpus given is empty")
    values = importance_of(total, how, heads_of_attentions(model))
    return scores_per_head(values, model.arch, layout or model.arch.full_layout())


def scores_per_head(values: Tensor, arch: Architecture, layout: HeadLayout) -> HeadScores:
    """values `[total]`, one for each head of `layout` → kind → `[layers, heads]`; heads outside `layout` get 0."""
    scores: dict[AttentionKind, np.ndarray] = {
        kind: np.zeros((len(layout[kind]), arch.heads), np.float32) for kind in KINDS
    }
    for head, value in zip(layout.heads(), values.detach().cpu().tolist(), strict=True):
        scores[head.kind][head.layer, head.index] = value
    return scores
