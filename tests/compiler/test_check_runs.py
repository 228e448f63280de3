"""A level is run as it was written before it counts as compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tiny import SENTENCES, tiny_architecture, tiny_checkpoint_at

from hmc.artifact.bundle import decoder_path, read_manifest
from hmc.artifact.bundle_checks import validate
from hmc.compiler import pipeline
from hmc.compiler.bundle_builder import LevelRequest
from hmc.compiler.bundle_writer import compile_bundle
from hmc.compiler.check import BrokenGraphError, check_runs
from hmc.serving import DecodeOptions, Translator

PROBE = [[5, 6, 7, 2], [8, 9, 2]]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tiny_checkpoint_at(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_a_compiled_level_runs(checkpoint: Path, tmp_path: Path, precision: str) -> None:
    compile_bundle([LevelRequest(checkpoint)], tmp_path / "b", precisions=(precision,), calibration=SENTENCES)  # type: ignore[arg-type]
    manifest = read_manifest(tmp_path / "b")
    level = manifest.levels[0]
    check_runs(manifest.architecture, level.layout, tmp_path / "b", level.name, PROBE)


@pytest.mark.parametrize("positions", [2, 3, 24])
def test_a_model_of_few_positions(tmp_path: Path, positions: int) -> None:
    tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(max_positions=positions))
    compile_bundle(
        [LevelRequest(tmp_path / "c", 12)], tmp_path / "b", precisions=("fp32", "int8"), calibration=SENTENCES
    )
    compile_bundle([LevelRequest(tmp_path / "c", 12)], tmp_path / "without_text")
    for level in validate(tmp_path / "b").levels:
        with Translator(tmp_path / "b", level.name, device="cpu") as translator:
            for beam in (1, 2):
                assert translator.translate(SENTENCES[:2], DecodeOptions(beam_size=beam))[0].target_tokens < positions


def test_a_graph_that_cannot_be_run_is_no_level(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pipeline.write_level

    def broken(draft: pipeline.LevelDraft) -> None:
        write(draft)
        (draft.bundle / decoder_path(draft.name)).write_bytes(b"\x08\x0a")

    monkeypatch.setattr(pipeline, "PASSES", [broken if p is write else p for p in pipeline.PASSES])
    with pytest.raises(BrokenGraphError, match=r"level full: .*defect of the compiler"):
        compile_bundle([LevelRequest(checkpoint)], tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_weights_that_are_not_numbers_are_told(checkpoint: Path, tmp_path: Path) -> None:
    compile_bundle([LevelRequest(checkpoint)], tmp_path / "b")
    manifest = read_manifest(tmp_path / "b")
    level = manifest.levels[0]
    for file in (tmp_path / "b" / "weights").iterdir():
        file.write_bytes(np.full(file.stat().st_size // 4, np.nan, np.float32).tobytes())
    with pytest.raises(BrokenGraphError, match="not numbers"):
        check_runs(manifest.architecture, level.layout, tmp_path / "b", level.name, PROBE)
