"""Every form in which Transformers and PyTorch write weights gives the same checkpoint, and damaged ones an error."""

from __future__ import annotations

import json
import pickle  # noqa: S403 - what it writes must be refused
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.files import Hostile

from hmc.artifact import InvalidArtifactError
from hmc.pipelines.importing import import_model

WHOLE = "model.safetensors"


def as_pickle(folder: Path) -> None:
    torch.save(load_file(folder / WHOLE), folder / "pytorch_model.bin")
    (folder / WHOLE).unlink()


def as_old_pickle(folder: Path) -> None:
    torch.save(load_file(folder / WHOLE), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / WHOLE).unlink()


def in_shards(folder: Path, suffix: str = "safetensors") -> None:
    """Two files and their index, with the names that Transformers gives them."""
    tensors = load_file(folder / WHOLE)
    (folder / WHOLE).unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = sorted(tensors)
    places: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"{stem}-{number:05}-of-00002.{suffix}"
        content = {name: tensors[name].contiguous() for name in part}
        if suffix == "bin":
            torch.save(content, folder / file)
        else:
            save_file(content, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


FORMS: list[Callable[[Path], None]] = [as_pickle, as_old_pickle, in_shards, lambda folder: in_shards(folder, "bin")]


@pytest.mark.parametrize("rewrite", FORMS, ids=["bin", "old bin", "sharded", "sharded bin"])
def test_every_form_gives_the_same_checkpoint(opus: Path, rewrite: Callable[[Path], None]) -> None:
    before = import_model(opus)
    rewrite(opus)
    after = import_model(opus)
    assert before.architecture == after.architecture
    assert before.tensors.keys() == after.tensors.keys()
    assert all(np.array_equal(before.tensors[name], after.tensors[name]) for name in before.tensors)


@pytest.mark.filterwarnings("ignore")  # what other libraries warn of is not ours to fix
@pytest.mark.parametrize("size", ["1GB", "100KB"], ids=["one file", "sharded"])
def test_what_transformers_itself_saves(opus: Path, tmp_path: Path, size: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    before = import_model(opus)
    model = transformers.MarianMTModel.from_pretrained(opus)
    model.save_pretrained(tmp_path / "saved", max_shard_size=size)
    saved = tmp_path / "saved"
    for file in opus.glob("*"):
        if not (saved / file.name).exists() and file.name != WHOLE:
            (saved / file.name).write_bytes(file.read_bytes())
    assert (saved / "model.safetensors.index.json").exists() == (size == "100KB")
    after = import_model(saved)
    assert all(np.array_equal(before.tensors[name], after.tensors[name]) for name in before.tensors)


def test_half_precision_pickles_become_single(opus: Path) -> None:
    before = import_model(opus)
    tensors = {name: value.bfloat16() for name, value in load_file(opus / WHOLE).items()}
    (opus / WHOLE).unlink()
    torch.save(tensors, opus / "pytorch_model.bin")
    after = import_model(opus)
    assert {value.dtype for value in after.tensors.values()} == {np.dtype(np.float32)}
    assert all(np.allclose(before.tensors[n], after.tensors[n], rtol=1e-2, atol=1e-6) for n in before.tensors)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "old form"])
def test_a_hostile_pickle_runs_nothing(opus: Path, tmp_path: Path, new: bool) -> None:
    content = {**load_file(opus / WHOLE), "x": Hostile(tmp_path / "ran")}
    torch.save(content, opus / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    (opus / WHOLE).unlink()
    with pytest.raises(InvalidArtifactError, match=r"pytorch_model\.bin is not opened: it holds more than tensors"):
        import_model(opus)
    assert not (tmp_path / "ran").exists()


def test_a_bare_pickle_runs_nothing(opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    (opus / WHOLE).unlink()
    (opus / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile(tmp_path / "ran")))
    with pytest.raises(InvalidArtifactError, match=r"pytorch_model\.bin is not opened"):
        import_model(opus)
    assert not (tmp_path / "ran").exists()


def _index(folder: Path) -> Path:
    return folder / "model.safetensors.index.json"


def _edit_map(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    raw = json.loads(_index(folder).read_text())
    change(raw["weight_map"])
    _index(folder).write_text(json.dumps(raw))


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda o: (o / "model-00002-of-00002.safetensors").unlink(), "model-00002-of-00002.safetensors is missing, and"),
    (lambda o: _index(o).write_text("{"), "index.json is not JSON"),
    (lambda o: _index(o).write_text('{"weight_map": {}}'), "has no weight_map from tensors to files"),
    (
        lambda o: _edit_map(o, lambda m: m.update(more="model-00001-of-00002.safetensors")),
        "holds more, and it does not",
    ),
    (lambda o: _edit_map(o, lambda m: m.pop("final_logits_bias")), "holds final_logits_bias, and .* does not say so"),
    (lambda o: _edit_map(o, lambda m: m.update(final_logits_bias="../a.safetensors")), "is no plain name of a file"),
    (
        lambda o: (o / "model-00001-of-00002.safetensors").write_bytes(b"x" * 40),
        "00001-of-00002.safetensors is not read",
    ),
]


@pytest.mark.parametrize(("damage", "problem"), DAMAGE, ids=[p for _, p in DAMAGE])
def test_shards_that_are_missing_or_wrong(opus: Path, damage: Callable[[Path], object], problem: str) -> None:
    in_shards(opus)
    damage(opus)
    with pytest.raises(InvalidArtifactError, match=problem):
        import_model(opus)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"PK\x03\x04"])
def test_damaged_pickles(opus: Path, content: bytes) -> None:
    (opus / WHOLE).unlink()
    (opus / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(
        InvalidArtifactError, match=r"pytorch_model\.bin is not opened: it is damaged|more than tensors"
    ):
        import_model(opus)


def test_a_pickle_cut_short(opus: Path) -> None:
    as_pickle(opus)
    whole = (opus / "pytorch_model.bin").read_bytes()
    (opus / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidArtifactError, match="it is damaged, or no file of PyTorch"):
        import_model(opus)


def test_a_pickle_that_is_no_mapping_of_tensors(opus: Path) -> None:
    (opus / WHOLE).unlink()
    torch.save({"model": {"a": torch.zeros(1)}}, opus / "pytorch_model.bin")
    assert zipfile.is_zipfile(opus / "pytorch_model.bin")
    with pytest.raises(InvalidArtifactError, match=r"pytorch_model\.bin is no state_dict"):
        import_model(opus)
