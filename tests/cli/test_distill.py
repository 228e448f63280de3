"""`hmc distill`: what it prints, as text and as JSON, and how it names the corpus."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import done
from tests.support import trained
from tests.support.files import write_lines
from tests.support.trained import CHECKPOINT

from hmc.training.data.parallel_text import read_pairs


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("english") / "few.en"
    lines = trained.english(30)
    write_lines(path, [*lines, lines[0], ""])
    return path


def test_as_text_and_as_json(hmc: Hmc, english: Path, tmp_path: Path) -> None:
    out = tmp_path / "a folder"
    words = ("distill", CHECKPOINT, "--source", english, "-o", out, "--dev", "2", "--workers", "1")
    ran = done(hmc(*words))
    assert "and 2 held out as dev text" in ran.stdout
    assert "1 of 32 lines dropped: duplicate" in ran.stdout
    assert "1 of 32 lines dropped: empty" in ran.stdout
    assert "translated 32 of 32 lines" in ran.stderr
    found = json.loads(hmc(*words, "--json").stdout)
    assert found["train"] + found["dev"] + sum(found["dropped"].values()) == found["lines"] == 32
    assert len(list(read_pairs(found["corpus"]))) == found["train"], "blanks in paths are quoted"
    assert shlex.split(found["corpus"]) == [str(out / f"train.{side}.txt") for side in ("source", "target")]


def test_refusals(hmc: Hmc, english: Path, tmp_path: Path) -> None:
    for words, message in (
        (("--source", tmp_path / "absent"), "no such file"),
        (("--source", english, "--keep", "copies"), "--keep copies: choose 'unfinished', 'copy'"),
        (("--source", english, "--beam", "99"), "--beam 99: choose 1 to 16"),
    ):
        ran = hmc("distill", CHECKPOINT, *words, "-o", tmp_path / "out")
        assert (ran.exit_code, message in ran.stderr) == (2, True), ran.output
    ran = hmc("distill", CHECKPOINT, "--source", english, "-o", CHECKPOINT)
    assert (ran.exit_code, "is a model" in ran.stderr) == (2, True)
    assert not (tmp_path / "out").exists()
