"""Scores by kind of text, of a tiny bundle."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from experiments import kind_scores
from experiments.kinds import KINDS
from tests.experiments.test_levels import text_at
from tests.support.files import write_lines
from tests.tiny import SENTENCES

from hmc.artifact import validate
from hmc.artifact.checkpoint.checkpoint import checkpoint_digest
from hmc.cli import demo_steps
from hmc.cli.demo_scores import read_scores


def test_scores_are_recorded_and_written_for_the_demo(
    tiny_bundle: Path, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, bundle)
    lines = SENTENCES[:3]
    monkeypatch.setattr(demo_steps, "SRC", write_lines(tmp_path / "t.en", lines))
    monkeypatch.setattr(demo_steps, "REF", write_lines(tmp_path / "t.de", lines))
    monkeypatch.setattr(kind_scores, "PEER_BATCH", 2)
    ship = tmp_path / "scores.json"
    words = [bundle, "--text", text_at(tmp_path / "text"), "--part", "test", "--levels", "h5", "--beam", "1"]
    words += ["--record", "--checkpoint", tiny_checkpoint, "--ship", ship]
    monkeypatch.setattr(sys, "argv", ["kind_scores", *map(str, words)])
    kind_scores.main()
    manifest = validate(bundle)
    quality = manifest.level("h5").quality
    assert quality
    assert (quality.test_set, tuple(quality.kinds)) == ("six kinds of text", KINDS)
    assert quality.command == "python -m experiments.kind_scores BUNDLE --text TEXT --part test --beam 1"
    assert manifest.level("h12").quality is None
    shipped = read_scores(ship)
    assert list(shipped) == ["full", "h5", "CTranslate2"]
    assert shipped["h5"].quality == quality
    assert shipped["h5"].checkpoint == manifest.level("h5").source_checkpoint == checkpoint_digest(tiny_checkpoint)
    assert shipped["h5"].sample.sentences == len(lines)
    assert shipped["full"].quality.bleu_delta == 0
