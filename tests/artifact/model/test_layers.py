"""Layers that were removed whole: which may be, what a checkpoint then holds, and the same model with fewer layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tiny import tiny_checkpoint_at

from hmc.artifact import Checkpoint, HeadLayout, InvalidArtifactError, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.slimming import renumbered, slimmed
from hmc.artifact.model.architecture import parameter_count
from hmc.artifact.model.ffn import STACKS, FfnWidths, Neurons
from hmc.artifact.model.layers import RemovedLayers, stack_of

FIRST = RemovedLayers(encoder=(0,))


def without_layers(checkpoint: Checkpoint, removed: RemovedLayers) -> Checkpoint:
    """The checkpoint without some layers, and without neuron 0 of all others."""
    heads = [h for h in checkpoint.layout.heads() if h.layer not in removed[stack_of(h.kind)]]
    layout = HeadLayout.from_heads(heads, 2, 2)
    kept: Neurons = {
        stack: [[] if layer in removed[stack] else list(range(1, 48)) for layer in range(2)] for stack in STACKS
    }
    return slimmed(checkpoint, layout, kept, removed)


def test_a_checkpoint_without_a_layer_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = tiny_checkpoint_at(tmp_path / "c")
    less = without_layers(whole, FIRST)
    save_checkpoint(less, tmp_path / "less")
    found = load_checkpoint(tmp_path / "less")
    assert found.removed_layers == FIRST
    assert not [name for name in found.tensors if name.startswith("encoder.layers.0.")]
    sizes = sum(tensor.size for tensor in found.tensors.values())
    assert sizes == parameter_count(found.architecture, found.layout, found.ffn_widths, found.removed_layers)
    assert '"removed_layers"' not in (tmp_path / "c" / "config.json").read_text()


@pytest.mark.parametrize(
    ("removed", "problem"),
    [
        (RemovedLayers(encoder=(5,)), "the encoder has no layer 5"),
        (RemovedLayers(decoder=(0, 1)), "the decoder keeps no layer"),
        (RemovedLayers(decoder=(1,)), r"decoder\.1 has open heads of decoder_self"),
    ],
)
def test_layers_that_cannot_be_removed_are_refused(tmp_path: Path, removed: RemovedLayers, problem: str) -> None:
    whole = tiny_checkpoint_at(tmp_path / "c")
    config = whole.config.model_copy(update={"removed_layers": removed})
    (tmp_path / "c" / "config.json").write_text(config.model_dump_json())
    with pytest.raises(InvalidArtifactError, match=problem):
        load_checkpoint(tmp_path / "c")


def test_the_renumbered_model_has_fewer_layers_and_the_same_weights(tmp_path: Path) -> None:
    less = without_layers(tiny_checkpoint_at(tmp_path / "c"), RemovedLayers(encoder=(0,), decoder=(1,)))
    found = renumbered(less)
    assert (found.architecture.encoder_layers, found.architecture.decoder_layers) == (1, 1)
    assert found.ffn_widths == FfnWidths(encoder=(47,), decoder=(47,))
    np.testing.assert_array_equal(
        found.tensors["encoder.layers.0.fc1.weight"], less.tensors["encoder.layers.1.fc1.weight"]
    )
    save_checkpoint(found, tmp_path / "found")
    assert load_checkpoint(tmp_path / "found").removed_layers.total == 0
    assert renumbered(found) is found
