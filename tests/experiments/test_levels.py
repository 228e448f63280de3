"""Everything that a bundle of levels needs, trained at once, on a tiny model."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from experiments import levels, together
from experiments.kinds import KINDS
from experiments.levels import cut
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact import load_checkpoint
from hmc.artifact.checkpoint.checkpoint import save_checkpoint


def text_at(folder: Path) -> Path:
    """Text of six kinds, all alike."""
    folder.mkdir()
    lines = "".join(f"{line}\t{line.upper()}\n" for line in SENTENCES)
    for part in ("train", "dev", "test"):
        for kind in KINDS:
            (folder / f"{part}.{kind}.tsv.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    return folder


def test_a_cut_has_half_of_the_neurons_of_the_layers_that_stay(tmp_path: Path) -> None:
    whole = tiny_checkpoint_at(tmp_path / "c")
    save_checkpoint(cut(whole, (1,)), tmp_path / "cut")
    found = load_checkpoint(tmp_path / "cut")
    assert found.layout.encoder_self == whole.layout.encoder_self
    assert list(map(len, found.layout.decoder_self)) == list(map(len, found.layout.cross)) == [0, 4]
    assert found.ffn_widths.decoder == (0, whole.architecture.ffn_dim // 2)
    assert found.ffn_widths.encoder == whole.ffn_widths.encoder


class Here:
    """A process of `experiments.together` that runs in this one: libraries are loaded once for all."""

    def __init__(self, command: list[str], **_: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", command[2:])
            together.main()

    def wait(self) -> int:
        return 0


@pytest.mark.slow
def test_all_is_trained_scored_and_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.levels.subprocess.Popen", Here)
    tiny_checkpoint_at(tmp_path / "c")
    text, out = text_at(tmp_path / "text"), tmp_path / "out"
    words = [tmp_path / "c", "--text", text, "--out", out, "--seconds", "4", "--seeds", "1", "--device", "cpu"]
    words += ["--batch-tokens", "128", "--beam", "1"]
    monkeypatch.setattr(sys, "argv", ["levels", *map(str, words)])
    levels.main()
    found = json.loads((out / "results" / "scores.json").read_text())
    assert set(found) == {"base-1 h24", "control-1 h24", "h12-1 h12", "fast-1 h24", "faster-1 h16"}
    assert {"bleu", "to base", "to control"} == set(found["h12-1 h12"]["test.ui.tsv.gz"])
    assert (out / "results" / "base-1" / "final" / "config.json").is_file()
    assert load_checkpoint(out / "h12-1" / "final").layout.total == 12
    assert "-control" in (out / "results" / "scores.txt").read_text()
    logs = {path: path.read_text() for path in out.glob("*/log.txt")}
    levels.main()
    assert {path: path.read_text() for path in logs} == logs, "what has ended is not trained again"
