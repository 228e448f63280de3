"""Slim ≡ masked: the slim graphs compute what the full model computes with all other heads and neurons masked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slim_ffn import masked_ffn, random_neurons, without_neurons
from tests.tiny import FORMS, SENTENCES, random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import Checkpoint, HeadLayout, InvalidRequestError, load_checkpoint, save_checkpoint, validate
from hmc.artifact.checkpoint.slimming import masked_tensors, slim_tensors
from hmc.artifact.model.architecture import Activation, parameter_count
from hmc.artifact.model.ffn import Neurons
from hmc.artifact.model.heads import KINDS
from hmc.compiler import LevelRequest, ParityError, compile_bundle
from hmc.compiler.checks.parity import check_parity
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.precisions.linears import FloatLinears
from hmc.compiler.weights import OrderedHeads, slim_model
from hmc.training import mask_neurons, mask_to_layout, model_from_checkpoint
from hmc.training.data.batches import pad_rows

TOLERANCE = 1e-4  # fp32 log-probabilities of the same sums in another order
RELATIVE = 1e-5  # where norms come first, nothing bounds the states, and scores reach -100
SOURCES = [[5, 9, 40, 7, 0], [11, 0], [90, 3, 3, 61, 17, 28, 99, 0]]
TARGETS = [[8, 30, 0], [44, 45, 46, 47, 0], [100, 0]]


def torch_log_probs(
    checkpoint: Checkpoint, layout: HeadLayout | None = None, neurons: Neurons | None = None
) -> np.ndarray:
    """Teacher-forced log-probabilities of the PyTorch model with heads outside `layout` and other neurons masked."""
    model, arch = model_from_checkpoint(checkpoint).eval(), checkpoint.architecture
    if layout is not None:
        mask_to_layout(model, checkpoint.layout, layout)
    if neurons is not None:
        mask_neurons(model, neurons)
    longest = max(map(len, TARGETS))
    shifted = [[arch.decoder_start, *t, *[arch.eos_id] * longest][:longest] for t in TARGETS]
    with torch.no_grad():
        states = model(pad_rows(SOURCES, arch.pad_id), torch.tensor(shifted))
        return model.logits(states).log_softmax(-1).numpy()


def graph_log_probs(checkpoint: Checkpoint, layout: HeadLayout | None = None, *, slim: bool = True) -> np.ndarray:
    """The same through ONNX Runtime. layout: None: the heads of the checkpoint."""
    arch, current, tensors = checkpoint.architecture, checkpoint.layout, checkpoint.tensors
    if layout is not None:
        change = slim_tensors if slim else masked_tensors
        tensors = change(tensors, arch, current, layout)
        current = layout if slim else current
    return GraphRunner.author(arch, current, tensors, FloatLinears()).log_probs(SOURCES, TARGETS)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), activation=st.sampled_from(get_args(Activation)))
def test_any_layout(tmp_path_factory: pytest.TempPathFactory, seed: int, activation: str) -> None:
    arch = tiny_architecture(activation=activation)
    checkpoint = tiny_checkpoint_at(tmp_path_factory.mktemp("c") / "c", arch=arch, seed=seed)
    layout = random_layout(arch, seed)
    slim = graph_log_probs(checkpoint, layout, slim=True)
    np.testing.assert_allclose(slim, graph_log_probs(checkpoint, layout, slim=False), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(slim, torch_log_probs(checkpoint, layout), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_model(tmp_path: Path, form: str) -> None:
    arch = tiny_architecture(**FORMS[form])
    checkpoint = tiny_checkpoint_at(tmp_path / "c", arch=arch, seed=3)
    for layout in (arch.full_layout(), random_layout(arch, 3), HeadLayout.full(2, 2, 0)):
        slim = graph_log_probs(checkpoint, layout, slim=True)
        np.testing.assert_allclose(slim, graph_log_probs(checkpoint, layout, slim=False), rtol=RELATIVE, atol=TOLERANCE)
        np.testing.assert_allclose(slim, torch_log_probs(checkpoint, layout), rtol=RELATIVE, atol=TOLERANCE)


def test_forms_differ(tmp_path: Path) -> None:
    """Each field changes the result: none is ignored on both sides."""
    found = []
    for number, form in enumerate(name for name in FORMS if name != "all"):
        arch = tiny_architecture(**FORMS[form])
        checkpoint = tiny_checkpoint_at(tmp_path / str(number), arch=arch, seed=3)
        found.append(graph_log_probs(checkpoint, arch.full_layout(), slim=True))
    for first, second in itertools.combinations(found, 2):
        assert np.abs(first - second).max() > 100 * TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_no_open_head_of_a_kind(tiny_checkpoint: Path, kind: str) -> None:
    checkpoint = load_checkpoint(tiny_checkpoint)
    layout = HeadLayout.from_json(checkpoint.layout.to_json() | {kind: [[], []]})
    slim = graph_log_probs(checkpoint, layout, slim=True)
    np.testing.assert_allclose(slim, torch_log_probs(checkpoint, layout), rtol=0, atol=TOLERANCE)


def test_no_open_head_at_all(tiny_checkpoint: Path) -> None:
    checkpoint = load_checkpoint(tiny_checkpoint)
    layout = HeadLayout.full(2, 2, 0)
    slim = graph_log_probs(checkpoint, layout, slim=True)
    np.testing.assert_allclose(slim, torch_log_probs(checkpoint, layout), rtol=0, atol=TOLERANCE)


def test_a_wrong_mask_is_noticed(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_checkpoint(tiny_checkpoint)
    layout, other = random_layout(checkpoint.architecture, 1), random_layout(checkpoint.architecture, 2)
    monkeypatch.setattr("hmc.compiler.checks.parity.masked_tensors", lambda t, a, c, _: masked_tensors(t, a, c, other))
    with pytest.raises(ParityError, match="differ"):
        check_parity(checkpoint, slim_model(checkpoint, layout), SOURCES)


def test_a_model_that_computes_no_numbers_is_noticed(tiny_checkpoint: Path) -> None:
    """With all heads open there is no second graph to compare with, but NaN must still be an error."""
    checkpoint = load_checkpoint(tiny_checkpoint)
    assert check_parity(checkpoint, slim_model(checkpoint, checkpoint.layout), SOURCES) == 0
    checkpoint.tensors["decoder.layers.1.fc2.weight"] = checkpoint.tensors["decoder.layers.1.fc2.weight"] * np.float32(
        3e38
    )
    with pytest.raises(ParityError, match="differ by nan"):
        check_parity(checkpoint, slim_model(checkpoint, checkpoint.layout), SOURCES)


def test_a_wrong_order_of_heads_is_noticed(tiny_checkpoint: Path) -> None:
    """Also with all heads open."""
    checkpoint = load_checkpoint(tiny_checkpoint)
    ordered = OrderedHeads.nested(checkpoint, [random_layout(checkpoint.architecture, 3)], None)
    model = slim_model(checkpoint, checkpoint.layout, ordered)
    assert model.reordered
    assert 0 < check_parity(checkpoint, model, SOURCES) <= TOLERANCE
    for name in [name for name in model.tensors if name.endswith("attn.out_proj.weight")]:
        model.tensors[name] = checkpoint.tensors[name]  # columns by the heads' numbers; W_V has them in another order
    with pytest.raises(ParityError, match="differ"):
        check_parity(checkpoint, model, SOURCES)


def test_slimming_a_slim_checkpoint_further(tiny_checkpoint: Path) -> None:
    full = load_checkpoint(tiny_checkpoint)
    arch = full.architecture
    middle = HeadLayout.from_json(
        {"encoder_self": [[0, 2, 3], [1]], "decoder_self": [[0, 1], [3]], "cross": [[1, 2, 3], [0]]}
    )
    small = HeadLayout.from_json({"encoder_self": [[2], []], "decoder_self": [[1], [3]], "cross": [[1, 3], []]})
    twice = slim_tensors(slim_tensors(full.tensors, arch, full.layout, middle), arch, middle, small)
    once = slim_tensors(full.tensors, arch, full.layout, small)
    assert twice.keys() == once.keys()
    assert all(np.array_equal(twice[n], once[n]) for n in once)
    with pytest.raises(InvalidRequestError, match=r"cross\.1\.0"):
        slim_tensors(once, arch, small, middle)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), activation=st.sampled_from(get_args(Activation)))
def test_any_widths_beside_any_heads(tmp_path_factory: pytest.TempPathFactory, seed: int, activation: str) -> None:
    arch = tiny_architecture(activation=activation)
    full = tiny_checkpoint_at(
        tmp_path_factory.mktemp("c") / "c", arch=arch, layout=random_layout(arch, seed), seed=seed
    )
    kept = random_neurons(arch, seed)
    slim = without_neurons(full, kept)
    expected = torch_log_probs(full, neurons=kept)
    for found in (torch_log_probs(slim), graph_log_probs(slim)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    full.tensors = masked_ffn(full.tensors, arch, kept)
    np.testing.assert_allclose(graph_log_probs(full), expected, rtol=0, atol=TOLERANCE)


def test_other_neurons_give_other_numbers(tiny_checkpoint: Path) -> None:
    full = load_checkpoint(tiny_checkpoint)
    kept, other = (random_neurons(full.architecture, seed) for seed in (1, 2))
    assert np.abs(graph_log_probs(without_neurons(full, kept)) - torch_log_probs(full, neurons=other)).max() > 0.01


def test_no_neuron_at_all(tiny_checkpoint: Path) -> None:
    full = load_checkpoint(tiny_checkpoint)
    none: Neurons = {"encoder": [[], []], "decoder": [[], []]}
    slim = without_neurons(full, none)
    assert not any("fc1" in name or "fc2.weight" in name for name in slim.tensors)
    expected = torch_log_probs(full, neurons=none)
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
