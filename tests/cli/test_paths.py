"""Paths that cannot be written, and folders that hold other files: refused before the work, in one line."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import refused
from tests.support.files import write_lines
from tests.tiny import SENTENCES

from hmc.artifact import InvalidRequestError
from hmc.cli.common.outputs import check_file, check_folder, check_run_folder


def test_a_folder_that_can_be_made(tmp_path: Path) -> None:
    check_folder("--out", tmp_path)
    check_folder("--out", tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_file_on_the_way_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match="file is a file; give a folder"):
        check_folder("--out", tmp_path / "file" / "b")


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that this process may not write to. Root may write everywhere, so root acts as `nobody` meanwhile."""
    nobody = 65534
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        former = os.getresuid()
        if former[1] == 0:
            os.setresuid(nobody, nobody, 0)
        yield Path(folder)
        os.setresuid(*former)


def test_a_folder_without_permission(closed_folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        check_folder("--out", closed_folder / "a")
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        check_file("--json", closed_folder / "a")


def test_files(tmp_path: Path) -> None:
    check_file("--json", tmp_path / "new")
    (tmp_path / "old").touch()
    check_file("--json", tmp_path / "old")
    with pytest.raises(InvalidRequestError, match=r"--json .* is a folder; give a file in it"):
        check_file("--json", tmp_path)
    with pytest.raises(InvalidRequestError, match="does not exist; create it first"):
        check_file("--json", tmp_path / "no" / "file")


@pytest.mark.parametrize(("marker", "what"), [("config.json", "a model"), ("bundle.json", "a bundle")])
def test_runs_are_not_strewn_into_models(tmp_path: Path, marker: str, what: str) -> None:
    check_run_folder(tmp_path)
    (tmp_path / marker).touch()
    with pytest.raises(InvalidRequestError, match=f"is {what}; give a folder of its own"):
        check_run_folder(tmp_path)


def test_commands_refuse_before_they_work(hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny_checkpoint.iterdir()}
    pruned = hmc("prune", tiny_checkpoint, "--data", "a b", "--dev", "a b", "--out", tiny_checkpoint)
    assert pruned.exit_code == 2
    assert "give a folder of its own" in pruned.stderr
    analysed = hmc("analyze", "importance", tiny_checkpoint, "--data", "a b", "--out", tiny_checkpoint)
    assert analysed.exit_code == 2  # both have an importance.json
    assert "give a folder of its own" in analysed.stderr
    assert {path: path.stat().st_mtime_ns for path in tiny_checkpoint.iterdir()} == before
    (tmp_path / "file").touch()
    compiled = refused(hmc("compile", tiny_checkpoint, "-o", tmp_path / "file" / "bundle"))
    said = f"hmc: {tmp_path / 'file'}: File exists; check the path and its permissions"
    assert compiled.stderr.splitlines() == [said]


def test_runs_do_not_write_over_files_of_other_programs(hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path) -> None:
    for name in ("t.en", "t.de"):
        write_lines(tmp_path / name, SENTENCES)
    corpus, out = f"{tmp_path / 't.en'} {tmp_path / 't.de'}", tmp_path / "out"
    files = [out / "final" / "thesis.tex", out / "h12" / "notes.txt"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "r.toml").write_text(f"[data]\ntrain = ['{corpus}']\ndev = '{corpus}'\n")
    refused(hmc("train", tmp_path / "r.toml", "--out", out), "holds final, and no recipe.json")
    pruned = hmc("prune", tiny_checkpoint, "--target-heads", 12, "--data", corpus, "--dev", corpus, "--out", out)
    assert pruned.exit_code == 2
    assert "holds h12, and no request.json" in pruned.stderr
    assert sorted(path for path in out.rglob("*") if path.is_file()) == files


def test_results_do_not_write_over_what_they_come_from(hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "trajectory.json").write_text("[]")
    ran = hmc("analyze", "trajectory", f"run={tmp_path / 'trajectory.json'}", "--out", tmp_path)
    assert ran.exit_code == 2
    assert "would overwrite the input" in ran.stderr
    assert (tmp_path / "trajectory.json").read_text() == "[]"
    both = ("--out", tmp_path / "x", "--save", tmp_path / "x")
    refused(hmc("analyze", "importance", tiny_checkpoint, "--data", "a b", *both), "x is also --out")


def test_a_corpus_that_is_missing_leaves_the_run_folder_free(hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path) -> None:
    words = ["prune", tiny_checkpoint, "--target-heads", 12, "--dev", "a b", "--out", tmp_path / "run"]
    refused(hmc(*words, "--data", f"{tmp_path / 'a'} {tmp_path / 'b'}"), "a: no such file")
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_cannot_be_read(hmc: Hmc, tmp_path: Path) -> None:
    (tmp_path / "bin.toml").write_bytes(b"\xff\xfe")
    for recipe, said in ((tmp_path, "cannot be read: Is a directory"), (tmp_path / "bin.toml", "is not TOML")):
        refused(hmc("train", recipe, "--out", tmp_path / "run"), said)
        assert not (tmp_path / "run").exists()


def test_version(hmc: Hmc) -> None:
    ran = hmc("--version")
    assert ran.exit_code == 0
    assert ran.stdout.startswith("hmc 0.")
    assert ran.stdout.count("\n") == 1
