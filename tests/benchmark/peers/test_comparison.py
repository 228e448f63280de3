"""HMC beside CTranslate2: both translate the same weights from text to text, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmc.artifact.errors import FailedPreconditionError
from hmc.benchmark.measure.text import TestSet
from hmc.benchmark.peers import comparison
from hmc.benchmark.peers.comparison import CT2, _result, compare
from hmc.cli import demo_steps
from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle

pytestmark = pytest.mark.slow


def test_both_engines_translate_the_embedded_model(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    bundle, test = tmp_path / "bundle", TestSet.read(demo_steps.SRC, demo_steps.REF, limit=24)
    compile_bundle([LevelRequest(demo_steps.CHECKPOINT)], bundle)
    said: list[str] = []
    full, peer = compare(
        bundle, ["full"], demo_steps.CHECKPOINT, test, batches=(1, 4), beam=4, timed=4, rounds=2, progress=said.append
    )
    assert (full.name, peer.name) == ("full", CT2)
    assert full.bleu is not None
    assert full.bleu > 30
    assert peer.bleu == pytest.approx(full.bleu, abs=4)  # int8 beside fp32, on few sentences: 1.3 less
    assert peer.speed == {1: 1.0, 4: 1.0}
    assert full.milliseconds.keys() == full.speed.keys() == {1, 4}
    assert all(ms > 0 for ms in full.milliseconds.values())
    assert any(CT2 in line for line in said)


def test_a_speed_is_the_peers_time_by_that_of_the_level() -> None:
    """Of the better way each, and the median of the rounds."""
    test = TestSet.read(demo_steps.SRC, None, limit=2)
    times = {("full", 1): [9.0, 9.0], ("full", 2): [1.0, 2.0], (CT2, 1): [3.0, 8.0], (CT2, 2): [9.0, 9.0]}
    timed = _result("full", [], test, {4: times}, [1, 2])
    assert (timed.speed, timed.milliseconds, timed.bleu) == ({4: 3.5}, {4: 1500.0}, None)


def test_without_ctranslate2_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(comparison, "installed", lambda: False)
    test = TestSet.read(demo_steps.SRC, demo_steps.REF, limit=2)
    with pytest.raises(FailedPreconditionError, match="pip install ctranslate2"):
        compare(tmp_path, ["full"], tmp_path, test, batches=(1,), beam=1, timed=1, rounds=1)
