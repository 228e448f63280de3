"""How many tokens a batch may need room for: long sentences run with fewer others, and all are answered alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hmc.artifact.bundle import read_manifest
from hmc.serving import batch
from hmc.serving.engine import Engine
from hmc.serving.options import DecodeOptions
from hmc.serving.sessions import Device, LevelSessions

MOST = 200


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and the longest of them, at every step of every batch."""
    found: list[tuple[int, int]] = []
    whole = batch.Batch.step

    def step(self: batch.Batch, undisturbed: Callable[[], bool]) -> None:
        found.append((self.rows, self.longest))
        whole(self, undisturbed)

    monkeypatch.setattr(batch.Batch, "step", step)
    return found


@pytest.mark.parametrize("beam", [1, 3])
def test_long_sentences_have_less_company(lively_bundle: Path, seen: list[tuple[int, int]], beam: int) -> None:
    manifest = read_manifest(lively_bundle)
    sessions = LevelSessions.open(lively_bundle, manifest.architecture, manifest.level("h12"), Device("cpu"), 1)
    rng = np.random.default_rng(beam)
    sources = [[*rng.integers(3, 120, size=n).tolist(), 0] for n in rng.integers(1, 40, size=40)]
    limits = rng.choice([8, 20, 95], size=40).tolist()

    def run(max_tokens: int) -> list[tuple[int, ...]]:
        engine = Engine(sessions, queue_size=100, max_rows=32, max_tokens=max_tokens)
        options = [DecodeOptions(beam_size=beam, max_length=limit) for limit in limits]
        futures = [engine.submit(s, o) for s, o in zip(sources, options, strict=True)]
        answers = [f.result().hypotheses[0].ids for f in futures]
        engine.close()
        return answers

    free = run(100_000)
    assert max(rows * longest for rows, longest in seen) > MOST
    seen.clear()
    assert run(MOST) == free
    together = [(rows, longest) for rows, longest in seen if rows > beam]
    assert together, "something ran together"
    assert all(rows * longest <= MOST for rows, longest in together)
    assert any(rows * longest > MOST for rows, longest in seen) == (beam * 95 > MOST)  # alone, it may
