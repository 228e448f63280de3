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


TAKES_A_BUNDLE = ("serve PATH", "levels PATH", "translate --bundle PATH a", "score FILE FILE --bundle PATH",
                  "bench PATH --source FILE")  # fmt: skip
TAKES_A_CHECKPOINT = (
    "compile PATH -o OUT", "compile PATH --target-heads 50% -o OUT", "compile a=PATH -o OUT", "export PATH -o OUT",
    "prune PATH --data FILE,FILE --dev FILE,FILE --target-heads 12 -o OUT", "prune PATH --source FILE -o OUT",
    "distill PATH --source FILE -o OUT", "analyze importance PATH --data FILE,FILE -o OUT",
)  # fmt: skip


@pytest.mark.parametrize("words", [*TAKES_A_BUNDLE, *TAKES_A_CHECKPOINT])
def test_a_wrong_folder_is_named_with_the_command_that_takes_it(
    hmc: Hmc,
    tiny_checkpoint: Path,
    fake_bundle: Path,
    opus: Path,
    tmp_path: Path,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hmc.serving.server.observing.logs.set_up", lambda *_, **__: None)  # the log of this process
    (tmp_path / "file").write_text("a dog\n")
    (tmp_path / "run with a blank" / "level").mkdir(parents=True)
    wants_a_bundle = words in TAKES_A_BUNDLE
    kind, marker = ("bundle", "bundle.json") if wants_a_bundle else ("checkpoint", "config.json")
    held = (fake_bundle if wants_a_bundle else tiny_checkpoint) / marker
    (tmp_path / "run with a blank" / "level" / marker).write_text(held.read_text())

    def told(path: Path, *said: str) -> None:
        places = {"PATH": str(path), "FILE": str(tmp_path / "file"), "OUT": str(tmp_path / "out")}
        given = [word.replace("FILE,FILE", "FILE FILE") for word in words.split()]
        for name, place in places.items():
            given = [word.replace(name, place) for word in given]
        refused(hmc(*given), f"{kind} {path} cannot be used", *said)

    told(tmp_path / "nowhere", f"{tmp_path / 'nowhere'} does not exist")
    told(tmp_path / "file", "file is a file", "Give the directory that `hmc ")
    told(tmp_path / "run with a blank", f"it is a folder that holds {kind}s: level", "such as ", "/level.")
    if wants_a_bundle:
        told(tiny_checkpoint, "it is a checkpoint", f"Compile it with `hmc compile {tiny_checkpoint} -o BUNDLE`")
        told(opus, "it is a model of another program", f"`hmc up {opus}` imports, compiles and serves it")
    else:
        told(fake_bundle, "it is a bundle, and not a checkpoint", f"Serve it with `hmc serve {fake_bundle}`")


def test_a_damaged_folder_is_none_of_another_kind(hmc: Hmc, fake_bundle: Path, tmp_path: Path) -> None:
    (fake_bundle / "bundle.json").write_text("{")
    refused(hmc("serve", fake_bundle), "bundle.json is not JSON")
    (tmp_path / "empty").mkdir()
    refused(hmc("serve", tmp_path / "empty"), "bundle.json is missing", "Give the directory `hmc compile -o` wrote")
    refused(hmc("compile", tmp_path / "empty", "-o", tmp_path / "out"), "config.json is missing")


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
    refused(hmc("analyze", "importance", tiny_checkpoint, "--data", "a b", *both), "it is the output folder too")


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
