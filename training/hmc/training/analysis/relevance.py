"""Relevance of every head to what the model predicts (Voita et al. 2019, section 4, figures 1a, 2a and 2c).

Layer-wise relevance propagation takes the relevance of the top-1 logit back through the model, from the output of every
operation to its inputs (Voita et al. 2019, appendix A.2; Bach et al. 2015).

An output neuron v = Σ_u W_uv·u divides its relevance among its inputs u. Definition 3 of Voita et al. gives input u
the share W_uv·u / Σ W_u'v·u'. This grows without bound where contributions W_uv·u cancel each other: in the embedded
demo model the relevance of single heads then reaches 10⁸ times the logit. Contributions are therefore divided by sign,
as in Bach et al. 2015, eq. 60, with α = β = 1/2, the values in the program of Voita et al. Positive contributions get
one half of the relevance, in proportion; negative ones get the other half. If all have one sign, this is Definition 3.

Four rules keep the sum of relevances the same everywhere, up to rounding and without a stabiliser:

* A bias gets no relevance, and the sums of contributions do not include it.
* If no contribution has one of the signs, the other sign gets the whole relevance.
* If all contributions are 0, all inputs get equal shares. In a residual connection the residual gets everything.
* Relevance goes unchanged through non-linear functions: the activation function, the softmax, and the statistics of
  layer norm. Attention weights thus count as the W of a weighted sum of values (as in Ding et al. 2017), and queries
  and keys get nothing. Layer norm is a scale and a shift of each neuron, wherever it is: where norms come first, the
  relevance of what a sub-layer reads is that of the same neurons of the residual stream.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmc.training.analysis.common.records import HeadRelevance, LayerRelevance, RelevanceData
from hmc.training.analysis.common.result import Place, Result, add_to, in_order, model_shape
from hmc.training.analysis.common.subject import Progress, Subject, Text, overflow, silent
from hmc.training.analysis.common.summary import Summary, plain
from hmc.training.analysis.common.trace import FeedForwardTrace, Trace, TracedAttention, trace_decoder, trace_encoder
from hmc.training.analysis.common.views import READS, tokenize
from hmc.training.model.transformer import Transformer

STEPS_AT_ONCE = 32
"""Generation steps whose relevances are in memory at the same time."""
COMMAND = "lrp"
SHOWN = 10
CONSERVED = 1e-4
"""Largest error of conservation at which a result is valid."""


def analyse(
    subject: Subject, text: Text, *, forced: bool = False, progress: Progress = silent
) -> Result[RelevanceData]:
    """Relevance of every open head to the top-1 logit, over all generation steps of the text's source sentences.

    forced: the decoder reads the references in place of the model's own greedy translations. Raises
    InvalidArtifactError for NaN weights, InvalidRequestError for hidden states and relevances that are NaN.
    """
    prepared = tokenize(subject, text, forced=forced, progress=progress)
    scores = LrpScores(subject.model)
    for number, pair in enumerate(prepared.pairs, 1):
        scores.add(pair.source, [subject.model.arch.decoder_start, *pair.target[:-1]])
        progress(f"relevance: {number} of {len(prepared.pairs)} sentences")
    if math.isnan(scores.worst):
        raise overflow("relevances of heads")
    if scores.worst > CONSERVED:
        raise AssertionError(f"relevance is not conserved: a sum of relevances is off by {scores.worst:g}")
    values = zip(subject.layout.heads(), in_order(scores.relevance(), subject.layout), strict=True)
    heads = [HeadRelevance(**asdict(head), relevance=float(value)) for head, value in values]
    layers = []
    for (kind, layer), share in sorted(scores.through_heads().items()):
        layers.append(LayerRelevance(kind=kind, layer=layer, through_heads=share))
    return subject.result(
        COMMAND,
        text.source,
        settings={
            "explained": "top-1 logit of every generation step",
            "decoder_reads": READS[forced],
            "rule": "alpha-beta, 1/2 and 1/2; no bias, no stabiliser; softmax and norm statistics constant",
            "normalised": "over the heads of a layer, at every step",
        },
        data=RelevanceData(
            **model_shape(subject.checkpoint),
            heads=heads,
            layers=layers,
            generation_steps=scores.steps,
            sentences_cut=prepared.cut,
            conservation_error=scores.worst,
        ),
    )


def summary(result: Result[RelevanceData]) -> Summary:
    """The heads whose relevance is most above an equal share of their layer."""
    sizes = Counter((row.kind, row.layer) for row in result.data.heads)
    ranked = sorted(result.data.heads, key=lambda row: -row.relevance * sizes[row.kind, row.layer])
    rows = tuple(
        (str(row.head), plain(row.relevance, 3), plain(1 / sizes[row.kind, row.layer], 3)) for row in ranked[:SHOWN]
    )
    notes = (
        f"{result.data.generation_steps} generation steps; decoder reads {result.settings['decoder_reads']}; "
        f"sums of relevances off by at most {result.data.conservation_error:.1g}",
    )
    title = f"Relevance by LRP: the {len(rows)} heads most above an equal share of their layer"
    return Summary(title, ("head", "relevance", "equal share"), rows, notes)


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
        for relevance in sentence_relevance(self._model, source, target_in):
            for place, heads in relevance.heads.items():
                total = heads.sum(1, keepdim=True)  # [N, 1]
                shares = torch.where(total > 0, heads / total, 0.0).sum(0).cpu().numpy().astype(np.float64)
                add_to(self._sums, place, shares)
                self._through[place] = self._through.get(place, 0.0) + float(total.sum())
            totals = torch.stack(list(relevance.totals.values()))
            self.steps += totals.size(1)
            self.worst = float(np.maximum(self.worst, float((totals - 1).abs().max())))  # NaN stays

    def relevance(self) -> dict[Place, npt.NDArray[np.float64]]:
        """(kind, layer) → `[H]`: relevance of each head, normalised over the heads of its layer at every step."""
        return {place: total / max(1, self.steps) for place, total in self._sums.items()}

    def through_heads(self) -> dict[Place, float]:
        """(kind, layer) → the share of the logit's relevance that goes through the heads of that layer."""
        return {place: total / max(1, self.steps) for place, total in self._through.items()}


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
    """Relevance of each head to the top-1 logit of each generation step. It is computed for a few steps at a time.

    source: ids with EOS. target_in: ids that the decoder reads, the start symbol first; step n sees n + 1 of them.
    Raises InvalidRequestError for hidden states that are NaN or infinite.
    """
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
        shares = Relevance()
        relevance = through_product(one, states, winners)
        memory = torch.zeros(len(one), *encoder.states.shape[1:], dtype=states.dtype, device=device)
        relevance = _go_back(decoder, relevance, memory, shares)
        shares.totals["decoder input"] = _total(relevance, memory)
        spent = relevance.sum((1, 2))
        memory = _go_back(encoder, memory, None, shares, spent)
        shares.totals["encoder input"] = memory.sum((1, 2)) + spent
        yield shares


