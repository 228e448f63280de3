"""Weights between the PyTorch model and files: checkpoints, their average, and PyTorch's own files.

A checkpoint names tensors as MarianMTModel does and has one tensor for each projection; the model has fused ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hmc.artifact.checkpoint.checkpoint import Checkpoint, Tensors
from hmc.artifact.errors import HmcError, InvalidRequestError
from hmc.artifact.model.architecture import (
    OUTPUT,
    SOURCE_EMBEDDING,
    STACK_NORM,
    TARGET_EMBEDDING,
    attention_module,
)
from hmc.artifact.model.layers import RemovedLayers
from hmc.training.model.layers import Attention
from hmc.training.model.transformer import Transformer, build_transformer


def _attention_views(attention: Attention, prefix: str) -> Iterator[tuple[str, Tensor]]:
    if attention.heads:
        key_weight, value_weight = attention.key_value.weight.chunk(2)
        key_bias, value_bias = attention.key_value.bias.chunk(2)
        yield f"{prefix}.q_proj.weight", attention.query.weight
        yield f"{prefix}.q_proj.bias", attention.query.bias
        yield f"{prefix}.k_proj.weight", key_weight
        yield f"{prefix}.k_proj.bias", key_bias
        yield f"{prefix}.v_proj.weight", value_weight
        yield f"{prefix}.v_proj.bias", value_bias
        yield f"{prefix}.out_proj.weight", attention.out_weight
    yield f"{prefix}.out_proj.bias", attention.out_bias


def tensor_views(model: Transformer) -> dict[str, Tensor]:
    """Checkpoint name → view of the model's own storage: reading it exports, `copy_` into it imports."""
    views: dict[str, Tensor] = {TARGET_EMBEDDING: model.shared.weight, "final_logits_bias": model.final_logits_bias}
    if model.sources is not None:
        views[SOURCE_EMBEDDING] = model.sources.weight
    if model.output is not None:
        views[OUTPUT] = model.output
    for stack, norm in (("encoder", model.encoder_norm), ("decoder", model.decoder_norm)):
        if norm is not None:
            views |= {f"{stack}.{STACK_NORM}.{part}": view for part, view in norm.named_parameters()}
    for kind, number, attention in model.attentions():
        stack, module = attention_module(kind)
        views |= dict(_attention_views(attention, f"{stack}.layers.{number}.{module}"))
    stacks: dict[str, list[nn.Module]] = {"encoder": [*model.encoder_layers], "decoder": [*model.decoder_layers]}
    for stack, layers in stacks.items():
        for index, layer in enumerate(layers):
            for name, parameter in layer.named_parameters():
                if name.startswith(("ffn.fc1.", "ffn.fc2.")) and parameter.numel():
                    views[f"{stack}.layers.{index}.{name.removeprefix('ffn.')}"] = parameter
                elif "layer_norm" in name:
                    views[f"{stack}.layers.{index}.{name}"] = parameter
    removed = RemovedLayers.of((stack, number) for stack, number, layer in model.layers() if layer.removed)
    return {name: view for name, view in views.items() if not removed.has_tensor(name)}


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
    times = {"encoder": encoder, "decoder": decoder}
    deep: Tensors = {}
    for name, tensor in tensors.items():
        stack, *rest = name.split(".")
        if rest[:1] != ["layers"]:
            deep[name] = tensor
            continue
        number, tail = int(rest[1]), ".".join(rest[2:])
        for copy in range(times[stack]):
            deep[f"{stack}.layers.{number * times[stack] + copy}.{tail}"] = tensor
    return deep


def average_tensors(checkpoints: Sequence[Checkpoint]) -> Tensors:
    """Returns the mean of every tensor over the checkpoints (Vaswani et al. 2017, section 6.1).

    Raises InvalidRequestError when the checkpoints differ in architecture or head layout.
    """
    first = checkpoints[0]
    for other in checkpoints[1:]:
        if other.architecture != first.architecture or other.layout != first.layout:
            raise InvalidRequestError("checkpoints to average must share one architecture and one head layout")
    names = first.tensors
    return {n: np.mean([c.tensors[n] for c in checkpoints], axis=0, dtype=np.float32) for n in names}


def read_pickled(file: Path) -> dict[str, npt.NDArray[Any]]:
    """Reads PyTorch's own file (`pytorch_model.bin`): name → tensor, 16-bit floats as fp32.

    Only tensors and plain containers are read (`weights_only`): a file that asks for anything else is refused, and
    nothing of it runs.

    Raises HmcError for such a file, for a damaged one, and for one that is no mapping from names to tensors.
    """
    try:
        found: Any = torch.load(file, map_location="cpu", weights_only=True)  # noqa: TID251 - weights only
    except Exception as error:  # errors of pickle, whose import is banned, and others
        raise HmcError(f"{file.name} is not opened: {_reason(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) and isinstance(n, str) for n, v in found.items()):
        raise HmcError(f"{file.name} is no state_dict: it must be one mapping from names to tensors")
    return {name: _array(value) for name, value in found.items()}


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
