"""Slim ≡ masked: for any head layout, the slim graphs compute what the full model computes with those heads masked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny import FORMS, random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import Checkpoint, HeadLayout, InvalidRequestError, load_checkpoint
from hmc.artifact.checkpoint.slimming import masked_tensors, slim_tensors
from hmc.artifact.model.architecture import Activation
from hmc.artifact.model.heads import KINDS
from hmc.compiler import ParityError
from hmc.compiler.checks.parity import check_parity
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.precisions.linears import FloatLinears
from hmc.compiler.weights import slim_model
from hmc.training import mask_to_layout, model_from_checkpoint
from hmc.training.data.batches import pad_rows

TOLERANCE = 1e-4  # fp32 log-probabilities of the same sums in another order
RELATIVE = 1e-5  # where norms come first, nothing bounds the states, and scores reach -100
SOURCES = [[5, 9, 40, 7, 0], [11, 0], [90, 3, 3, 61, 17, 28, 99, 0]]
TARGETS = [[8, 30, 0], [44, 45, 46, 47, 0], [100, 0]]


def torch_log_probs(checkpoint: Checkpoint, layout: HeadLayout) -> np.ndarray:
    """Teacher-forced log-probabilities of the PyTorch model with heads outside `layout` masked."""
    model = model_from_checkpoint(checkpoint).eval()
    mask_to_layout(model, checkpoint.layout, layout)
    arch = checkpoint.architecture
    longest = max(map(len, TARGETS))
    shifted = [[arch.decoder_start, *t, *[arch.eos_id] * longest][:longest] for t in TARGETS]
    with torch.no_grad():
        states = model(pad_rows(SOURCES, arch.pad_id), torch.tensor(shifted))
        return model.logits(states).log_softmax(-1).numpy()


def graph_log_probs(checkpoint: Checkpoint, layout: HeadLayout, *, slim: bool) -> np.ndarray:
    """The same through ONNX Runtime."""
    arch, current = checkpoint.architecture, checkpoint.layout
    change = slim_tensors if slim else masked_tensors
    tensors = change(checkpoint.tensors, arch, current, layout)
    runner = GraphRunner.author(arch, layout if slim else current, tensors, FloatLinears())
    return runner.log_probs(SOURCES, TARGETS)


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
