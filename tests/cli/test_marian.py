"""`hmc import` and `hmc export`: what they print, what they refuse, and that nothing half-written stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import SafetensorError
from tests.artifact.ctranslate2.converted import release_and_converted
from tests.cli.conftest import Hmc
from tests.command import done, refused
from tests.tiny import random_layout, tiny_architecture, tiny_checkpoint_at

from hmc.artifact import checkpoint_problems


def test_import_writes_a_checkpoint_and_says_what_has_no_effect(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    ran = done(hmc("import", opus, "--out", tmp_path / "c"))
    assert "eng to gmw, 2+2 layers, 24 heads" in ran.stdout
    assert "beam_size 5, max_length 77" in ran.stdout
    assert "Settings of the model that HMC ignores: no_repeat_ngram_size, forced_eos_token_id." in ran.stdout
    assert checkpoint_problems(tmp_path / "c") == []


def test_import_and_export_as_json(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    imported = json.loads(hmc("import", opus, "--out", tmp_path / "c", "--target-language", "de", "--json").stdout)
    assert (imported["tokenizer"], imported["heads"], imported["target_language"]) == ("marian", 24, "de")
    exported = json.loads(hmc("export", tmp_path / "c", "--out", tmp_path / "m", "--json").stdout)
    assert exported == {
        "model": str(tmp_path / "m"), "heads": 24, "masked_heads": 0, "starts_from_zero_embedding": True,
        "vocabularies": 1,
    }  # fmt: skip
    assert hmc("import", tmp_path / "m", "--out", tmp_path / "c").exit_code == 0


def test_export_masks_only_when_told(hmc: Hmc, tmp_path: Path) -> None:
    arch = tiny_architecture(d_model=64)
    layout = random_layout(arch, 1)
    tiny_checkpoint_at(tmp_path / "c", arch=arch, layout=layout)
    ran = hmc("export", tmp_path / "c", "--out", tmp_path / "m")
    assert (ran.exit_code, "hmc export --masked" in ran.stderr) == (2, True)
    assert not (tmp_path / "m").exists()
    ran = hmc("export", tmp_path / "c", "--out", tmp_path / "m", "--masked")
    assert f"24 heads, {24 - layout.total} of them masked" in ran.stdout


def test_a_refused_import_leaves_nothing_behind(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    (opus / "model.safetensors").rename(opus / "pytorch_model.bin")
    refused(hmc("import", opus, "--out", tmp_path / "c"), "pytorch_model.bin is not opened")
    assert [p.name for p in tmp_path.iterdir()] == ["opus"]


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("opus", "would be replaced, and with it"),
        (".", "would be replaced, and with it"),
        ("notes", "holds other files and no config.json (todo.txt)"),
        ("file", "is a file"),
    ],
)
def test_an_output_that_would_destroy_something(hmc: Hmc, opus: Path, tmp_path: Path, out: str, said: str) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for arguments in (("import", opus), ("export", opus)):
        refused(hmc(*arguments, "--out", tmp_path / out), said)
    assert (tmp_path / "notes" / "todo.txt").read_text() == "keep"
    assert (opus / "config.json").is_file()


@pytest.mark.parametrize("config", ["{}", '{"model_type": "marian"}', '{"architecture": {}, "head_layout": {}}'])
def test_a_project_is_never_replaced(hmc: Hmc, opus: Path, tmp_path: Path, config: str) -> None:
    """A clone from the Hugging Face hub holds files of the format, and other files."""
    tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(d_model=64))
    project = tmp_path / "project"
    for file, text in ((".git/HEAD", "ref"), ("src/main.py", "x"), ("config.json", config)):
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text(text)
    before = {file: file.read_text() for file in project.rglob("*") if file.is_file()}
    for arguments in (("import", opus), ("export", tmp_path / "c")):
        refused(hmc(*arguments, "-o", project), "choose another directory, or move it away first")
    assert {file: file.read_text() for file in project.rglob("*") if file.is_file()} == before


def test_a_checkpoint_and_a_model_do_not_replace_each_other(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(d_model=64))
    assert hmc("export", tmp_path / "c", "-o", tmp_path / "m").exit_code == 0
    assert hmc("export", tmp_path / "c", "-o", tmp_path / "m").exit_code == 0
    ran = hmc("import", opus, "-o", tmp_path / "m")
    assert "holds a config.json that does not belong to a checkpoint" in ran.stderr
    assert hmc("import", opus, "-o", tmp_path / "i").exit_code == 0
    ran = hmc("export", tmp_path / "c", "-o", tmp_path / "i")
    assert "holds a config.json that does not belong to a MarianMT model that HMC wrote" in ran.stderr


def test_a_link_is_followed(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "c")
    for _ in range(2):
        assert hmc("import", opus, "-o", tmp_path / "link").exit_code == 0
        assert (tmp_path / "link").is_symlink()
        assert checkpoint_problems(tmp_path / "c") == []


def test_what_hmc_wrote_needs_no_import(hmc: Hmc, tiny_checkpoint: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    for folder, said in (
        (tiny_checkpoint, "is a checkpoint of HMC already: give it to `hmc prune` or `hmc compile`"),
        (tiny_bundle, "is a bundle, which `hmc serve` and `hmc translate` read"),
    ):
        refused(hmc("import", folder, "-o", tmp_path / "c"), f"{folder} {said}")


def test_a_tokenizer_that_was_cut_short(hmc: Hmc, opus: Path, tmp_path: Path) -> None:
    (opus / "source.spm").write_bytes(b"")
    (opus / "target.spm").write_bytes((opus / "target.spm").read_bytes()[:100])
    ran = hmc("import", opus, "-o", tmp_path / "c")
    assert ran.exit_code == 2
    assert f"Marian model {opus} cannot be used" in ran.stderr
    assert "- source.spm is empty; copy or download it again" in ran.stderr
    assert "- target.spm is not a SentencePiece model" in ran.stderr
    assert "Write the checkpoint or bundle again" not in ran.stderr


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_full_disk_is_one_line(
    hmc: Hmc, opus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    tiny_checkpoint_at(tmp_path / "c", arch=tiny_architecture(d_model=64))
    monkeypatch.setattr("hmc.artifact.checkpoint.weights.save_file", full)
    monkeypatch.setattr("hmc.artifact.marian.writer.save_file", full)
    ran = refused(hmc(command, opus if command == "import" else tmp_path / "c", "-o", tmp_path / "out"))
    assert ran.stderr == f"hmc: {tmp_path / 'out'}: No space left on device; make room\n"
    assert not (tmp_path / "out").exists()


def test_import_says_that_integers_have_lost_something(hmc: Hmc, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    languages = ("--source-language", "eng", "--target-language", "mul")
    _, whole = release_and_converted(tmp_path / "whole")
    _, rounded = release_and_converted(tmp_path / "rounded", "int8")
    ran = hmc("import", whole, "-o", tmp_path / "c", *languages)
    assert (ran.exit_code, "stored as" in ran.stdout) == (0, False)
    for model in (rounded, rounded / "model.bin"):
        ran = hmc("import", model, "-o", tmp_path / "c", *languages)
        assert "The weights were stored as int8: what rounding took away is lost" in ran.stdout
    assert "int8" in json.loads(hmc("import", rounded, "-o", tmp_path / "c", *languages, "--json").stdout)["lossy"]
    assert "--source-language" in hmc("import", whole, "-o", tmp_path / "c").stderr
