"""Models of random sizes, cut from one checkpoint: what a latency table is fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.checkpoint.slimming import slim_ffn, slim_layers, slim_tensors
from hmc.artifact.model.ffn import STACKS, FfnWidths, Stack
from hmc.artifact.model.heads import KINDS, HeadLayout
from hmc.artifact.model.latency import Sizes, stack_of
from hmc.artifact.model.layers import RemovedLayers

REMOVED, CLOSED = 0.2, 0.15
"""Share of the layers that are removed, and of the sub-layers that have nothing left."""


def sizes_of(checkpoint: Checkpoint) -> Sizes:
    """How much of the model a checkpoint has."""
    return Sizes.of(checkpoint.layout, checkpoint.ffn_widths, checkpoint.removed_layers)


def random_sizes(whole: Sizes, rng: np.random.Generator) -> Sizes:
    """Sizes within `whole`: in every model another share is left, and in every layer of it more or less than that."""
    share = rng.uniform(0.05, 1.0)

    def some(number: int) -> int:
        if not number or rng.random() < CLOSED:
            return 0
        return int(np.clip(round(number * share * rng.uniform(0.4, 1.6)), 1, number))

    kept = {stack: _some_layers(whole, stack, rng) for stack in STACKS}
    removed = RemovedLayers.of(
        (stack, layer) for stack in STACKS for layer in range(len(whole.neurons[stack])) if layer not in kept[stack]
    )
    heads = {
        kind: tuple(some(n) if layer in kept[stack_of(kind)] else 0 for layer, n in enumerate(whole.heads[kind]))
        for kind in KINDS
    }
    widths = FfnWidths(
        **{
            stack: tuple(some(n) if layer in kept[stack] else 0 for layer, n in enumerate(whole.neurons[stack]))
            for stack in STACKS
        }
    )
    return Sizes(heads=heads, neurons=widths, removed=removed)


def _some_layers(whole: Sizes, stack: Stack, rng: np.random.Generator) -> set[int]:
    present = whole.layers(stack)
    kept = [layer for layer in present if rng.random() >= REMOVED]
    return set(kept or present[-1:])


def cut(checkpoint: Checkpoint, sizes: Sizes) -> Checkpoint:
    """The checkpoint with the first heads and neurons of every layer, as many as `sizes` says. It is not trained."""
    layout = HeadLayout.from_json(
        {
            kind: [list(row[:n]) for row, n in zip(checkpoint.layout[kind], sizes.heads[kind], strict=True)]
            for kind in KINDS
        }
    )
    kept: Mapping[Stack, list[range]] = {stack: [range(n) for n in sizes.neurons[stack]] for stack in STACKS}
    tensors = slim_tensors(checkpoint.tensors, checkpoint.architecture, checkpoint.layout, layout)
    tensors = slim_layers(slim_ffn(tensors, kept), sizes.removed)
    config = checkpoint.config.model_copy(
        update={"head_layout": layout.to_json(), "ffn_widths": sizes.neurons, "removed_layers": sizes.removed}
    )
    return replace(checkpoint, config=config, tensors=tensors, gates=None, importance=None)