def _total(relevance: Tensor, memory: Tensor | None) -> Tensor:
    return relevance.sum((1, 2)) + (0 if memory is None else memory.sum((1, 2)))


def _go_back(
    trace: Trace, relevance: Tensor, memory: Tensor | None, shares: Relevance, elsewhere: Tensor | float = 0.0
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
            shares.heads[step.kind, step.layer] = relevance.new_zeros(len(relevance), 0)
            continue
        name = f"{step.kind}.{step.layer}"
        relevance, outputs = _to_heads(relevance, step)
        shares.heads[step.kind, step.layer] = outputs.sum((2, 3))
        shares.totals[f"{name} heads"] = _total(relevance, memory) + outputs.sum((1, 2, 3)) + elsewhere
        received = _from_heads(outputs, step)
        if memory is not None and step.kind == "cross":
            memory += received
        else:
            relevance = relevance + received
        shares.totals[f"{name} input"] = _total(relevance, memory) + elsewhere
    return relevance


def _through_feed_forward(relevance: Tensor, step: FeedForwardTrace) -> Tensor:
    x = step.states[0]
    hidden = step.hidden[0]
    weight = step.module.fc2.weight
    kept, updated = through_sum(relevance, step.residual[0], hidden @ weight.T)
    return kept + through_linear(through_linear(updated, hidden, weight), x, step.module.fc1.weight)


def _to_heads(relevance: Tensor, step: TracedAttention) -> tuple[Tensor, Tensor]:
    """Relevance `[N, T, d_model]` → that of the residual connection (same shape) and of head outputs `[N, H, T, D]`."""
    assert step.heads is not None
    outputs = step.heads.outputs[0]
    weight = step.module.out_weight
    heads, length, width = outputs.shape
    joined = outputs.transpose(0, 1).reshape(length, heads * width)  # [T, H·D]
    kept, updated = through_sum(relevance, step.residual[0], joined @ weight.T)
    spread = through_linear(updated, joined, weight)
    return kept, spread.view(-1, length, heads, width).transpose(1, 2)


def _from_heads(outputs: Tensor, step: TracedAttention) -> Tensor:
    """Relevance of head outputs `[N, H, T, D]` → relevance of the input of the value projection `[N, S, d_model]`."""
    assert step.heads is not None
    values = through_attention(outputs, step.heads.weights[0], step.heads.values[0])  # [N, H, S, D]
    joined = values.transpose(1, 2).flatten(2)  # [N, S, H·D]
    _, value_weight = step.module.key_value.weight.chunk(2)
    return through_linear(joined, step.source[0], value_weight)


def divide_by_sign(relevance: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance per unit of positive contribution and per unit of negative contribution, and the relevance of outputs
    without either.

    positive, negative: sums of the contributions of either sign (≥ 0 and ≤ 0), broadcastable to `relevance`.
    """
    least = torch.finfo(positive.dtype).tiny  # what is below it has no finite inverse
    has_positive = positive >= least
    has_negative = negative <= -least
    part = torch.where(has_positive & has_negative, 0.5, 1.0).to(positive.dtype)
    per_positive = torch.where(has_positive, part / positive, 0.0)
    per_negative = torch.where(has_negative, part / negative, 0.0)
    neither = torch.where(has_positive | has_negative, 0.0, 1.0).to(positive.dtype)
    return relevance * per_positive, relevance * per_negative, relevance * neither


def through_linear(relevance: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """y = W x (+ bias): relevance of y `[N, T, out]`, x `[T, in]`, weight `[out, in]` → relevance of x `[N, T, in]`."""
    x_up = x.clamp(min=0)
    x_down = x.clamp(max=0)
    w_up = weight.clamp(min=0)
    w_down = weight.clamp(max=0)
    positive = x_up @ w_up.T + x_down @ w_down.T  # [T, out]
    negative = x_up @ w_down.T + x_down @ w_up.T
    per_positive, per_negative, neither = divide_by_sign(relevance, positive, negative)
    shared = x_up * (per_positive @ w_up + per_negative @ w_down) + x_down * (
        per_positive @ w_down + per_negative @ w_up
    )
    return shared + neither.sum(-1, keepdim=True) / x.size(-1)


def through_sum(relevance: Tensor, residual: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """y = residual + update, neuron by neuron; every tensor `[…, T, d]`. Relevances of both."""
    positive = residual.clamp(min=0) + update.clamp(min=0)
    negative = residual.clamp(max=0) + update.clamp(max=0)
    per_positive, per_negative, neither = divide_by_sign(relevance, positive, negative)
    kept = residual.clamp(min=0) * per_positive + residual.clamp(max=0) * per_negative
    updated = update.clamp(min=0) * per_positive + update.clamp(max=0) * per_negative
    return kept + neither, updated


def through_attention(relevance: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """o_t = Σ_s a_ts v_s per head and dimension: relevance of o `[N, H, T, D]`, weights `[H, T, S]`, values
    `[H, S, D]` → relevance of the values `[N, H, S, D]`."""
    v_up = values.clamp(min=0)
    v_down = values.clamp(max=0)
    per_positive, per_negative, neither = divide_by_sign(relevance, weights @ v_up, weights @ v_down)
    back = weights.transpose(-1, -2)  # [H, S, T]
    shared = v_up * (back @ per_positive) + v_down * (back @ per_negative)
    # Equal shares among the positions that a query may look at.
    visible = (weights > 0).to(weights.dtype)
    equal = visible / visible.sum(-1, keepdim=True)
    return shared + equal.transpose(-1, -2) @ neither


def through_product(relevance: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """y = w · x, one output (a logit): relevance `[N, T]`, x `[T, d]`, weight `[T, d]` → `[N, T, d]`."""
    z = x * weight
    per_positive, per_negative, neither = divide_by_sign(relevance, z.clamp(min=0).sum(-1), z.clamp(max=0).sum(-1))
    shared = z.clamp(min=0) * per_positive[..., None] + z.clamp(max=0) * per_negative[..., None]
    return shared + neither[..., None] / x.size(-1)
