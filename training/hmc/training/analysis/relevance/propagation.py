"""Relevance of every head to the top-1 logit, by layer-wise relevance propagation (Voita et al. 2019, appendix A)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.common.per_head import Place
from hmc.training.analysis.common.subject import overflow
from hmc.training.analysis.common.trace import AttentionTrace, FeedForwardTrace, Trace, trace_decoder, trace_encoder
from hmc.training.analysis.relevance.rules import through_attention, through_linear, through_product, through_sum
from hmc.training.model.transformer import Transformer

STEPS_AT_ONCE = 32
"""Generation steps whose relevances are in memory at the same time."""


@dataclass
class Relevance:
    """Relevances in N generation steps of one sentence, as shares of the logit."""

    heads: dict[Place, Tensor] = field(default_factory=dict)
    """(kind, layer) → `[N, H]`: relevance of each head, summed over its neurons and over positions."""
    totals: dict[str, Tensor] = field(default_factory=dict)
    """Place → `[N]`: sum of all relevance at the output of a sub-layer's heads, or at a sub-layer's input. All sums are
    1 if relevance is conserved."""


@torch.no_grad()
def sentence_relevance(model: Transformer, source: Sequence[int], target_in: Sequence[int]) -> Iterator[Relevance]:
    """Relevance of each head to the top-1 logit of each generation step, a few steps at a time.

    source: ids with EOS. target_in: ids that the decoder reads, the start symbol first; step n sees n + 1 of them.
    Raises InvalidRequestError for hidden states that are NaN or infinite, and for a model whose norms come first.
    """
    if model.arch.pre_norm:
        raise InvalidRequestError(
            "relevance is propagated through layers that normalise after the residual only; this model normalises "
            "first: rank its heads with `hmc analyze importance` or `ablate`"
        )
    device = model.shared.weight.device
    source_ids = torch.tensor([list(source)], device=device)
    encoder = trace_encoder(model, source_ids)
    decoder = trace_decoder(model, source_ids, encoder.states, torch.tensor([list(target_in)], device=device))
    states = decoder.states[0]  # [T, d_model]
    if not torch.isfinite(states).all():
        raise overflow("hidden states of the model")
    logits = model.logits(states)
    logits[:, model.arch.pad_id] = float("-inf")
    winners = model.output_weight[logits.argmax(-1)]  # [T, d_model]
    for start in range(0, len(states), STEPS_AT_ONCE):
        one = torch.eye(len(states), dtype=states.dtype, device=device)[start : start + STEPS_AT_ONCE]  # [N, T]
        found = Relevance()
        relevance = through_product(one, states, winners)
        memory = torch.zeros(len(one), *encoder.states.shape[1:], dtype=states.dtype, device=device)
        relevance = _go_back(decoder, relevance, memory, found)
        found.totals["decoder input"] = _total(relevance, memory)
        spent = relevance.sum((1, 2))
        memory = _go_back(encoder, memory, None, found, spent)
        found.totals["encoder input"] = memory.sum((1, 2)) + spent
        yield found


def _total(relevance: Tensor, memory: Tensor | None) -> Tensor:
    return relevance.sum((1, 2)) + (0 if memory is None else memory.sum((1, 2)))


def _go_back(
    trace: Trace, relevance: Tensor, memory: Tensor | None, found: Relevance, elsewhere: Tensor | float = 0.0
) -> Tensor:
    """Relevance of the stack's final states → relevance of its input, both `[N, T, d_model]`.

    memory `[N, S, d_model]`: the relevance that cross-attention gives to the encoder's states is added to it.
    elsewhere `[N]`: relevance that is in other parts of the network, for the totals.
    """
    for step in reversed(trace.steps):
        if isinstance(step, FeedForwardTrace):
            relevance = _through_feed_forward(relevance, step)
            continue
        if step.heads is None:
            found.heads[step.kind, step.layer] = relevance.new_zeros(len(relevance), 0)
            continue
        name = f"{step.kind}.{step.layer}"
        relevance, outputs = _to_heads(relevance, step)
        found.heads[step.kind, step.layer] = outputs.sum((2, 3))
        found.totals[f"{name} heads"] = _total(relevance, memory) + outputs.sum((1, 2, 3)) + elsewhere
        received = _from_heads(outputs, step)
        if memory is not None and step.kind == "cross":
            memory += received
        else:
            relevance = relevance + received
        found.totals[f"{name} input"] = _total(relevance, memory) + elsewhere
    return relevance


def _through_feed_forward(relevance: Tensor, step: FeedForwardTrace) -> Tensor:
    x, hidden, weight = step.states[0], step.hidden[0], step.module.fc2.weight
    kept, updated = through_sum(relevance, x, hidden @ weight.T)
    return kept + through_linear(through_linear(updated, hidden, weight), x, step.module.fc1.weight)


def _to_heads(relevance: Tensor, step: AttentionTrace) -> tuple[Tensor, Tensor]:
    """Relevance `[N, T, d_model]` → that of the residual connection (same shape) and of head outputs `[N, H, T, D]`."""
    assert step.heads is not None
    outputs, weight = step.heads.outputs[0], step.module.out_weight
    heads, length, width = outputs.shape
    joined = outputs.transpose(0, 1).reshape(length, heads * width)  # [T, H·D]
    kept, updated = through_sum(relevance, step.states[0], joined @ weight.T)
    spread = through_linear(updated, joined, weight)
    return kept, spread.view(-1, length, heads, width).transpose(1, 2)


def _from_heads(outputs: Tensor, step: AttentionTrace) -> Tensor:
    """Relevance of head outputs `[N, H, T, D]` → relevance of the input of the value projection `[N, S, d_model]`."""
    assert step.heads is not None
    values = through_attention(outputs, step.heads.weights[0], step.heads.values[0])  # [N, H, S, D]
    joined = values.transpose(1, 2).flatten(2)  # [N, S, H·D]
    _, value_weight = step.module.key_value.weight.chunk(2)
    return through_linear(joined, step.source[0], value_weight)


class LrpScores:
    """Relevance per head, averaged over all generation steps of a corpus."""

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._sums: dict[Place, npt.NDArray[np.float64]] = {}
        self._through: dict[Place, float] = {}
        self.steps = 0
        """Generation steps counted so far."""
        self.worst = 0.0
        """Error of conservation: the largest deviation from 1 of a sum of relevances, over all layers and steps."""

    def add(self, source: Sequence[int], target_in: Sequence[int]) -> None:
        """Counts every generation step of one sentence (see `sentence_relevance`)."""
        for found in sentence_relevance(self._model, source, target_in):
            for place, heads in found.heads.items():
                total = heads.sum(1, keepdim=True)  # [N, 1]
                shares = torch.where(total > 0, heads / total, 0.0).sum(0).cpu().numpy().astype(np.float64)
                self._sums[place] = self._sums[place] + shares if place in self._sums else shares
                self._through[place] = self._through.get(place, 0.0) + float(total.sum())
            totals = torch.stack(list(found.totals.values()))
            self.steps += totals.size(1)
            self.worst = max(self.worst, float((totals - 1).abs().max()))

    def relevance(self) -> dict[Place, npt.NDArray[np.float64]]:
        """(kind, layer) → `[H]`: relevance of each head, normalised over the heads of its layer at every step."""
        return {place: total / max(1, self.steps) for place, total in self._sums.items()}

    def through_heads(self) -> dict[Place, float]:
        """(kind, layer) → the share of the logit's relevance that goes through the heads of that layer."""
        return {place: total / max(1, self.steps) for place, total in self._through.items()}
