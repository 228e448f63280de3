"""A pruning run on a terminal: a bar and a line a stage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.files import write_pair
from tests.tiny import SENTENCES, tiny_checkpoint_at

from hmc.artifact.model.budgets import parse_budgets
from hmc.training import PruneRequest, PruneSettings
from hmc.training.pruning.run import prune
from hmc.training.runs.recipe import RunSection


def test_a_terminal_gets_a_line_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    tiny_checkpoint_at(tmp_path / "c")
    write_pair(tmp_path, SENTENCES * 2)
    text = f"{tmp_path}/t.en {tmp_path}/t.de"
    settings = PruneSettings(
        close_steps=10, recover_steps=2, batch_tokens=512, run=RunSection(device="cpu", eval_sentences=1, log_every=4)
    )
    prune(PruneRequest(tmp_path / "c", parse_budgets("12"), [text], text, tmp_path / "p", settings))
    shown = re.split(r"[\r\n]+", re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", capsys.readouterr().err))
    lines = [line for line in shown if line.strip() and not line.startswith("prune ")]
    begins = [line.partition(":")[0] for line in lines if not line.startswith("warning: ")]
    assert begins == ["before", "12 open heads", "after, 12 heads"], lines
    bar = [line for line in shown if line.startswith("prune ")][-1]
    assert re.search(r" 100% 12/12 loss \S+ +left: ", bar), bar
