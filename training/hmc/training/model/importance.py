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

from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.artifact.checkpoint.extras import IMPORTANCE
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import KINDS, HeadLayout, HeadScores, Kind
from hmc.training.data.batches import Batch
from hmc.training.model.gates import ImportanceGate
from hmc.training.model.loss import cross_entropy_sum
from hmc.training.model.transformer import Transformer


def sentence_importance(model: Transformer, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Returns |∂L(x)/∂ξ_h| at ξ = 1 for every sentence x and head h: `[B, total]`, fp32 or wider, in nats.

    L(x) is the summed cross-entropy of sentence x. Heads are those of the model, in the order of `model.attentions()`
    (kind, layer, index). All gates are removed during the call, so every head is open. Dropout is active when the model
    is in training mode. The `.grad` of parameters does not change.
    """
    with importance_gates(model, batch.source.size(0)) as xi, _frozen(model), torch.enable_grad():
        states = model(batch.source, batch.target_in, batch.source_padded)
        loss, _ = cross_entropy_sum(model, states, batch, label_smoothing)
        gradients = torch.autograd.grad(loss, xi)
    return torch.cat(gradients, dim=1).abs()


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
def importance_gates(model: Transformer, batch_size: int) -> Iterator[list[Tensor]]:
    """Puts an `ImportanceGate` on every attention that has heads; restores the former gates at the end.

    Yields ξ of every attention: `[B, H]` ones that require a gradient. Raises InvalidRequestError when the model has no
    heads.
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
    """Returns I_h averaged over all sentences, without dropout: kind → `[layers, heads]` at original head indices.

    layout: the model's head layout (default: every head of its architecture); heads outside it get 0. Raises
    InvalidRequestError when there are no sentences or the model has no heads.
    """
    was_training = model.training
    model.eval()
    device = model.shared.weight.device
    # Not float64: Apple's MPS devices lack it.
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
    """values `[total]`, one for each head of `layout` → kind → `[layers, heads]`; heads outside `layout` get 0."""
    scores: dict[Kind, np.ndarray] = {kind: np.zeros((len(layout[kind]), arch.heads), np.float32) for kind in KINDS}
    for head, value in zip(layout.heads(), values.detach().cpu().tolist(), strict=True):
        scores[head.kind][head.layer, head.index] = value
    return scores


def write_importance(checkpoint: Path, scores: HeadScores) -> Path:
    """Writes `importance.json` into a checkpoint directory atomically; returns the file's path.

    Raises InvalidArtifactError when the directory is no checkpoint, InvalidRequestError when the scores have other
    shapes than the checkpoint's heads, or are not finite.
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
