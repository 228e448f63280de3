"""Between the PyTorch model and the framework-free checkpoint (the names of MarianMTModel, one tensor a projection)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from hmc.artifact.architecture import SOURCE_EMBEDDING, TARGET_EMBEDDING, attention_module
from hmc.artifact.checkpoint import Checkpoint, Tensors
from hmc.training.attention import Attention
from hmc.training.transformer import Transformer, build_transformer


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
    """Checkpoint name → the model's own storage, so that reading exports and `copy_` imports."""
    views: dict[str, Tensor] = {TARGET_EMBEDDING: model.shared.weight, "final_logits_bias": model.final_logits_bias}
    if model.sources is not None:
        views[SOURCE_EMBEDDING] = model.sources.weight
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
    return views


def export_tensors(model: Transformer) -> Tensors:
    """fp32 NumPy copies of every tensor."""
    return {n: view.detach().to("cpu", torch.float32).numpy().copy() for n, view in tensor_views(model).items()}


@torch.no_grad()
def import_tensors(model: Transformer, tensors: Mapping[str, np.ndarray]) -> None:
    """Copies checkpoint tensors into the model."""
    for name, view in tensor_views(model).items():
        view.copy_(torch.from_numpy(np.ascontiguousarray(tensors[name])))


def model_from_checkpoint(checkpoint: Checkpoint, *, dropout: float = 0.0) -> Transformer:
    """The checkpoint as a PyTorch model with the checkpoint's own heads and neurons."""
    model = build_transformer(checkpoint.architecture, checkpoint.layout, checkpoint.ffn_widths, dropout=dropout)
    import_tensors(model, checkpoint.tensors)
    return model
