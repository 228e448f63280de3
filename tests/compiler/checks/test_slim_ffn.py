"""Feed-forward neurons: slim graphs compute what the masked model computes, in PyTorch and in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slim_ffn import masked_ffn, random_neurons, without_neurons
from tests.tiny import SENTENCES, random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import Checkpoint, load_checkpoint, save_checkpoint, validate
from hmc.artifact.model.architecture import Activation, parameter_count
from hmc.artifact.model.ffn import Neurons
from hmc.compiler import LevelRequest, compile_bundle
from hmc.compiler.checks.parity import check_parity
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.precisions.linears import FloatLinears
from hmc.compiler.weights import slim_model
from hmc.training import mask_neurons, model_from_checkpoint
from hmc.training.data.batches import pad_rows

TOLERANCE = 1e-4  # fp32 log-probabilities of the same sums in another order
SOURCES = [[5, 9, 40, 7, 0], [11, 0], [90, 3, 3, 61, 17, 28, 99, 0]]
TARGETS = [[8, 30, 0], [44, 45, 46, 47, 0], [100, 0]]


def torch_log_probs(checkpoint: Checkpoint, kept: Neurons | None = None) -> np.ndarray:
    """Teacher-forced log-probabilities of the PyTorch model, with neurons outside `kept` masked."""
    model, arch = model_from_checkpoint(checkpoint).eval(), checkpoint.architecture
    if kept is not None:
        mask_neurons(model, kept)
    longest = max(map(len, TARGETS))
    shifted = [[arch.pad_id, *t, *[arch.eos_id] * longest][:longest] for t in TARGETS]
    with torch.no_grad():
        states = model(pad_rows(SOURCES, arch.pad_id), torch.tensor(shifted))
        return model.logits(states).log_softmax(-1).numpy()


def graph_log_probs(checkpoint: Checkpoint) -> np.ndarray:
    """The same through ONNX Runtime."""
    runner = GraphRunner.author(checkpoint.architecture, checkpoint.layout, checkpoint.tensors, FloatLinears())
    return runner.log_probs(SOURCES, TARGETS)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), activation=st.sampled_from(get_args(Activation)))
def test_any_widths_beside_any_heads(tmp_path_factory: pytest.TempPathFactory, seed: int, activation: str) -> None:
    arch = tiny_architecture(activation=activation)
    full = tiny_checkpoint_at(
        tmp_path_factory.mktemp("c") / "c", arch=arch, layout=random_layout(arch, seed), seed=seed
    )
    kept = random_neurons(arch, seed)
    slim = without_neurons(full, kept)
    expected = torch_log_probs(full, kept)
    for found in (torch_log_probs(slim), graph_log_probs(slim)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    full.tensors = masked_ffn(full.tensors, arch, kept)
    np.testing.assert_allclose(graph_log_probs(full), expected, rtol=0, atol=TOLERANCE)


def test_other_neurons_give_other_numbers(tiny_checkpoint: Path) -> None:
    full = load_checkpoint(tiny_checkpoint)
    kept, other = (random_neurons(full.architecture, seed) for seed in (1, 2))
    assert np.abs(graph_log_probs(without_neurons(full, kept)) - torch_log_probs(full, other)).max() > 0.01


def test_no_neuron_at_all(tiny_checkpoint: Path) -> None:
    full = load_checkpoint(tiny_checkpoint)
    none: Neurons = {"encoder": [[], []], "decoder": [[], []]}
    slim = without_neurons(full, none)
    assert not any("fc1" in name or "fc2.weight" in name for name in slim.tensors)
    expected = torch_log_probs(full, none)
    for found in (torch_log_probs(slim), graph_log_probs(slim)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_heads_of_a_slim_model_are_checked_as_ever(tiny_checkpoint: Path) -> None:
    full = load_checkpoint(tiny_checkpoint)
    slim = without_neurons(full, random_neurons(full.architecture, 3))
    assert check_parity(slim, slim_model(slim, random_layout(full.architecture, 4)), SOURCES) <= TOLERANCE


def test_a_bundle_of_a_full_and_a_slim_level(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """`hmc compile full=A slim=B`: both have one architecture, and each its own number of parameters."""
    full = load_checkpoint(tiny_checkpoint)
    kept: Neurons = {"encoder": [[0, 7, 8], []], "decoder": [list(range(30)), []]}
    save_checkpoint(without_neurons(full, kept), tmp_path / "slim")
    requests = [LevelRequest(tiny_checkpoint, name="full"), LevelRequest(tmp_path / "slim", name="slim")]
    compile_bundle(requests, tmp_path / "b", precisions=("fp32", "int8"), calibration=SENTENCES)
    manifest = validate(tmp_path / "b")
    whole, slim = manifest.level("full"), manifest.level("slim")
    arch = full.architecture
    assert manifest.architecture == arch
    assert whole.parameters == parameter_count(arch, arch.full_layout())
    assert whole.parameters - slim.parameters == (4 * 48 - 33) * (2 * 32 + 1)
    assert slim.bytes < whole.bytes
    for level, width in (("slim", 30), ("slim-int8", 30), ("full", 48)):
        graph = onnx.load(str(tmp_path / "b" / level / "decoder.onnx"), load_external_data=False).graph
        shapes = {t.name: list(t.dims) for t in graph.initializer}
        assert width in shapes["decoder.layers.0.fc1.weight"]
        assert ("decoder.layers.1.fc1.weight" in shapes) == (level == "full")
