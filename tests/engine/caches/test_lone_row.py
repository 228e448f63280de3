"""Where a processor computes a single row differently, a lone row is duplicated: no result shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.serving.fakes import GUARD_S

from hmc.artifact import read_manifest
from hmc.engine.arrays import Arrays
from hmc.engine.caches import choice
from hmc.engine.caches.host import COPIES, LoneRowCaches
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.requests.results import Decoded
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions, Sampling
from hmc.serving.requests.options import scoring_options

RNG = np.random.default_rng(5)
SOURCES = [[*RNG.integers(3, 120, size=n).tolist(), 0] for n in (9, 1, 23, 14, 3, 30)]
ASKED: dict[str, tuple[DecodeOptions, Constraints]] = {
    "greedy": (DecodeOptions(beam_size=1, max_length=30), Constraints()),
    "alignment": (DecodeOptions(beam_size=1, max_length=30, alignment=True), Constraints()),
    "prefix": (DecodeOptions(beam_size=1, max_length=30), Constraints((7, 9, 40))),
    "repetition": (DecodeOptions(beam_size=1, max_length=30, no_repeat_ngram_size=2), Constraints()),
    "sampling": (DecodeOptions(max_length=30, sampling=Sampling(seed=3, top_k=9)), Constraints()),
    "scoring": (scoring_options(DecodeOptions()), Constraints((7, 9, 40, 0), complete=True)),
}


def all_found(bundle: Path, name: str) -> dict[str, list[Decoded]]:
    """For every kind of search: each sentence alone, then all together, until the last of them runs alone."""
    manifest = read_manifest(bundle)
    sessions = LevelSessions.open(bundle, manifest.architecture, manifest.level(name), Device("cpu"), 1)
    engine = Engine(sessions, queue_size=100, max_rows=4)
    found = {}
    for kind, (options, constraints) in ASKED.items():
        alone = [engine.submit(source, options, constraints).result(GUARD_S) for source in SOURCES]
        together = [f.result(GUARD_S) for f in [engine.submit(source, options, constraints) for source in SOURCES]]
        found[kind] = [*alone, *together]
    engine.close()
    return found


@pytest.mark.parametrize("name", ["full", "full-int8", "full-shortlist", "full-int8-shortlist"])
def test_translations_are_the_same_with_a_copy(
    name: str, lively_bundle: Path, listed_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tested at precisions at which the number of rows changes nothing on any processor."""
    bundle = listed_bundle if name.endswith("-shortlist") else lively_bundle
    expected, runs = all_found(bundle, name), []
    without_copy = LoneRowCaches._without_copy

    def recorded(self: LoneRowCaches, outputs: Arrays) -> Arrays:
        rows = {value.shape[0] for value in outputs.values()}
        runs.append((self._copied, rows == {COPIES} if self._copied else min(rows) > 1))
        return without_copy(self, outputs)

    monkeypatch.setattr(choice, "differs_alone", lambda _: True)
    monkeypatch.setattr(LoneRowCaches, "_without_copy", recorded)
    duplicated = all_found(bundle, name)
    assert set(runs) == {(True, True), (False, True)}  # both cases occur, and the graph never runs a single row
    for kind, decoded in expected.items():
        for before, after in zip(decoded, duplicated[kind], strict=True):
            for a, b in zip(before.hypotheses, after.hypotheses, strict=True):
                assert (a.ids, a.score, a.token_scores) == (b.ids, b.score, b.token_scores), kind
                if a.attention is not None:
                    np.testing.assert_array_equal(a.attention, b.attention)


def test_only_4_bit_weights_need_it(lively_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {level.precision: level for level in read_manifest(lively_bundle).levels}
    for flags, needed in ((frozenset({"avx2"}), True), (frozenset({"avx2", "avx512_vnni"}), False)):
        monkeypatch.setattr(choice, "instructions", lambda known=flags: known)
        choice._same_alone.cache_clear()
        assert not choice.differs_alone(levels["fp32"])
        assert not choice.differs_alone(levels["int8"])
        assert choice.differs_alone(levels["int8"].model_copy(update={"precision": "int4"})) == needed
    choice._same_alone.cache_clear()
