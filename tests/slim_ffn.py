"""Tiny checkpoints that have lost feed-forward neurons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hmc.artifact import Checkpoint
from hmc.artifact.checkpoint.slimming import slim_ffn
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.ffn import STACKS, FfnWidths, Neurons, Stack


def random_neurons(arch: Architecture, seed: int) -> dict[Stack, list[list[int]]]:
    """Neurons to keep, unevenly: each with a probability drawn per layer, so that empty and whole layers occur."""
    rng = np.random.default_rng(seed)
    layers = {"encoder": arch.encoder_layers, "decoder": arch.decoder_layers}
    return {
        stack: [
            np.flatnonzero(rng.random(arch.ffn_dim) < rng.choice([0, 0.3, 0.7, 1])).tolist()
            for _ in range(layers[stack])
        ]
        for stack in STACKS
    }


def masked_ffn(tensors: Tensors, arch: Architecture, kept: Neurons) -> Tensors:
    """Sets the `fc2` columns of all neurons but `kept` to zero, which closes their gates. Shapes do not change."""
    masked = dict(tensors)
    for stack in STACKS:
        for layer, neurons in enumerate(kept[stack]):
            name = arch.feed_forward(stack, layer).output.weight
            if name in tensors:
                columns = np.isin(np.arange(tensors[name].shape[1]), neurons)
                masked[name] = np.where(columns, tensors[name], np.float32(0))
    return masked


def without_neurons(checkpoint: Checkpoint, kept: Neurons) -> Checkpoint:
    """The checkpoint with the neurons of `kept` alone."""
    return replace(
        checkpoint,
        config=checkpoint.config.model_copy(update={"ffn_widths": FfnWidths.from_neurons(kept)}),
        tensors=slim_ffn(checkpoint.tensors, checkpoint.architecture, kept),
    )
