"""Every precision for a CPU: the translation of a sentence does not depend on the rest of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.bundles import bundle_at
from tests.once import Once

from hmc.artifact import read_manifest
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions
from hmc.serving.requests.options import scoring_options

Found = list[list[tuple[tuple[int, ...], float]]]


@pytest.fixture(scope="module")
def bundle(lively_checkpoint: Path, once: Once) -> Path:
    return once(bundle_at, lively_checkpoint, (24, 12), ("fp32", "int8", "int4"))


LEVELS = ["full", "full-int8", "full-int4", "h12-int8", "h12-int4"]
LISTED = ["full-int8-shortlist", "full-int4-shortlist"]


@pytest.fixture(scope="module", params=[*LEVELS, *LISTED])
def engine(bundle: Path, listed_bundle: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    path = listed_bundle if request.param in LISTED else bundle
    manifest = read_manifest(path)
    sessions = LevelSessions.open(path, manifest.architecture, manifest.level(request.param), Device("cpu"), 2)
    running = Engine(sessions, queue_size=1000, max_rows=60)
    yield running
    running.close()


def decode(engine: Engine, sources: list[list[int]], options: DecodeOptions, at_once: int) -> Found:
    found: Found = []
    for start in range(0, len(sources), at_once):
        futures = [engine.submit(s, options) for s in sources[start : start + at_once]]
        found += [[(h.ids, h.score) for h in f.result().hypotheses] for f in futures]
    return found


def test_a_given_translation_has_the_score_that_beams_found(engine: Engine) -> None:
    rng = np.random.default_rng(3)
    sources = [[*rng.integers(3, 120, size=n).tolist(), 0] for n in rng.integers(1, 40, size=20)]
    options, seen = DecodeOptions(beam_size=4, max_length=50), 0
    for source, [(ids, score)] in zip(sources, decode(engine, sources, options, 20), strict=True):
        if len(ids) < 50:
            given = engine.submit(source, scoring_options(options), Constraints((*ids, 0), complete=True))
            assert given.result().hypotheses[0].score == pytest.approx(score, abs=1e-5)
            seen += 1
    assert seen >= 5


@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_is_the_same_alone_and_in_every_batch(engine: Engine, beam: int) -> None:
    rng = np.random.default_rng(beam)
    sources = [[*rng.integers(3, 120, size=n).tolist(), 0] for n in rng.integers(1, 40, size=40)]
    options = DecodeOptions(beam_size=beam, max_length=50, n_best=beam)
    alone = decode(engine, sources, options, 1)
    assert len({ids for hypotheses in alone for ids, _ in hypotheses}) > 10, "the model says the same for everything"
    assert decode(engine, sources, options, 8) == alone
    order = rng.permutation(len(sources)).tolist()
    shuffled = decode(engine, [sources[i] for i in order], options, len(sources))
    assert [shuffled[order.index(i)] for i in range(len(sources))] == alone
