"""The embedded model on real sentences: slim ≡ masked in both frameworks, translations included, at its own levels and
at random uneven layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hmc.artifact import Checkpoint, HeadLayout, Manifest, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.slimming import masked_tensors, slim_tensors
from hmc.artifact.model.heads import KINDS, select_heads
from hmc.compiler import LevelRequest, compile_bundle
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.precisions.linears import FloatLinears
from hmc.serving import DecodeOptions, Translator
from hmc.training import Vocabulary, beam_search, make_batch, mask_to_layout, model_from_checkpoint
from tests.once import Once
from tests.support.trained import CHECKPOINT, TRAINED, english
from tests.tiny import random_layout

pytestmark = pytest.mark.slow
SENTENCES = english(20)
TOLERANCE = 1e-4  # fp32 log-probabilities of the same sums in another order
LIMIT = 40  # random layouts ramble; the limit keeps them short
LAYOUTS = ["full", "half", "quarter", "random-1", "random-2", "random-3", "no-encoder-self"]


@pytest.fixture(scope="module")
def demo() -> Checkpoint:
    """The checkpoint that ships with the package."""
    return load_checkpoint(CHECKPOINT)


def layout_called(demo: Checkpoint, name: str) -> HeadLayout:
    """The layouts under test."""
    assert demo.gates is not None
    full = demo.layout
    if name == "no-encoder-self":
        return HeadLayout.from_json(full.to_json() | {"encoder_self": [[] for _ in full.encoder_self]})
    if name.startswith("random"):
        return random_layout(demo.architecture, int(name[-1]))
    return select_heads(demo.gates, full, full.total // {"full": 1, "half": 2, "quarter": 4}[name])


def slim_bundle(demo: Checkpoint, layout: HeadLayout, folder: Path) -> Path:
    """A bundle with one fp32 level `slim` of this layout."""
    tensors = slim_tensors(demo.tensors, demo.architecture, demo.layout, layout)
    config = demo.config.model_copy(update={"head_layout": layout.to_json()})
    save_checkpoint(Checkpoint(config, tensors, demo.tokenizer), folder / "checkpoint")
    compile_bundle([LevelRequest(folder / "checkpoint", name="slim")], folder / "bundle")
    return folder / "bundle"


def test_random_layouts_are_uneven_and_have_empty_layers(demo: Checkpoint) -> None:
    rows = [row for n in (1, 2, 3) for kind in KINDS for row in layout_called(demo, f"random-{n}")[kind]]
    assert any(not row for row in rows)
    assert len({len(row) for row in rows}) > 3


@pytest.mark.parametrize("name", LAYOUTS)
def test_slim_equals_masked_on_real_sentences(demo: Checkpoint, name: str, tmp_path: Path) -> None:
    arch, layout, vocabulary = demo.architecture, layout_called(demo, name), Vocabulary(demo.tokenizer)
    reference = model_from_checkpoint(demo).eval()
    mask_to_layout(reference, demo.layout, layout)
    sources = [vocabulary.encode(s) for s in SENTENCES]
    halves = sources[:10], sources[10:]
    expected = [h[0] for half in halves for h in beam_search(reference, half, openings=(), max_length=LIMIT)]

    with Translator(slim_bundle(demo, layout, tmp_path), device="cpu") as translator:
        found = translator.translate(SENTENCES, DecodeOptions(beam_size=4, max_length=LIMIT))
    assert [t.text for t in found] == [vocabulary.decode(h.ids) for h in expected]
    assert [t.score for t in found] == pytest.approx([h.score for h in expected], abs=TOLERANCE)

    # Log-probabilities along those translations: slim graph, masked graph and masked PyTorch model.
    some = sources[:12]
    targets = [[*h.ids[:16], arch.eos_id] for h in expected[:12]]
    slim = GraphRunner.author(arch, layout, slim_tensors(demo.tensors, arch, demo.layout, layout), FloatLinears())
    masked = GraphRunner.author(
        arch, demo.layout, masked_tensors(demo.tensors, arch, demo.layout, layout), FloatLinears()
    )
    batch = make_batch(some, targets, arch.pad_id)
    with torch.no_grad():
        logits = reference.logits(reference(batch.source, batch.target_in))
    real = batch.target_out.ne(arch.pad_id).numpy()
    by_slim = slim.log_probs(some, targets)[real]
    np.testing.assert_allclose(by_slim, masked.log_probs(some, targets)[real], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(by_slim, logits.log_softmax(-1).numpy()[real], rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def bundle(once: Once) -> Path:
    """The embedded model at three budgets, fp32 and int8."""
    return once(_demo_bundle_at)


def _demo_bundle_at(path: Path) -> None:
    calibration = TRAINED.joinpath("calibration.en").read_text(encoding="utf-8").splitlines()
    requests = [LevelRequest(CHECKPOINT, n) for n in (144, 72, 36)]
    compile_bundle(requests, path, precisions=("fp32", "int8"), calibration=calibration)


def test_the_demo_model_has_144_heads_and_fits_in_16_mib(bundle: Path) -> None:
    assert [
        level.heads for level in Manifest.model_validate_json((bundle / "bundle.json").read_text()).levels[::2]
    ] == [
        144,
        72,
        36,
    ]
    assert sum(f.stat().st_size for f in (CHECKPOINT).iterdir()) <= 16 * 2**20


@pytest.mark.parametrize("level", ["full", "h72", "h36", "full-int8", "h72-int8", "h36-int8"])
def test_a_sentence_alone_equals_the_sentence_in_a_crowd(bundle: Path, level: str) -> None:
    with Translator(bundle, level, device="cpu") as translator:
        crowd = translator.translate(SENTENCES)
        alone = [translator.translate([s])[0] for s in SENTENCES]
    assert [t.text for t in crowd] == [t.text for t in alone]
