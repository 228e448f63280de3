"""Speed beside CTranslate2, from given times; and its translations, which are those of HMC's fp32 level."""

from pathlib import Path

import pytest
from tests.tiny import SENTENCES

from hmc.artifact.checkpoint.checkpoint import load_checkpoint
from hmc.benchmark.measure.latency import LatencyResult, Setting
from hmc.benchmark.measure.text import TestSet
from hmc.benchmark.peers import comparison
from hmc.benchmark.peers.comparison import Comparison, compare_with_ctranslate2
from hmc.benchmark.peers.ctranslate2 import ctranslate2_systems
from hmc.serving import DecodeOptions, Translator


def times(level: str, batch: int, ratio: float) -> LatencyResult:
    return LatencyResult(level, batch, 4, 8, ratio, ratio, ratio, 1.0, 1.0, ratio)


def test_the_rival_is_the_faster_use_of_the_cores_at_each_setting() -> None:
    ratios = {
        "full": (1.0, 1.0),
        "full-int8": (0.5, 0.4),
        "ct2-int8, 2 threads": (2.0, 1.5),
        "ct2-int8, 2 workers": (3.0, 1.0),
        "ct2-float32, 2 threads": (1.0, 0.5),
    }
    found = Comparison(
        "4",
        dict.fromkeys(ratios, 30.0),
        tuple(times(n, b, r[i]) for i, b in enumerate((1, 32)) for n, r in ratios.items()),
    )
    alone, many = Setting(1, 4), Setting(32, 4)
    assert (found.rival(alone).level, found.rival(many).level) == ("ct2-int8, 2 threads", "ct2-int8, 2 workers")
    assert (found.speed("full", alone), found.speed("full", many)) == (2.0, 1.0)
    assert (found.speed("full-int8", alone), found.speed("full-int8", many)) == (4.0, 2.5)


def test_ctranslate2_computes_the_same_translations(tiny_bundle: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    systems = ctranslate2_systems(load_checkpoint(tiny_checkpoint), tmp_path)
    exact = [system for name, system in systems.items() if name.startswith("ct2-float32")]
    options = DecodeOptions(beam_size=4, max_length=24)
    with Translator(tiny_bundle, "full", device="cpu") as ours:
        wanted = [(t.text, t.target_tokens) for t in ours.translate(SENTENCES[:4], options) if not t.hit_max_length]
    assert exact
    for system in exact:
        found = [(t.text, t.target_tokens) for t in system.translate(SENTENCES[:4], options)]
        assert set(wanted) <= set(found)


def test_every_system_is_timed_and_scored(
    tiny_bundle: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    monkeypatch.setattr(comparison, "SETTLE_S", 0.0)
    test_set = TestSet("test", tuple(SENTENCES[:3]), tuple(SENTENCES[:3]))
    found = compare_with_ctranslate2(
        tiny_bundle, ["full", "full-int8"], tiny_checkpoint, test_set, [Setting(1, 2), Setting(3, 2)], timed=3, rounds=1
    )
    assert list(found.bleu)[:2] == ["full", "full-int8"]
    assert {(r.level, r.batch) for r in found.latency} == {(name, batch) for name in found.bleu for batch in (1, 3)}
    assert found.to_dict()["version"] == found.version
