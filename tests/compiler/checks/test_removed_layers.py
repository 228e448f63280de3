"""A removed layer is not in the graphs: they compute what PyTorch computes, and what the shorter model computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.artifact.model.test_layers import without_layers
from tests.compiler.checks.test_slim_equals_masked import SOURCES, TARGETS, TOLERANCE, torch_log_probs
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import save_checkpoint
from hmc.artifact.checkpoint.slimming import renumbered
from hmc.artifact.marian.reader import import_marian
from hmc.artifact.marian.writer import export_marian
from hmc.artifact.model.layers import RemovedLayers
from hmc.compiler import LevelRequest, compile_bundle
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.graphs.encoder import author_encoder
from hmc.compiler.precisions.linears import FloatLinears
from hmc.serving import DecodeOptions, Translator
from hmc.training import export_tensors, model_from_checkpoint
from hmc.training.data.batches import pad_rows
from hmc.training.model.regimes import remove_layers

REMOVED = [RemovedLayers(encoder=(0,)), RemovedLayers(decoder=(1,)), RemovedLayers(encoder=(1,), decoder=(0,))]


@pytest.mark.parametrize("removed", REMOVED)
def test_graphs_compute_what_pytorch_computes(tmp_path: Path, removed: RemovedLayers) -> None:
    less = without_layers(tiny_checkpoint_at(tmp_path / "c"), removed)
    runner = GraphRunner.author(less.architecture, less.layout, less.tensors, FloatLinears())
    found = runner.log_probs(SOURCES, TARGETS)
    np.testing.assert_allclose(found, torch_log_probs(less, less.layout), rtol=0, atol=TOLERANCE)
    short = renumbered(less)
    np.testing.assert_allclose(found, torch_log_probs(short, short.layout), rtol=0, atol=TOLERANCE)


def test_a_removed_layer_leaves_no_operator(tmp_path: Path) -> None:
    whole = tiny_checkpoint_at(tmp_path / "c")
    less = without_layers(whole, RemovedLayers(encoder=(0,)))
    norms = [
        sum(node.op_type == "LayerNormalization" for node in author_encoder(
            each.architecture, each.layout, each.tensors, FloatLinears()
        ).model({}).graph)
        for each in (whole, less)
    ]  # fmt: skip
    assert norms == [4, 2]


@pytest.mark.parametrize("removed", REMOVED)
def test_training_knows_the_same_layers(tmp_path: Path, removed: RemovedLayers) -> None:
    whole = tiny_checkpoint_at(tmp_path / "c")
    source, target = pad_rows(SOURCES, whole.architecture.pad_id), torch.tensor([[2, 9, 9]] * len(SOURCES))
    masked, less = model_from_checkpoint(whole).eval(), without_layers(whole, removed)
    remove_layers(masked, removed)
    slim = model_from_checkpoint(less).eval()
    assert export_tensors(slim).keys() == less.tensors.keys()
    assert export_tensors(masked).keys() == whole.tensors.keys(), "a layer that is closed in a run keeps its weights"
    for name, tensor in export_tensors(slim).items():
        np.testing.assert_array_equal(tensor, less.tensors[name])
    full = model_from_checkpoint(whole).eval()
    with torch.no_grad():
        assert not torch.allclose(masked(source, target), full(source, target), atol=1e-3)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("form", ["plain", "device"])
def test_served_levels_agree_with_the_shorter_model(tmp_path: Path, form: str, beam: int) -> None:
    less = without_layers(tiny_checkpoint_at(tmp_path / "c"), RemovedLayers(encoder=(0,), decoder=(1,)))
    save_checkpoint(less, tmp_path / "less")
    save_checkpoint(renumbered(less), tmp_path / "short")
    found = {}
    for name in ("less", "short"):
        manifest = compile_bundle([LevelRequest(tmp_path / name)], tmp_path / f"b-{name}", device_form=form == "device")
        assert manifest.levels[0].name == ("h12f94l2" if name == "less" else "f94")
        with Translator(tmp_path / f"b-{name}", threads=1, cache="none") as translator:
            answers = translator.translate(SENTENCES, DecodeOptions(beam_size=beam, max_length=12), segmentation="none")
            found[name] = [answer.text for answer in answers]
    assert found["less"] == found["short"]


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_integer_levels_without_a_layer_translate(tmp_path: Path, precision: str) -> None:
    less = without_layers(tiny_checkpoint_at(tmp_path / "c"), RemovedLayers(encoder=(0,), decoder=(0,)))
    save_checkpoint(less, tmp_path / "less")
    compile_bundle([LevelRequest(tmp_path / "less")], tmp_path / "b", precisions=(precision,), calibration=SENTENCES)  # type: ignore[arg-type]
    with Translator(tmp_path / "b", threads=1, cache="none") as translator:
        assert len(
            translator.translate(SENTENCES, DecodeOptions(beam_size=1, max_length=12), segmentation="none")
        ) == len(SENTENCES)


def test_transformers_gets_the_layers_that_are_left(tmp_path: Path) -> None:
    whole = tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(head_dim=8))
    less = without_layers(whole, RemovedLayers(encoder=(0,), decoder=(1,)))
    export_marian(less, tmp_path / "marian")
    back, short = import_marian(tmp_path / "marian"), renumbered(less)
    assert back.architecture.encoder_layers == back.architecture.decoder_layers == 1
    name = "encoder.layers.0.self_attn.q_proj.weight"
    np.testing.assert_array_equal(back.tensors[name], short.tensors[name])
