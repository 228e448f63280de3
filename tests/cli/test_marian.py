"""`hmc import` and `hmc export`: what they print, what they refuse, and that nothing half-written stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.artifact.opus import opus_directory
from tests.cli.conftest import Hmc
from tests.tiny import random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact.checkpoint import checkpoint_problems


@pytest.fixture
def opus(tmp_path: Path) -> Path:
    opus_directory(tmp_path / "opus")
    return tmp_path / "opus"


def test_import_writes_a_checkpoint_and_says_what_has_no_effect(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    ran = hmc("import", opus, "--out", tmp_path / "c")
    assert ran.exit_code == 0, ran.output
    assert "eng to gmw, 2+2 layers, 24 heads" in ran.stdout
    assert "beam_size 5, max_length 77" in ran.stdout
    assert "Without effect here: no_repeat_ngram_size, forced_eos_token_id." in ran.stdout
    assert checkpoint_problems(tmp_path / "c") == []


def test_import_and_export_as_json(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    imported = json.loads(hmc("import", opus, "--out", tmp_path / "c", "--target-language", "de", "--json").stdout)
    assert (imported["tokenizer"], imported["heads"], imported["target_language"]) == ("marian", 24, "de")
    exported = json.loads(hmc("export", tmp_path / "c", "--out", tmp_path / "m", "--json").stdout)
    assert exported == {
        "model": str(tmp_path / "m"), "heads": 24, "masked_heads": 0, "starts_from_zero_embedding": True,
    }  # fmt: skip
    assert hmc("import", tmp_path / "m", "--out", tmp_path / "c").exit_code == 0


def test_export_masks_only_when_told(hmc: Hmc, tmp_path: Path) -> None:
    arch = tiny_architecture(d_model=64)
    layout = random_layout(arch, 1)
    tiny_checkpoint_at(tmp_path / "c", arch=arch, layout=layout)
    ran = hmc("export", tmp_path / "c", "--out", tmp_path / "m")
    assert (ran.exit_code, "give --masked" in ran.stderr) == (2, True)
    assert not (tmp_path / "m").exists()
    ran = hmc("export", tmp_path / "c", "--out", tmp_path / "m", "--masked")
    assert f"24 heads, {24 - layout.total} of them masked" in ran.stdout


def test_a_refused_import_leaves_nothing_behind(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    (opus / "model.safetensors").rename(opus / "pytorch_model.bin")
    ran = hmc("import", opus, "--out", tmp_path / "c")
    assert ran.exit_code == 2
    assert "pytorch_model.bin is not opened" in ran.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["opus"]


@pytest.mark.parametrize(
    ("out", "said"),
    [("opus", "would replace"), (".", "would replace"), ("notes", "holds other files"), ("file", "is a file")],
)
def test_an_output_that_would_destroy_something(hmc: Hmc, opus: Path, tmp_path: Path, out: str, said: str) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for arguments in (("import", opus), ("export", opus)):
        ran = hmc(*arguments, "--out", tmp_path / out)
        assert ran.exit_code == 2
        assert said in ran.stderr
    assert (tmp_path / "notes" / "todo.txt").read_text() == "keep"
    assert (opus / "config.json").is_file()
