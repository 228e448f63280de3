"""`hmc analyze confidence`, `lrp`, `roles` and `attention` on a tiny checkpoint and real text."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import done, refused
from tests.guards.test_help_is_light import probe
from tests.support.files import write_lines
from tests.tiny import SENTENCES

from hmc.training.analysis.common.result import read_result

TREE = "\n".join(
    "\t".join([str(n), form, "_", "_", "_", "_", str(head), relation, "_", "_"])
    for n, (form, head, relation) in enumerate([("A", 2, "det"), ("cat", 3, "nsubj"), ("sleeps", 0, "root")], 1)
)


@pytest.fixture
def data(tmp_path: Path) -> str:
    for side, start in (("en", 0), ("de", 1)):
        write_lines(tmp_path / f"t.{side}", SENTENCES[start : start + 4])
    (tmp_path / "t.conllu").write_text(f"{TREE}\n\n", encoding="utf-8")
    return f"{tmp_path}/t.en {tmp_path}/t.de"


@pytest.mark.parametrize("command", ["confidence", "lrp", "roles"])
@pytest.mark.parametrize("forced", [False, True])
def test_a_table_the_data_and_the_figures(
    hmc: Hmc, tiny_checkpoint: Path, data: str, tmp_path: Path, command: str, forced: bool
) -> None:
    options = ("--data", data, "--out", tmp_path / "out", "--device", "cpu", *(["--forced"] if forced else []))
    ran = done(hmc("analyze", command, tiny_checkpoint, *options))
    assert f"wrote {tmp_path / 'out' / command}.json" in ran.stdout
    result = read_result(tmp_path / "out" / f"{command}.json", [command])
    assert len(result.data.heads) == 24
    assert ("references" in result.settings["decoder_reads"]) is forced
    for suffix in ("svg", "png"):
        assert (tmp_path / "out" / f"{command}.{suffix}").stat().st_size > 1000


def test_roles_with_trees_and_frequencies(hmc: Hmc, tiny_checkpoint: Path, data: str, tmp_path: Path) -> None:
    files = ("--trees", tmp_path / "t.conllu", "--frequencies", data.split(maxsplit=1)[0], "--frequent", "5")
    ran = done(
        hmc("analyze", "roles", tiny_checkpoint, "--data", data, "--out", tmp_path, *files, "--device", "cpu", "--json")
    )
    assert ran.stdout == (tmp_path / "roles.json").read_text(encoding="utf-8")
    found = json.loads(ran.stdout)
    assert [corpus["sentences"] for corpus in found["corpora"]] == [4, 1]
    assert found["data"]["looked_for"] == ["positional", "syntactic", "rare words"]
    assert found["data"]["treebank"]["sentences"] == 1
    assert found["settings"]["frequent"] == 5


def test_attention_maps(hmc: Hmc, tiny_checkpoint: Path, tmp_path: Path) -> None:
    done(hmc(
        "analyze", "attention", tiny_checkpoint, "A cat sleeps.", "--out", tmp_path, "--head", "cross.0.3",
        "--head", "encoder_self.1.0", "--device", "cpu",
    ))  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"attention.json", "attention.svg", "attention.png"}
    maps = read_result(tmp_path / "attention.json").data.maps
    assert [(one.kind, one.layer, one.index) for one in maps] == [("cross", 0, 3), ("encoder_self", 1, 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trees", "nowhere.conllu"), "nowhere.conllu: no such file"),
        (("--frequencies", "nowhere.en"), "nowhere.en: no such file"),
    ],
)
def test_refused(
    hmc: Hmc, tiny_checkpoint: Path, data: str, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    refused(hmc("analyze", "roles", tiny_checkpoint, "--data", data, "--out", tmp_path / "out", *arguments), message)
    assert not (tmp_path / "out").exists()


def test_help_loads_nothing_heavy() -> None:
    for command in ("confidence", "lrp", "roles", "attention"):
        printed, heavy = probe("analyze", command, "--help")
        assert heavy == []
        assert "--out" in printed


def test_sigterm_ends_an_analysis_and_says_that_nothing_is_kept(
    hmc: Hmc, tiny_checkpoint: Path, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("hmc.training.analysis.attention.confidence.analyse", stopped)
    out = tmp_path / "out"
    ran = hmc("analyze", "confidence", tiny_checkpoint, "--data", data, "--out", out, "--device", "cpu")
    assert ran.exit_code == 128 + signal.SIGTERM, ran.output
    assert ran.stderr.endswith(
        f"hmc: SIGTERM: an analysis writes nothing to {out} before its end; the same command begins anew\n"
    )
