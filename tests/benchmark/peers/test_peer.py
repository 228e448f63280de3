"""HMC beside other engines: the same weights from text to text, each engine in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.bundles import bundle_at
from tests.once import Once
from tests.support.trained import CHECKPOINT, ENGLISH, GERMAN

from hmc.artifact import InvalidRequestError, read_manifest
from hmc.artifact.checkpoint.checkpoint import checkpoint_digest
from hmc.artifact.errors import FailedPreconditionError
from hmc.benchmark import BenchmarkSettings, run_benchmark
from hmc.benchmark.measure.latency import RequestSize
from hmc.benchmark.peers import peer as peers
from hmc.benchmark.peers.engines import divisions, spelled
from hmc.benchmark.peers.peer import TunedLevel, check_peers, opened_peers
from hmc.benchmark.report.tables import setting_rows
from hmc.engine.runtime.threads import cores
from hmc.serving import DecodeOptions, Translation


@pytest.mark.slow
def test_peers_are_measured_as_levels_are(once: Once) -> None:
    pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    report = run_benchmark(
        BenchmarkSettings(
            bundle=once(bundle_at, CHECKPOINT),
            src=ENGLISH,
            ref=GERMAN,
            limit=24,
            latency_limit=2,
            batches=(1, 2),
            beams=(4,),
            rounds=1,
            memory=False,
            peers=("ctranslate2", "transformers"),
            checkpoint=CHECKPOINT,
        )
    )
    assert [system.name for system in report.systems] == ["full", "CTranslate2", "Transformers"]
    level = report.levels[0]
    for peer in report.peers:
        assert peer.settings.keys() == {"batch 1, beam 4", "batch 2, beam 4"}
        assert [len(at.samples_ms[0]) for at in peer.latency] == [2, 1]
        [quality] = peer.quality
        assert quality.reference_level == "full"
        assert quality.bleu == pytest.approx(level.quality[0].bleu, abs=4)  # int8 or bf16, on few sentences
        assert peer.same >= 0.75
    assert "Peers: ctranslate2, transformers, with the weights of full" in report.contract
    if cores() > 1:  # levels are tuned as peers are, and the table says how they ran
        assert level.settings.keys() == report.peers[0].settings.keys()
        ways = {spelled(workers, threads) for workers, threads in divisions()}
        assert set(level.settings.values()) <= ways
        assert "cpu; on the CPU the division of the cores that was fastest" in report.contract
        assert [row[0] for rows in setting_rows(report) for row in rows][:2] == ["full", "full"]


@pytest.mark.parametrize("given", [{"threads": 1}, {"workers": 2, "threads": 1}, {"peers": ()}])
def test_levels_are_tuned_only_beside_peers_and_on_their_own_choice(given: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"bundle": Path("b"), "src": Path("s"), "peers": ("ctranslate2",)}
    assert BenchmarkSettings(**fields).tuned
    assert not BenchmarkSettings(**fields | given).tuned


class Timed:
    """A translator that takes as long as it is told."""

    def __init__(self, name: str, per_text: float, once: float, clock: list[float]) -> None:
        self.name, self.per_text, self.once, self.clock = name, per_text, once, clock

    def translate(self, texts: list[str], _options: DecodeOptions, *, segmentation: str) -> list[Translation]:
        assert segmentation == "none"
        self.clock[0] += self.once + self.per_text * len(texts)
        return [Translation(self.name, 0.0, 1, 1) for _ in texts]


def test_a_level_runs_at_its_fastest_division(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("hmc.benchmark.peers.peer.time.perf_counter", lambda: clock[0])
    ways = {"1 × 2 threads": Timed("one", 1.0, 1.0, clock), "2 × 1 thread": Timed("two", 0.5, 3.0, clock)}
    tuned = TunedLevel(ways)  # type: ignore[arg-type]
    alone, many = RequestSize(1, 4), RequestSize(8, 4)
    tuned.probe([f"text {n}" for n in range(16)], [alone, many])
    assert tuned.best == {alone: "1 × 2 threads", many: "2 × 1 thread"}
    assert tuned.timed(["a"], DecodeOptions(beam_size=4))[0] == 2.0
    assert tuned.timed(["a"] * 8, DecodeOptions(beam_size=4))[0] == 7.0
    assert tuned.translate(["a"], DecodeOptions(beam_size=4))[0].text == "two"


def test_an_engine_takes_long_and_blank_texts(tiny_checkpoint: Path) -> None:
    pytest.importorskip("ctranslate2")
    size, greedy = RequestSize(2, 1), DecodeOptions(beam_size=1)
    with opened_peers(["ctranslate2"], tiny_checkpoint, lambda _: None) as [peer]:
        peer.probe(["A dog runs.", "A man."], [size])
        assert set(peer.best) == {size}
        found = peer.translate(["A dog runs.", " ", "A man. " * 400], greedy)
        seconds, timed = peer.timed(["A dog runs.", "A man."], greedy)
    assert (found[1].text, found[1].source_tokens) == ("", 0)
    assert found[0].source_tokens == timed[0].source_tokens
    assert seconds > 0


def test_what_peers_need_is_said_before_anything_is_measured(
    tiny_bundle: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = read_manifest(tiny_bundle).levels[0].source_checkpoint
    assert digest == checkpoint_digest(tiny_checkpoint)
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "optimum" else name)
    with pytest.raises(InvalidRequestError, match="peer 'marian': choose ctranslate2, transformers, optimum"):
        check_peers(["marian"], tiny_checkpoint, digest)
    with pytest.raises(InvalidRequestError, match="give each peer once"):
        check_peers(["ctranslate2"] * 2, tiny_checkpoint, digest)
    with pytest.raises(
        FailedPreconditionError, match="optimum needs optimum, which is not installed: pip install 'opt"
    ):
        check_peers(["optimum"], tiny_checkpoint, digest)
    with pytest.raises(InvalidRequestError, match="checkpoint: peers need the weights"):
        check_peers(["ctranslate2"], None, digest)
    with pytest.raises(InvalidRequestError, match="has other weights than the reference level"):
        check_peers(["ctranslate2"], CHECKPOINT, digest)
    check_peers(["ctranslate2", "transformers"], tiny_checkpoint, digest)
