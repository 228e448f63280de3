"""`hmc translate --engine`: a corpus into a folder of translations, as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import done, refused


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "A dog."}\n{"text": 3}\n{"text": "A cat."}\n')
    return path


def test_a_corpus_is_translated_and_what_failed_is_told(
    hmc: Hmc, tiny_bundle: Path, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ("translate", "--bundle", tiny_bundle, "--engine", "local", "--source", corpus, "--field", "text")
    more = ("-o", out, "--max-length", "8", "--shard-lines", "2", "--workers", "1")
    ran = done(hmc(*arguments, *more))
    assert f"{out}: 3 lines in 2 files, " in ran.stdout
    assert f"1 lines were not translated; {out}/failures.jsonl has numbers and reasons" in ran.stderr
    assert len((out / "translations/000000.txt").read_text().splitlines()) == 2
    ran = hmc(*arguments, *more, "--json")
    assert json.loads(ran.stdout)["lines_now"] == 0
    refused(hmc(*arguments, *more, "--beam", "2"), "options: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "dask"], "--engine dask: choose local or ray"),
        (["--engine", "local"], "--engine needs --source FILE"),
        (["--engine", "local", "--source", "IN"], "--engine needs --source FILE and --out DIR"),
        (["--engine", "local", "--source", "IN", "-o", "O", "--restart"], "--engine does not work with --restart"),
        (["--engine", "local", "--source", "IN", "-o", "O", "--segmentation", "none"], "--segmentation needs"),
        (["--engine", "local", "--source", "IN", "-o", "O", "--workers", "0"], "--workers 0: choose 1 or more"),
        (
            ["--engine", "local", "--source", "IN", "-o", "O", "--timeout", "3"],
            "--timeout is for a server: leave it out with --engine",
        ),
        (["--engine", "local", "--source", "IN", "-o", "O", "--json", "--alignment"], "--alignment: files keep no"),
        (["--source", "IN", "--field", "text"], "--field needs --engine"),
        (
            ["--engine", "local", "--source", "CORPUS", "-o", "O", "--suppress-token", "NoSuchPiece"],
            "suppressed token 'NoSuchPiece' is not in the vocabulary",
        ),
        (["--source", "a", "--source", "b"], "--source is one file of this machine, unless --engine is given"),
        (["--source", "s3://a/b"], "--source is one file of this machine, unless --engine is given"),
    ],
)
def test_refusals(
    hmc: Hmc, tiny_bundle: Path, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("CORPUS").write_text("A dog runs.\n")
    refused(hmc("translate", "--bundle", tiny_bundle, *arguments), said)
    assert not list(Path("O").glob("*")), "so other options may follow"


def test_a_server_is_no_engine(hmc: Hmc) -> None:
    ran = hmc("translate", "--server", "localhost:1", "--engine", "local", "--source", "IN", "-o", "O")
    assert "--engine translates with a bundle: give --bundle DIR" in ran.stderr
