"""Heads of any width: the features that operators need in addition change results by rounding only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.compiler.checks.test_slim_equals_masked import SOURCES, TARGETS, TOLERANCE, torch_log_probs
from tests.tiny import SENTENCES, random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import HeadLayout, Precision
from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.model.architecture import parameter_count
from hmc.compiler import LevelRequest, compile_bundle
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.precisions.linears import FloatLinears
from hmc.compiler.weights import slim_model
from hmc.serving import DecodeOptions, Translator


@pytest.mark.parametrize("head_dim", [1, 3, 12, 17])
def test_wider_heads_compute_the_same(tmp_path: Path, head_dim: int) -> None:
    arch = tiny_architecture(head_dim=head_dim)
    checkpoint, layout = tiny_checkpoint_at(tmp_path / "c", arch=arch), random_layout(arch, 3)
    slim = slim_model(checkpoint, layout)
    assert slim.arch.head_dim == {1: 8, 3: 8, 12: 16, 17: 24}[head_dim]
    found = GraphRunner.author(slim.arch, slim.layout, slim.tensors, FloatLinears()).log_probs(SOURCES, TARGETS)
    np.testing.assert_allclose(found, torch_log_probs(checkpoint, layout), rtol=0, atol=TOLERANCE)


def test_heads_that_operators_take_stay_as_they_are(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c")
    slim = slim_model(checkpoint, checkpoint.layout)
    assert slim.arch is checkpoint.architecture
    assert all(slim.tensors[name] is checkpoint.tensors[name] for name in slim.tensors)


RUN: tuple[Variant | None, ...] = (None, "greedy")
MEAN_ERROR = {"fp32": 1e-5, "fp16": 0.01, "int8": 0.2, "int4": 0.4}
"""Nats; log-probabilities of these models are 1.2 from their mean on average."""


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4", "fp16", "bf16"])
@pytest.mark.parametrize("only", [None, "cross"])
def test_every_precision_and_every_search(tmp_path: Path, precision: Precision, only: str | None) -> None:
    arch = tiny_architecture(head_dim=12)
    layout = arch.full_layout()
    if only:
        layout = HeadLayout.from_json(HeadLayout.full(2, 2, 0).to_json() | {only: [[1, 2], [0]]})
    checkpoint = tiny_checkpoint_at(tmp_path / "c", arch=arch, layout=layout)
    request = LevelRequest(tmp_path / "c", name="level")
    manifest = compile_bundle([request], tmp_path / "b", precisions=(precision,), calibration=SENTENCES)
    [level] = manifest.levels
    assert manifest.architecture.head_dim == 12
    assert level.parameters == parameter_count(arch, layout) == sum(v.size for v in checkpoint.tensors.values())
    if precision == "bf16":  # ONNX Runtime does not run it on a CPU
        return
    expected = torch_log_probs(checkpoint, layout)
    real = np.arange(expected.shape[1])[None] < np.array([len(target) for target in TARGETS])[:, None]
    for variant in RUN:
        found = GraphRunner.for_level(arch, layout, tmp_path / "b", level.name, variant).log_probs(SOURCES, TARGETS)
        assert np.abs(found - expected)[real].mean() < MEAN_ERROR[precision]


def test_scores_are_those_of_the_model(tmp_path: Path) -> None:
    """Greedy and beam search, which run graphs of their own, against the PyTorch model."""
    from hmc.training import Vocabulary, beam_search, model_from_checkpoint

    checkpoint = tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(head_dim=12))
    compile_bundle([LevelRequest(tmp_path / "c")], tmp_path / "b")
    vocabulary, model = Vocabulary(checkpoint.tokenizer), model_from_checkpoint(checkpoint).eval()
    sources = [vocabulary.encode(text) for text in SENTENCES]
    with Translator(tmp_path / "b", "full", device="cpu", threads=1) as translator:
        for beam in (1, 4):
            expected = beam_search(model, sources, openings=(), beam=beam, max_length=12, length_penalty=1.0)
            found = translator.translate(SENTENCES, DecodeOptions(beam_size=beam, max_length=12), segmentation="none")
            assert [t.text for t in found] == [vocabulary.decode(h[0].ids) for h in expected]
            assert [t.score for t in found] == pytest.approx([h[0].score for h in expected], abs=1e-4)
