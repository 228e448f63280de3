"""Checkpoints: round trip, every problem at once, nothing lost on failure."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.artifact.marian.opus import opus_directory
from tests.tiny import random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import InvalidArtifactError, checkpoint_problems, load_checkpoint, save_checkpoint
from hmc.artifact.checkpoint.checkpoint import load_config
from hmc.artifact.checkpoint.extras import add_score


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


def test_weights_of_8_bits_are_near_and_stored_again_the_same(tmp_path: Path) -> None:
    written = tiny_checkpoint_at(tmp_path / "c")
    written.tensors["encoder.layers.0.fc1.weight"][0] = 0
    save_checkpoint(written, tmp_path / "c", dtype="int8")
    read = load_checkpoint(tmp_path / "c")
    assert read.tensors.keys() == written.tensors.keys()
    for name, value in written.tensors.items():
        assert read.tensors[name].dtype == np.float32
        if value.ndim == 2:
            largest = np.abs(value).max(axis=1, keepdims=True)
            assert (np.abs(read.tensors[name] - value) <= largest / 254 * (1 + 1e-5)).all()
        else:
            assert np.array_equal(read.tensors[name], value)
    save_checkpoint(read, tmp_path / "again", dtype="int8")
    again = load_file(tmp_path / "again" / "model.safetensors")
    for name, value in load_file(tmp_path / "c" / "model.safetensors").items():
        if value.dtype == np.int8:
            assert np.array_equal(again[name], value)


def test_problems_of_8_bit_weights(tmp_path: Path) -> None:
    save_checkpoint(tiny_checkpoint_at(tmp_path / "c"), tmp_path / "c", dtype="int8")
    file = tmp_path / "c" / "model.safetensors"
    weights = load_file(file)
    del weights["encoder.layers.0.fc1.weight.scale"]
    weights["encoder.layers.0.fc2.weight.scale"] = np.zeros(7, np.float32)
    weights["encoder.layers.0.fc1.bias"] = weights["encoder.layers.0.fc1.bias"].astype(np.int8)
    save_file(weights, file)
    problems = "\n".join(checkpoint_problems(tmp_path / "c"))
    for expected in ("fc1.weight.scale is missing", "fc2.weight.scale has shape [7]", "fc1.bias is of 8 bits"):
        assert expected in problems


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


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def gates_with_nan(path: Path) -> None:
    gates = load_file(path / "gates.safetensors")
    gates["cross"][0, 0] = np.nan
    save_file(gates, path / "gates.safetensors")


def importance_of(path: Path, **kinds: object) -> None:
    (path / "importance.json").write_text(json.dumps(kinds))


ROWS = [[0.5] * 4] * 2
EXTRAS: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: cut(path / "gates.safetensors"), "gates.safetensors is not readable"),
    (gates_with_nan, "gates.safetensors: cross holds NaN or infinity"),
    (lambda path: (path / "importance.json").write_text("{"), "importance.json is not JSON"),
    (lambda path: (path / "scores.json").write_text('{"luck": {}}'), "scores.json holds 'luck', which is no score"),
    (
        lambda path: (path / "scores.json").write_text(
            json.dumps({"ablation": {"cross": ROWS, "encoder_self": ROWS, "decoder_self": [[1, 2]]}})
        ),
        "scores.json: ablation: decoder_self has shape [1, 2], expected [2, 4]",
    ),
    (lambda path: (path / "importance.json").write_text("[]"), "importance.json must be one JSON object"),
    (lambda path: importance_of(path, cross=ROWS, encoder_self=ROWS), "importance.json has no scores of decoder_self"),
    (
        lambda path: importance_of(path, cross=[[1, 2]], encoder_self=ROWS, decoder_self=ROWS),
        "importance.json: cross has shape [1, 2], expected [2, 4]",
    ),
    (
        lambda path: importance_of(path, cross=[[1], [2, 3]], encoder_self=ROWS, decoder_self=ROWS),
        "importance.json: cross is not rows of numbers of one length",
    ),
    (lambda path: (path / "metrics.json").write_text("3"), "metrics.json must be one JSON object"),
    (lambda path: (path / "tokenizer.model").write_bytes(b"x"), "tokenizer.model is not a SentencePiece"),
]


@pytest.mark.parametrize(("damage", "problem"), EXTRAS, ids=[problem for _, problem in EXTRAS])
def test_what_lies_beside_the_weights_is_looked_at(
    tmp_path: Path, damage: Callable[[Path], object], problem: str
) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    (tmp_path / "c" / "digests.json").unlink()  # as in a checkpoint of an earlier version
    damage(tmp_path / "c")
    with pytest.raises(InvalidArtifactError) as caught:
        load_checkpoint(tmp_path / "c")
    assert problem in str(caught.value)
    assert len(caught.value.problems) == 1


def every_file(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "digests.json",
        "gates.safetensors",
        "metrics.json",
        "model.safetensors",
        "scores.json",
        "tokenizer.model",
    ],
)
def test_no_flipped_bit_is_loaded(tmp_path: Path, name: str) -> None:
    """One bit in the middle of any file: without digests most of them are weights, gates or pieces like others."""
    written = tiny_checkpoint_at(tmp_path / "c")
    written.metrics = {"dev": {"bleu": 12.5}}
    assert written.gates is not None
    written.scores = {"confidence": written.gates}
    save_checkpoint(written, tmp_path / "c")
    assert name in every_file(tmp_path / "c")
    assert checkpoint_problems(tmp_path / "c") == []
    file = tmp_path / "c" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(InvalidArtifactError) as caught:
        load_checkpoint(tmp_path / "c")
    assert name in str(caught.value)
    if name != "digests.json":
        assert f"{name} is not as it was written: its sha256 is" in str(caught.value)
        assert "if you changed it yourself, delete digests.json" in str(caught.value)
    with pytest.raises(InvalidArtifactError) if name == "config.json" else nullcontext():
        load_config(tmp_path / "c")


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c")
    (tmp_path / "c" / "gates.safetensors").unlink()
    assert checkpoint_problems(tmp_path / "c") == ["gates.safetensors is missing"]


def test_a_score_that_is_added_gets_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, the checkpoint can still be read."""
    written = tiny_checkpoint_at(tmp_path / "c")
    assert written.gates is not None
    for name in ("importance", "confidence", "relevance"):
        add_score(tmp_path / "c", written.architecture, name, written.gates)
    digests = json.loads((tmp_path / "c" / "digests.json").read_text())["sha256"]
    assert {"importance.json", "scores.json"} < digests.keys()
    assert checkpoint_problems(tmp_path / "c") == []

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hmc.artifact.checkpoint.extras.write_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        add_score(tmp_path / "c", written.architecture, "importance", written.gates)
    assert checkpoint_problems(tmp_path / "c") == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"vocab_size": 100}, "tokenizer.model has 120 pieces, the model's vocabulary has 100"),
        ({"eos_id": 7}, "tokenizer.model has its eos piece at 0, the model's eos_id is 7"),
        ({"pad_id": 0}, "tokenizer.model has its pad piece at 2, the model's pad_id is 0"),
        ({"unk_id": 4}, "tokenizer.model has its unk piece at 1, the model's unk_id is 4"),
    ],
)
def test_a_tokenizer_of_another_model_is_noticed(tmp_path: Path, fields: dict[str, int], problem: str) -> None:
    tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(**fields))
    assert checkpoint_problems(tmp_path / "c") == [problem]


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
