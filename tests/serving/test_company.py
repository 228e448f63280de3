"""A row that is alone runs beside a copy of itself where a processor treats lone rows differently: nobody can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmc.artifact.bundle import read_manifest
from hmc.serving import cache_choice
from hmc.serving.company import Accompanied
from hmc.serving.constraints import Constraints
from hmc.serving.engine import Engine
from hmc.serving.options import DecodeOptions, Sampling, scoring_options
from hmc.serving.results import Decoded
from hmc.serving.sessions import Device, LevelSessions

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
    """Of every kind of search: each sentence alone, and all of them, which end one by one until the last is alone."""
    manifest = read_manifest(bundle)
    sessions = LevelSessions.open(bundle, manifest.architecture, manifest.level(name), Device("cpu"), 1)
    engine = Engine(sessions, queue_size=100, max_rows=4)
    found = {}
    for kind, (options, constraints) in ASKED.items():
        alone = [engine.submit(source, options, constraints).result(60) for source in SOURCES]
        together = [f.result(60) for f in [engine.submit(source, options, constraints) for source in SOURCES]]
        found[kind] = [*alone, *together]
    engine.close()
    return found


@pytest.mark.parametrize("name", ["full", "full-int8", "full-shortlist", "full-int8-shortlist"])
def test_what_is_found_is_the_same(
    name: str, lively_bundle: Path, listed_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At precisions that every processor computes alike for any number of rows."""
    bundle = listed_bundle if name.endswith("-shortlist") else lively_bundle
    expected, runs = all_found(bundle, name), []
    run = Accompanied._heard

    def heard(self: Accompanied, answer: dict[str, Any]) -> dict[str, Any]:
        runs.append(self._copied)
        return run(self, answer)

    monkeypatch.setattr(cache_choice, "differs_alone", lambda _: True)
    monkeypatch.setattr(Accompanied, "_heard", heard)
    accompanied = all_found(bundle, name)
    assert set(runs) == {True, False}
    for kind, decoded in expected.items():
        for before, after in zip(decoded, accompanied[kind], strict=True):
            for a, b in zip(before.hypotheses, after.hypotheses, strict=True):
                assert (a.ids, a.score, a.token_scores) == (b.ids, b.score, b.token_scores), kind
                if a.attention is not None:
                    np.testing.assert_array_equal(a.attention, b.attention)


def test_only_4_bit_weights_need_it(lively_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {level.precision: level for level in read_manifest(lively_bundle).levels}
    for flags, needed in ((frozenset({"avx2"}), True), (frozenset({"avx2", "avx512_vnni"}), False)):
        monkeypatch.setattr(cache_choice, "instructions", lambda known=flags: known)
        cache_choice._same_alone.cache_clear()
        assert not cache_choice.differs_alone(levels["fp32"])
        assert not cache_choice.differs_alone(levels["int8"])
        assert cache_choice.differs_alone(levels["int8"].model_copy(update={"precision": "int4"})) == needed
    cache_choice._same_alone.cache_clear()
