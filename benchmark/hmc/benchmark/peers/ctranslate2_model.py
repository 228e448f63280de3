"""Writing the weights of an HMC checkpoint as a CTranslate2 model directory, which computes the same function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2 import specs  # type: ignore[import-untyped]

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.marian.weights import POSITIONS, starts_from_zero, with_zero_start
from hmc.artifact.model.architecture import LOGITS_BIAS, TARGET_EMBEDDING
from hmc.artifact.model.ffn import STACKS
from hmc.artifact.model.heads import KINDS
from hmc.artifact.model.layers import LinearSpec, NormSpec, SubLayerSpec

ACTIVATIONS = {"relu": specs.Activation.RELU, "swish": specs.Activation.SWISH, "gelu": specs.Activation.GELU}


def write_ctranslate2(checkpoint: Checkpoint, pieces: Sequence[str], out: Path, quantization: str | None) -> None:
    """Writes `out`. pieces: names by id, for both vocabularies where there are two. quantization: as CTranslate2 names
    it; None is float32.

    CTranslate2 needs equal numbers of heads, so closed heads have zero weights.
    """
    arch = checkpoint.architecture
    layout = checkpoint.layout
    full = arch.full_layout()
    tensors = checkpoint.tensors
    positions = arch.positions()
    if not starts_from_zero(checkpoint):  # as it takes decoders to do
        tensors = with_zero_start(tensors, arch)
    decoder_positions = tensors.get(POSITIONS, positions)
    tensors = {name: value.copy() for name, value in tensors.items()}  # quantising writes into them
    if any(layout[kind] != full[kind] for kind in KINDS):
        raise ValueError("give the full checkpoint: CTranslate2 cannot hold a slim one")
    spec = specs.TransformerSpec.from_config(
        (arch.encoder_layers, arch.decoder_layers), arch.heads, pre_norm=False, activation=ACTIVATIONS[arch.activation]
    )
    spec.config.decoder_start_token = pieces[arch.pad_id]
    spec.config.eos_token = pieces[arch.eos_id]
    spec.config.unk_token = pieces[arch.unk_id]
    spec.config.bos_token = pieces[arch.pad_id]
    spec.config.add_source_eos = False
    spec.register_source_vocabulary(list(pieces[: arch.source_size]))
    spec.register_target_vocabulary(list(pieces[: arch.vocab_size]))
    for side, stack in zip(STACKS, (spec.encoder, spec.decoder), strict=True):
        embeddings = stack.embeddings[0] if side == "encoder" else stack.embeddings
        embeddings.weight = tensors[arch.source_embedding if side == "encoder" else TARGET_EMBEDDING]
        stack.scale_embeddings = arch.scale_embedding
        stack.position_encodings.encodings = positions if side == "encoder" else decoder_positions
        for index, layer in enumerate(stack.layer):
            _layer(layer, tensors, arch.sublayers(side, index))
    spec.decoder.start_from_zero_embedding = True
    spec.decoder.projection.weight = tensors[TARGET_EMBEDDING]
    spec.decoder.projection.bias = tensors[LOGITS_BIAS].reshape(-1)
    spec.validate()
    spec.optimize(quantization=quantization)
    out.mkdir(parents=True, exist_ok=True)
    spec.save(str(out))


def _layer(layer: Any, tensors: dict[str, np.ndarray], sublayers: Sequence[SubLayerSpec]) -> None:
    """Fills a layer of the specification. tensors: those of the checkpoint."""

    def fill(spec: Any, *linears: LinearSpec) -> None:
        spec.weight = np.concatenate([tensors[linear.weight] for linear in linears])
        spec.bias = np.concatenate([tensors[linear.bias] for linear in linears])

    def norm(spec: Any, named: NormSpec) -> None:
        spec.gamma = tensors[named.weight]
        spec.beta = tensors[named.bias]

    own, *cross, feed = sublayers
    fill(layer.self_attention.linear[0], *own.inputs)
    fill(layer.self_attention.linear[1], own.output)
    norm(layer.self_attention.layer_norm, own.norm)
    for source in cross:
        query, key_value, output = layer.attention.linear
        fill(query, source.inputs[0])
        fill(key_value, *source.inputs[1:])
        fill(output, source.output)
        norm(layer.attention.layer_norm, source.norm)
    fill(layer.ffn.linear_0, *feed.inputs)
    fill(layer.ffn.linear_1, feed.output)
    norm(layer.ffn.layer_norm, feed.norm)
