"""Feed-forward widths: budgets, the checkpoint that records them, and removing, masking and padding neurons."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.slim_ffn import masked_ffn, random_neurons, without_neurons
from tests.tiny import random_tensors, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import (
    InvalidArtifactError,
    InvalidRequestError,
    checkpoint_problems,
    load_checkpoint,
    save_checkpoint,
)
from hmc.artifact.checkpoint.slimming import padded_ffn, slim_ffn
from hmc.artifact.model.architecture import parameter_count, tensor_shapes
from hmc.artifact.model.ffn import FfnWidths, NeuronBudget, Stack, parse_neuron_budgets

ARCH = tiny_architecture()
KEPT: dict[Stack, list[list[int]]] = {"encoder": [[0, 3, 47], []], "decoder": [list(range(48)), [5]]}
WIDTHS = FfnWidths(encoder=(3, 0), decoder=(48, 1))


def test_budgets_are_numbers_or_shares() -> None:
    assert [b.neurons(192) for b in parse_neuron_budgets("96, 50%,12.5%,0")] == [96, 96, 24, 0]
    assert list(map(str, parse_neuron_budgets("96,12.5%"))) == ["96", "12.5%"]
    assert parse_neuron_budgets("") == []
    with pytest.raises(
        InvalidRequestError, match="'half' is neither a number of neurons nor a share; write 1536 or 50%"
    ):
        parse_neuron_budgets("96,half")


@pytest.mark.parametrize("word", ["nan%", "inf%", "-inf%", "1e999%"])
def test_a_share_is_finite(word: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"'{word}' is neither a number of neurons nor a share"):
        parse_neuron_budgets(f"50%,{word}")


@pytest.mark.parametrize(
    "budget",
    [NeuronBudget(192), NeuronBudget(-1), NeuronBudget(100, percent=True), NeuronBudget(math.nan, percent=True)],
)
def test_a_budget_must_remove_some(budget: NeuronBudget) -> None:
    with pytest.raises(InvalidRequestError, match="has 192 feed-forward neurons; choose 0 to 191"):
        budget.neurons(192)


def test_where_no_neuron_is_left() -> None:
    with pytest.raises(InvalidRequestError, match="this checkpoint has no feed-forward neurons left to close"):
        NeuronBudget(0).neurons(0)


def test_widths_decide_shapes_and_parameters() -> None:
    full, slim = (tensor_shapes(ARCH, ARCH.full_layout(), widths) for widths in (None, WIDTHS))
    assert FfnWidths.from_neurons(KEPT) == WIDTHS
    assert (WIDTHS.total, WIDTHS.widest) == (52, 48)
    assert full == tensor_shapes(ARCH, ARCH.full_layout(), ARCH.full_ffn())
    assert slim["encoder.layers.0.fc1.weight"] == (3, 32)
    assert slim["encoder.layers.0.fc2.weight"] == (32, 3)
    assert full.keys() - slim.keys() == {f"encoder.layers.1.{n}" for n in ("fc1.weight", "fc1.bias", "fc2.weight")}
    per_neuron = 2 * 32 + 1
    gone = parameter_count(ARCH, ARCH.full_layout()) - parameter_count(ARCH, ARCH.full_layout(), WIDTHS)
    assert gone == (4 * 48 - 52) * per_neuron


def test_removing_neurons_takes_their_rows_and_columns() -> None:
    tensors = random_tensors(ARCH, ARCH.full_layout())
    slim = slim_ffn(tensors, ARCH, KEPT)
    assert {n: t.shape for n, t in slim.items()} == tensor_shapes(ARCH, ARCH.full_layout(), WIDTHS)
    for name, axis in (("fc1.weight", 0), ("fc1.bias", 0), ("fc2.weight", 1)):
        whole = tensors[f"encoder.layers.0.{name}"]
        assert np.array_equal(slim[f"encoder.layers.0.{name}"], np.take(whole, [0, 3, 47], axis=axis))
    masked = masked_ffn(tensors, ARCH, KEPT)
    assert np.flatnonzero(masked["encoder.layers.0.fc2.weight"].any(axis=0)).tolist() == [0, 3, 47]
    assert not masked["encoder.layers.1.fc2.weight"].any()
    assert masked["decoder.layers.0.fc2.weight"] is not tensors["decoder.layers.0.fc2.weight"]
    assert np.array_equal(masked["decoder.layers.0.fc2.weight"], tensors["decoder.layers.0.fc2.weight"])
    again: dict[Stack, list[list[int]]] = {"encoder": [[1], []], "decoder": [[0, 2], []]}
    twice = slim_ffn(slim, ARCH, again)
    at_once: dict[Stack, list[list[int]]] = {"encoder": [[3], []], "decoder": [[0, 2], []]}
    once = slim_ffn(tensors, ARCH, at_once)
    assert twice.keys() == once.keys()
    assert all(np.array_equal(twice[n], once[n]) for n in once)


def test_padding_adds_zeros_alone() -> None:
    slim = slim_ffn(random_tensors(ARCH, ARCH.full_layout()), ARCH, random_neurons(ARCH, 5))
    widths = FfnWidths.from_neurons(random_neurons(ARCH, 5))
    padded, width = padded_ffn(slim, ARCH, widths)
    assert width == widths.widest
    assert {n: t.shape for n, t in padded.items()} == tensor_shapes(
        ARCH.model_copy(update={"ffn_dim": width}), ARCH.full_layout()
    )
    for stack, layer, own in widths.layers():
        assert not padded[f"{stack}.layers.{layer}.fc2.weight"][:, own:].any()
        assert not padded[f"{stack}.layers.{layer}.fc1.bias"][own:].any()


def test_a_checkpoint_keeps_its_widths(tmp_path: Path) -> None:
    slim = without_neurons(tiny_checkpoint_at(tmp_path / "full"), KEPT)
    save_checkpoint(slim, tmp_path / "slim")
    loaded = load_checkpoint(tmp_path / "slim")
    assert loaded.ffn_widths == WIDTHS
    assert json.loads((tmp_path / "slim" / "config.json").read_text())["ffn_widths"] == {
        "encoder": [3, 0],
        "decoder": [48, 1],
    }
    stored = load_file(tmp_path / "slim" / "model.safetensors")
    assert sum(t.size for t in stored.values()) == parameter_count(ARCH, ARCH.full_layout(), WIDTHS)
    assert all(np.array_equal(loaded.tensors[n], slim.tensors[n]) for n in slim.tensors)


def test_a_checkpoint_without_widths_has_them_all_and_says_nothing(tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    assert "ffn_widths" not in json.loads((tmp_path / "c" / "config.json").read_text())
    assert load_checkpoint(tmp_path / "c").ffn_widths == FfnWidths(encoder=(48, 48), decoder=(48, 48))


@pytest.mark.parametrize(
    ("widths", "problem"),
    [
        ({"encoder": [3], "decoder": [48, 1]}, "ffn widths encoder: 1 layers, the architecture has 2"),
        ({"encoder": [3, 49], "decoder": [48, 1]}, "ffn widths encoder.1: 49 neurons, the architecture has 48"),
        ({"encoder": [3, -1], "decoder": [48, 1]}, "ffn_widths.encoder.1"),
        ({"encoder": [3, 0]}, "ffn_widths.decoder: Field required"),
        ({"encoder": [4, 0], "decoder": [48, 1]}, "fc1.weight has shape [3, 32], expected [4, 32]"),
        ({"encoder": [3, 1], "decoder": [48, 1]}, "tensor encoder.layers.1.fc1.weight is missing"),
        (None, "tensor encoder.layers.0.fc1.weight has shape [3, 32], expected [48, 32]"),
    ],
)
def test_widths_that_do_not_fit_are_reported(tmp_path: Path, widths: dict[str, list[int]] | None, problem: str) -> None:
    save_checkpoint(without_neurons(tiny_checkpoint_at(tmp_path / "c"), KEPT), tmp_path / "c")
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    (tmp_path / "c" / "config.json").write_text(json.dumps(config | {"ffn_widths": widths}))
    assert any(problem in found for found in checkpoint_problems(tmp_path / "c")), checkpoint_problems(tmp_path / "c")
    with pytest.raises(InvalidArtifactError):
        load_checkpoint(tmp_path / "c")


def test_tensors_of_other_widths_are_not_written(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c")
    checkpoint.config = checkpoint.config.model_copy(update={"ffn_widths": WIDTHS})
    with pytest.raises(
        InvalidArtifactError, match=r"fc1\.weight does not fit the head layout, the feed-forward widths"
    ):
        save_checkpoint(checkpoint, tmp_path / "d")
