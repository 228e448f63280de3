"""Checkpoints: round trip, every problem at once, nothing lost on failure."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.artifact.opus import opus_directory
from tests.tiny import random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact.checkpoint import checkpoint_problems, load_checkpoint, save_checkpoint
from hmc.artifact.errors import InvalidArtifactError


def test_round_trip_keeps_everything(tmp_path: Path) -> None:
    layout = random_layout(tiny_architecture(), 3)
    written = tiny_checkpoint_at(tmp_path / "c", layout=layout)
    read = load_checkpoint(tmp_path / "c")
    assert read.layout == layout
    assert read.config == written.config
    assert read.tokenizer == written.tokenizer
    assert all(np.array_equal(read.tensors[n], written.tensors[n]) for n in written.tensors)
    assert read.gates is not None
    assert written.gates is not None
    assert all(np.array_equal(read.gates[k], written.gates[k]) for k in read.gates)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c"
    tiny_checkpoint_at(path)
    (path / "tokenizer.model").unlink()
    weights = load_file(path / "model.safetensors")
    del weights["encoder.layers.0.fc1.weight"]
    weights["stray"] = np.zeros(3, np.float32)
    weights["encoder.layers.0.fc2.bias"] = np.zeros(7, np.float32)
    save_file(weights, path / "model.safetensors")
    problems = "\n".join(checkpoint_problems(path))
    for expected in (
        "tokenizer.model is missing",
        "fc1.weight is missing",
        "stray does not belong",
        "shape [7], expected [32]",
    ):
        assert expected in problems
    with pytest.raises(InvalidArtifactError, match="stray"):
        load_checkpoint(path)


def test_future_schema_says_upgrade(tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    (tmp_path / "c" / "config.json").write_text(json.dumps(config | {"schema_version": 99}))
    with pytest.raises(InvalidArtifactError, match=r"99.*upgrade hmc"):
        load_checkpoint(tmp_path / "c")


def test_truncated_weights_are_a_clear_error(tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    file = tmp_path / "c" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InvalidArtifactError, match="not readable"):
        load_checkpoint(tmp_path / "c")


def test_nan_weights_are_refused(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c")
    checkpoint.tensors["encoder.layers.0.fc1.bias"][0] = np.nan
    save_checkpoint(checkpoint, tmp_path / "c")
    with pytest.raises(InvalidArtifactError, match=r"fc1\.bias holds NaN"):
        load_checkpoint(tmp_path / "c")


def test_failed_save_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint_at(tmp_path / "c")
    before = (tmp_path / "c" / "model.safetensors").read_bytes()
    checkpoint.tensors["encoder.layers.0.fc1.bias"] = np.zeros(1, np.float32)
    with pytest.raises(InvalidArtifactError, match="does not fit"):
        save_checkpoint(checkpoint, tmp_path / "c")
    assert (tmp_path / "c" / "model.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_marian_model_is_sent_to_import(tmp_path: Path) -> None:
    opus_directory(tmp_path / "opus")
    assert checkpoint_problems(tmp_path / "opus") == [
        "config.json is of a MarianMT model of Hugging Face, not of a checkpoint"
    ]
    with pytest.raises(InvalidArtifactError) as caught:
        load_checkpoint(tmp_path / "opus")
    assert "`hmc import DIR --out CKPT`" in str(caught.value)
    assert "hmc train" not in str(caught.value)
