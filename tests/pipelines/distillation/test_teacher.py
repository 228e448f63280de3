"""The teacher: imported once from a MarianMT directory, compiled once, in the precision that the device runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.artifact.marian.opus import opus_directory
from tests.artifact.marian.two_vocabularies import two_vocabularies
from tests.tiny import SENTENCES

from hmc.artifact import InvalidArtifactError, InvalidRequestError, load_checkpoint
from hmc.pipelines import DistillSettings
from hmc.pipelines.distillation.teacher import as_checkpoint, compile_teacher, open_teacher, precision_of


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_marian_directory_is_imported_once(tmp_path: Path) -> None:
    opus_directory(tmp_path / "opus")
    folder = tmp_path / "out" / "checkpoint"
    assert as_checkpoint(tmp_path / "opus", folder) == folder
    before = times(folder)
    assert as_checkpoint(tmp_path / "opus", folder) == folder
    assert times(folder) == before
    assert as_checkpoint(folder, tmp_path / "elsewhere") == folder, "a checkpoint stays where it is"
    assert not (tmp_path / "elsewhere").exists()


def test_another_model_does_not_replace_the_imported_one(tmp_path: Path) -> None:
    opus_directory(tmp_path / "one")
    opus_directory(tmp_path / "other", seed=5)
    folder = tmp_path / "out" / "checkpoint"
    as_checkpoint(tmp_path / "one", folder)
    before = times(folder)
    with pytest.raises(InvalidRequestError, match=r"belongs to another model than .*other; choose another folder"):
        as_checkpoint(tmp_path / "other", folder)
    assert times(folder) == before


def test_a_damaged_marian_directory_says_what_is_wrong(tmp_path: Path) -> None:
    opus_directory(tmp_path / "opus")
    (tmp_path / "opus" / "source.spm").unlink()
    with pytest.raises(InvalidArtifactError, match=r"source\.spm"):
        as_checkpoint(tmp_path / "opus", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_vocabularies_are_compiled_once_and_translate(tmp_path: Path) -> None:
    two_vocabularies(tmp_path / "marian")
    checkpoint = as_checkpoint(tmp_path / "marian", tmp_path / "checkpoint")
    assert load_checkpoint(checkpoint).architecture.source_vocab_size == 113
    steps = list[str]()
    bundle = compile_teacher(checkpoint, tmp_path / "teacher", "int8", SENTENCES, steps.append)
    before = times(bundle)
    assert any("author graphs" in step for step in steps)
    assert compile_teacher(checkpoint, tmp_path / "teacher", "int8", SENTENCES) == bundle
    assert times(bundle) == before
    with open_teacher(bundle, DistillSettings(beam=16, workers=2)) as translator:
        assert len(translator.translate(SENTENCES, segmentation="none")) == len(SENTENCES)
        assert translator.level.precision == "int8"


@pytest.mark.parametrize(
    ("cuda", "device", "precision", "expected"),
    [
        (False, "auto", "auto", "int8"), (True, "auto", "auto", "fp16"), (True, "cpu", "auto", "int8"),
        (False, "cuda:1", "auto", "fp16"), (True, "auto", "int8", "int8"), (False, "cpu", "fp32", "fp32"),
    ],
)  # fmt: skip
def test_precision_follows_the_device(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, device: str, precision: Any, expected: str
) -> None:
    monkeypatch.setattr("hmc.pipelines.distillation.teacher.cuda_available", lambda: cuda)
    assert precision_of(DistillSettings(device=device, precision=precision)) == expected


def test_a_precision_for_another_device() -> None:
    with pytest.raises(InvalidRequestError, match="int8: it is for cpu, and not for cuda:0"):
        precision_of(DistillSettings(device="cuda:0", precision="int8"))
