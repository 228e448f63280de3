"""Head importance I_h = E_x |∂L(x)/∂ξ_h| from one backward pass (Michel et al. 2019; Sun et al. 2021, eq. 1 and 2)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hmc.artifact.architecture import Architecture
from hmc.artifact.checkpoint import load_checkpoint
from hmc.artifact.checkpoint_extras import IMPORTANCE
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import KINDS, HeadLayout, HeadScores, Kind
from hmc.training.batches import Batch
from hmc.training.gates import ImportanceGate
from hmc.training.objective import cross_entropy_sum
from hmc.training.transformer import Transformer


def sentence_importance(model: Transformer, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """|∂L(x)/∂ξ_h| at ξ = 1 for every sentence x and head h: `[B, total]`, fp32 or wider, in nats.

    L(x) is the sentence's summed cross-entropy. Heads come in the order of `model.attentions()` (kind, layer, index),
    those of the model only. Whatever gates the model has are set aside meanwhile: every head is open. Dropout is as the
    model's mode says. No parameter's `.grad` is touched.
    """
    with importance_gates(model, batch.source.size(0)) as xi, _without_weights(model), torch.enable_grad():
        states = model(batch.source, batch.target_in)
        loss, _ = cross_entropy_sum(model, states, batch, label_smoothing)
        gradients = torch.autograd.grad(loss, xi)
    return torch.cat(gradients, dim=1).abs()


@contextmanager
def _without_weights(model: Transformer) -> Iterator[None]:
    """Parameters want no gradient meanwhile: nobody reads theirs, and it is half of a backward pass."""
    wanting = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in wanting:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in wanting:
            parameter.requires_grad_(True)


@contextmanager
def importance_gates(model: Transformer, batch_size: int) -> Iterator[list[Tensor]]:
    """Puts an `ImportanceGate` on every attention that has heads, and the former gates back at the end.

    Yields ξ of each, `[B, H]` of ones that want a gradient.
    """
    attentions = [attention for *_, attention in model.attentions() if attention.heads]
    if not attentions:
        raise InvalidRequestError("this model has no attention heads left, so there is no importance to measure")
    former = [attention.gate for attention in attentions]
    ones = [
        torch.ones(
            batch_size, attention.heads, dtype=attention.out_bias.dtype, device=attention.out_bias.device
        ).requires_grad_()
        for attention in attentions
    ]
    for attention, xi in zip(attentions, ones, strict=True):
        attention.gate = ImportanceGate(xi)
    try:
        yield ones
    finally:
        for attention, gate in zip(attentions, former, strict=True):
            attention.gate = gate


def corpus_importance(
    model: Transformer, batches: Iterable[Batch], layout: HeadLayout | None = None, label_smoothing: float = 0.0
) -> HeadScores:
    """I_h over all sentences of `batches`, without dropout: kind → `[layers, heads]` at original head indices.

    layout: the model's own head layout (default: every head of its architecture); heads outside it score 0. Raises
    InvalidRequestError when there are no sentences.
    """
    was_training = model.training
    model.eval()
    device = model.shared.weight.device
    # float64 is not everywhere: MPS has none.
    total, sentences = torch.zeros((), device=device), 0
    try:
        for batch in batches:
            total = total + sentence_importance(model, batch.to(device), label_smoothing).sum(0)
            sentences += batch.source.size(0)
    finally:
        model.train(was_training)
    if not sentences:
        raise InvalidRequestError("head importance needs at least one sentence pair; the corpus given is empty")
    return scores_per_head(total / sentences, model.arch, layout or model.arch.full_layout())


def scores_per_head(values: Tensor, arch: Architecture, layout: HeadLayout) -> HeadScores:
    """values `[total]`, one a head of `layout` in its order → kind → `[layers, heads]`; other heads get 0."""
    scores: dict[Kind, np.ndarray] = {kind: np.zeros((len(layout[kind]), arch.heads), np.float32) for kind in KINDS}
    for head, value in zip(layout.heads(), values.detach().cpu().tolist(), strict=True):
        scores[head.kind][head.layer, head.index] = value
    return scores


def write_importance(checkpoint: Path, scores: HeadScores) -> Path:
    """Writes `importance.json` into a checkpoint directory, at once or not at all; returns the file's path.

    Raises InvalidArtifactError when the directory is no checkpoint, InvalidRequestError when the scores are another
    model's or not finite.
    """
    arch = load_checkpoint(checkpoint).architecture
    for kind in KINDS:
        expected = (arch.encoder_layers if kind == "encoder_self" else arch.decoder_layers, arch.heads)
        if scores[kind].shape != expected:
            raise InvalidRequestError(
                f"importance of {kind} has shape {list(scores[kind].shape)}; {checkpoint} needs {list(expected)}"
            )
        if not np.isfinite(scores[kind]).all():
            raise InvalidRequestError(f"importance of {kind} holds NaN or infinity; measure it again in fp32")
    path = checkpoint / IMPORTANCE
    temporary = path.with_name(f".{IMPORTANCE}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as handle:
        json.dump({kind: scores[kind].astype(float).tolist() for kind in KINDS}, handle)
        handle.write("\n")
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)
    return path
