"""The layers that cost quality in 8 bits stay in fp32, and no other layers do. Such levels translate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tiny import SENTENCES

from hmc.artifact import Checkpoint, InvalidRequestError, Manifest, load_checkpoint, save_checkpoint
from hmc.compiler import LevelRequest, ShortlistText, compile_bundle
from hmc.compiler.calibration.calibrate import calibrate
from hmc.compiler.calibration.fp32_layers import _fewest, choose_fp32_layers
from hmc.compiler.checks.runner import GraphRunner
from hmc.compiler.weights import slim_model
from hmc.serving import DecodeOptions, Sampling, Translator

FFN, ATTENTION = "decoder.layers.0.fc2", "decoder.layers.1.encoder_attn"
FACTOR = np.float32(1024)


def uneven(checkpoint: Checkpoint) -> Checkpoint:
    """Computes the same in fp32, but one neuron and one dimension of keys are far larger than the rest."""
    tensors = {name: value.copy() for name, value in checkpoint.tensors.items()}
    for name in ("fc1.weight", "fc1.bias"):
        tensors[f"decoder.layers.0.{name}"][3] *= FACTOR
    tensors["decoder.layers.0.fc2.weight"][:, 3] /= FACTOR
    for part, factor in (("q", 1 / FACTOR), ("k", FACTOR)):
        for name in ("weight", "bias"):
            tensors[f"{ATTENTION}.{part}_proj.{name}"][5] *= factor
    return replace(checkpoint, tensors=tensors)


@pytest.fixture(scope="module")
def compiled(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("uneven")
    save_checkpoint(uneven(load_checkpoint(tiny_checkpoint)), folder / "checkpoint")
    requests = [LevelRequest(folder / "checkpoint")]
    manifest = compile_bundle(requests, folder / "bundle", precisions=("fp32", "int8", "int4"), calibration=SENTENCES)
    return folder / "bundle", manifest


def test_just_the_layers_that_lose_are_kept(compiled: tuple[Path, Manifest]) -> None:
    kept = {level.name: set(level.fp32_layers) for level in compiled[1].levels}
    assert kept == {"full": set(), "full-int8": {FFN, ATTENTION}, "full-int4": {FFN, ATTENTION}}


def test_long_lines_are_not_run_all_at_once(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounding errors are measured on so many positions at once as the ranges are."""
    monkeypatch.setattr("hmc.compiler.calibration.fp32_layers.TOLERANCE", -1.0)
    monkeypatch.setattr("hmc.compiler.checks.runner.TOKENS_AT_ONCE", 40)
    encode, run = GraphRunner.encode, list[int]()

    def noted(self: GraphRunner, sources: list[list[int]], *given: Any) -> Any:
        run.append(len(sources) * max(map(len, sources)))
        return encode(self, sources, *given)

    monkeypatch.setattr(GraphRunner, "encode", noted)
    checkpoint = load_checkpoint(tiny_checkpoint)
    model, eos = slim_model(checkpoint, checkpoint.layout), checkpoint.architecture.eos_id
    found = choose_fp32_layers(model, calibrate(model, [*[[5, 6, eos]] * 30, *[[5, 6, 7] * 10 + [eos]] * 3]))
    assert found.fp32
    assert max(run) <= 40


def test_nothing_is_kept_where_nothing_loses(tiny_bundle: Path) -> None:
    assert "fp32_layers" not in (tiny_bundle / "bundle.json").read_text()


def test_where_nothing_helps_all_are_kept(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmc.compiler.calibration.fp32_layers.TOLERANCE", -1.0)
    checkpoint = load_checkpoint(tiny_checkpoint)
    model = slim_model(checkpoint, checkpoint.layout)
    calibration = calibrate(model, [[5, 6, 7, checkpoint.architecture.eos_id]])
    found = choose_fp32_layers(model, calibration)
    assert found.ranges == {}
    assert (
        len(found.fp32) == len(set(found.fp32)) == 2 * 4 + 2 * (7 + 2) + 1
    )  # linears of both stacks, attentions, shared
    assert 0 <= found.change < 0.1  # embeddings are in 8 bits still


@pytest.mark.parametrize("level", ["full-int8", "full-int4"])
@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions(beam_size=1), DecodeOptions(beam_size=4), DecodeOptions(beam_size=2, alignment=True),
        DecodeOptions(sampling=Sampling(seed=3)), DecodeOptions(beam_size=1, repetition_penalty=1.5),
    ],
)  # fmt: skip
def test_such_a_level_translates(compiled: tuple[Path, Manifest], level: str, options: DecodeOptions) -> None:
    options = replace(options, max_length=16, token_scores=True)
    with Translator(compiled[0], level, device="cpu", threads=1) as translator:
        together = translator.translate(SENTENCES, options, segmentation="none")
        assert together == [translator.translate([text], options, segmentation="none")[0] for text in SENTENCES]
    if options.beam_size == 1 and level == "full-int8":
        with Translator(compiled[0], "full", device="cpu", threads=1) as translator:
            given = [found.text for found in together]
            exact = translator.score(SENTENCES, given, replace(options, max_length=None))
        with Translator(compiled[0], level, device="cpu", threads=1) as translator:
            scored = translator.score(SENTENCES, given, replace(options, max_length=None))
        assert np.mean([abs(a.score - b.score) for a, b in zip(exact, scored, strict=True)]) < 0.1


def test_shortlists_need_the_output_projection_in_eight_bits(tiny_checkpoint: Path, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(tiny_checkpoint)
    norm = {name: value.copy() for name, value in checkpoint.tensors.items()}
    norm["decoder.layers.1.final_layer_norm.weight"][7] *= 4096
    norm["decoder.layers.1.final_layer_norm.bias"][7] = 0
    norm["shared.weight"][:, 7] /= 4096
    save_checkpoint(replace(checkpoint, tensors=norm), tmp_path / "checkpoint")
    text = ShortlistText(SENTENCES, SENTENCES)
    with pytest.raises(InvalidRequestError, match="vocabulary shortlists need the output projection in 8 bits"):
        compile_bundle(
            [LevelRequest(tmp_path / "checkpoint")], tmp_path / "b", precisions=("int8",), calibration=SENTENCES,
            shortlist=text,
        )  # fmt: skip


@pytest.mark.parametrize("least", [1, 2, 3, 5, 8, 13, 20])
def test_the_fewest_that_keep(least: int) -> None:
    tried: list[int] = []

    def keeps(number: int) -> bool:
        tried.append(number)
        return number >= least

    assert _fewest(20, keeps) == least
    assert len(tried) == len(set(tried)) <= 9
