"""Weights between the PyTorch model and files: checkpoints, their average, and PyTorch's own files.

A checkpoint names tensors as MarianMTModel does and has one tensor for each projection; the model has fused ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.errors import HmcError, InvalidRequestError
from hmc.artifact.model.architecture import (
    LOGITS_BIAS,
    OUTPUT,
    SOURCE_EMBEDDING,
    TARGET_EMBEDDING,
)
from hmc.artifact.model.ffn import Stack
from hmc.artifact.model.layers import LinearSpec, NormSpec, SubLayerSpec, layer_name, layer_of
from hmc.training.model.layers import Attention, DecoderLayer, FeedForward
from hmc.training.model.transformer import Transformer, build_transformer


def tensor_views(model: Transformer) -> dict[str, Tensor]:
    """Checkpoint name → view of the model's own storage: reading it exports, `copy_` into it imports."""
    views: dict[str, Tensor] = {TARGET_EMBEDDING: model.shared.weight, LOGITS_BIAS: model.final_logits_bias}
    if model.sources is not None:
        views[SOURCE_EMBEDDING] = model.sources.weight
    if model.output is not None:
        views[OUTPUT] = model.output
    norms: tuple[tuple[Stack, nn.Module | None], ...] = ("encoder", model.encoder_norm), ("decoder", model.decoder_norm)
    for stack, norm in norms:
        if norm is not None and (named := model.arch.stack_norm(stack)):
            views |= _own(named, norm)
    for stack, number, layer in model.layers():
        if layer.removed:
            continue
        own, *cross, feed = model.arch.sublayers(stack, number)
        views |= _attention_views(own, layer.self_attn) | _own(own.norm, layer.self_attn_layer_norm)
        if isinstance(layer, DecoderLayer):
            [source] = cross
            views |= _attention_views(source, layer.encoder_attn) | _own(source.norm, layer.encoder_attn_layer_norm)
        views |= _feed_forward_views(feed, layer.ffn) | _own(feed.norm, layer.final_layer_norm)
    return views


def _own(named: LinearSpec | NormSpec, part: nn.Module) -> dict[str, Tensor]:
    return {name: part.get_parameter(name.rpartition(".")[2]) for name in named.tensors}


def _attention_views(named: SubLayerSpec, attention: Attention) -> dict[str, Tensor]:
    views: dict[str, Tensor] = {named.output.bias: attention.out_bias}
    if attention.heads:
        query, key, value = named.inputs
        views |= {query.weight: attention.query.weight, query.bias: attention.query.bias}
        views |= zip((key.weight, value.weight), attention.key_value.weight.chunk(2), strict=True)
        views |= zip((key.bias, value.bias), attention.key_value.bias.chunk(2), strict=True)
        views[named.output.weight] = attention.out_weight
    return views


def _feed_forward_views(named: SubLayerSpec, feed_forward: FeedForward) -> dict[str, Tensor]:
    if not feed_forward.neurons:
        return {named.output.bias: feed_forward.fc2.bias}
    [inward] = named.inputs
    return _own(inward, feed_forward.fc1) | _own(named.output, feed_forward.fc2)


def export_tensors(model: Transformer) -> Tensors:
    """Returns fp32 NumPy copies of every tensor, by its name in a checkpoint."""
    return {n: view.detach().to("cpu", torch.float32).numpy().copy() for n, view in tensor_views(model).items()}


@torch.no_grad()
def import_tensors(model: Transformer, tensors: Mapping[str, np.ndarray]) -> None:
    """Copies checkpoint tensors into the model, which must have their heads and neurons. Raises KeyError, RuntimeError
    when a tensor is missing or has another shape."""
    for name, view in tensor_views(model).items():
        view.copy_(torch.from_numpy(np.ascontiguousarray(tensors[name])))


def model_from_checkpoint(checkpoint: Checkpoint, *, dropout: float = 0.0) -> Transformer:
    """Returns the checkpoint as a PyTorch model with the checkpoint's heads and neurons, in training mode.

    dropout: probability used in training mode.
    """
    model = build_transformer(
        checkpoint.architecture, checkpoint.layout, checkpoint.ffn_widths, checkpoint.removed_layers, dropout=dropout
    )
    import_tensors(model, checkpoint.tensors)
    return model


def deepened(tensors: Mapping[str, np.ndarray], encoder: int, decoder: int) -> Tensors:
    """Returns the tensors of a model that has every encoder layer `encoder` times in a row, every decoder layer
    `decoder` times: a trained shallow model as the start of a deep one (Li et al. 2020, Shallow-to-Deep Training for
    Neural Machine Translation). Repeated layers share their arrays.
    """
    times: dict[Stack, int] = {"encoder": encoder, "decoder": decoder}
    deep: Tensors = {}
    for name, tensor in tensors.items():
        if (place := layer_of(name)) is None:
            deep[name] = tensor
            continue
        stack, number, part = place
        for copy in range(times[stack]):
            deep[f"{layer_name(stack, number * times[stack] + copy)}.{part}"] = tensor
    return deep


def average_tensors(checkpoints: Sequence[Checkpoint]) -> Tensors:
    """Returns the mean of every tensor over the checkpoints (Vaswani et al. 2017, section 6.1).

    Raises InvalidRequestError when the checkpoints differ in architecture or head layout.
    """
    first = checkpoints[0]
    for other in checkpoints[1:]:
        if other.architecture != first.architecture or other.layout != first.layout:
            raise InvalidRequestError("checkpoints to average must share one architecture and one head layout")
    mean: Tensors = {}
    for name in first.tensors:
        mean[name] = np.mean([checkpoint.tensors[name] for checkpoint in checkpoints], axis=0, dtype=np.float32)
    return mean


def read_pickled(file: Path) -> dict[str, npt.NDArray[Any]]:
    """Reads PyTorch's own file (`pytorch_model.bin`): name → tensor, 16-bit floats as fp32.

    Only tensors and plain containers are read (`weights_only`): a file that asks for anything else is refused, and
    nothing of it runs.

    Raises HmcError for such a file, for a damaged one, and for one that is no mapping from names to tensors.
    """
    try:
        content: Any = torch.load(file, map_location="cpu", weights_only=True)  # noqa: TID251 - weights only
    except Exception as error:  # errors of pickle, whose import is banned, and others
        raise HmcError(f"{file.name} is not opened: {_reason(error)}") from error
    if not isinstance(content, dict) or not all(
        isinstance(v, Tensor) and isinstance(n, str) for n, v in content.items()
    ):
        raise HmcError(f"{file.name} is no state_dict: it must be one mapping from names to tensors")
    return {name: _array(value) for name, value in content.items()}


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if "weights_only" in text.lower():
        asked = re.search(r"(GLOBAL |class |function )[^,;\n]{1,120}", text)
        return (
            "it holds more than tensors, which could run code; get the model as safetensors, or from a source that you "
            f"trust{f' ({asked[0].strip()})' if asked else ''}"
        )
    return f"it is damaged, or no file of PyTorch; copy or download it again ({text.splitlines()[0][:160]})"


def _array(value: Tensor) -> npt.NDArray[Any]:
    value = value.detach()
    if value.is_floating_point() and value.dtype != torch.float64:
        value = value.float()
    array: npt.NDArray[Any] = np.ascontiguousarray(value.numpy())
    return array
