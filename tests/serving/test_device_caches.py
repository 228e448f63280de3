"""The caches that stay on a device, with the memory of this machine as the device: the same translations as from those
that are the host's own, for every kind of search, at fp32 and fp16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hmc.artifact.bundle import read_manifest
from hmc.artifact.errors import InvalidArtifactError
from hmc.compiler.bundle_builder import LevelRequest
from hmc.compiler.bundle_writer import compile_bundle
from hmc.serving import batch
from hmc.serving.batch import Batch
from hmc.serving.constraints import Constraints
from hmc.serving.device_caches import DeviceCaches
from hmc.serving.device_rows import DeviceRows
from hmc.serving.device_tree import DeviceTree
from hmc.serving.engine import Engine
from hmc.serving.jobs import Mode
from hmc.serving.options import DecodeOptions, Sampling
from hmc.serving.sessions import Device, LevelSessions

OPTIONS = [
    *(DecodeOptions(beam_size=b, max_length=90, n_best=b) for b in (1, 4)),
    DecodeOptions(beam_size=3, max_length=40, coverage_penalty=0.3, repetition_penalty=1.2, no_repeat_ngram_size=2),
    DecodeOptions(n_best=2, max_length=40, sampling=Sampling(seed=1)),
    DecodeOptions(n_best=2, max_length=40, sampling=Sampling(seed=1, top_p=0.8)),
]
"""90 tokens are more than device caches have room for at first."""
Found = list[list[tuple[tuple[int, ...], float]]]


def on_device(sessions: LevelSessions, mode: Mode) -> DeviceCaches:
    return (DeviceRows if mode.variant == "greedy" else DeviceTree)(sessions, mode.variant, mode.rows)


@pytest.fixture
def as_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(batch, "caches_for", on_device)


def opened(bundle: Path, level: str) -> LevelSessions:
    manifest = read_manifest(bundle)
    return LevelSessions.open(bundle, manifest.architecture, manifest.level(level), Device("cpu"), 1)


def some_sources(count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [[*rng.integers(3, 120, size=n).tolist(), 0] for n in rng.integers(1, 50, size=count)]


def decode(sessions: LevelSessions, sources: list[list[int]], options: list[DecodeOptions]) -> Found:
    """12 rows at a time: sentences join and leave, and slots are used again."""
    running = Engine(sessions, queue_size=200, max_rows=12)
    try:
        futures = [running.submit(s, o, Constraints((5, 6) if s[0] % 2 else ())) for o in options for s in sources]
        return [[(h.ids, round(h.score, 4)) for h in f.result().hypotheses] for f in futures]
    finally:
        running.close()


def test_same_translations_as_the_host_caches(lively_bundle: Path, as_device: Callable[[], None]) -> None:
    sessions, sources = opened(lively_bundle, "h12"), some_sources(25)
    expected = decode(sessions, sources, OPTIONS)
    as_device()
    assert decode(sessions, sources, OPTIONS) == expected


def test_a_slot_is_kept_and_used_again(lively_bundle: Path) -> None:
    caches = DeviceTree(opened(lively_bundle, "h12"), None, 2)
    caches.add([[5, 0]] * 3)
    assert (caches.slots.tolist(), caches.size) == ([0, 1, 2], 4)
    caches.keep([2, 0])
    assert caches.slots.tolist() == [2, 0]
    caches.add([[5, 6, 0]] * 3)
    assert (caches.slots.tolist(), caches.size) == ([2, 0, 1, 3, 4], 8)
    caches.keep([1])
    assert (caches.slots.tolist(), caches.size) == ([0], 1)


def test_memory_stays_where_it_is_between_steps(lively_bundle: Path) -> None:
    """What a step binds is made once for its shapes, also across sentences; other shapes bind anew."""
    caches = DeviceRows(opened(lively_bundle, "h12"), "greedy", 1)

    def step(length: int) -> object:
        rows = len(caches.slots)
        tokens, lengths = np.full(rows, 7, np.int32), np.full(rows, length, np.int32)
        caches.run({"tokens": tokens, "lengths": lengths, "candidates": np.array([3])})
        return caches._binding

    caches.add([[5, 6, 0]] * 2)
    first = step(0)
    assert step(1) is first
    caches.keep([])
    caches.add([[8, 9, 0]] * 2)
    assert step(0) is first
    caches.add([[8, 9, 0]])
    assert step(1) is not first


@pytest.mark.parametrize("options", OPTIONS[:2], ids=["greedy", "beam"])
def test_fp16_graphs_translate_as_fp32_ones(
    lively_checkpoint: Path, tmp_path: Path, as_device: Callable[[], None], options: DecodeOptions
) -> None:
    """ONNX Runtime runs them on a CPU too, where an operator without a kernel of 16 bits gets casts around it."""
    compile_bundle([LevelRequest(lively_checkpoint)], tmp_path / "b", precisions=("fp32", "fp16"))
    sources = some_sources(20)
    expected = decode(opened(tmp_path / "b", "full"), sources, [options])
    as_device()
    found = decode(opened(tmp_path / "b", "full-fp16"), sources, [options])
    same = [a[0][0] == b[0][0] for a, b in zip(expected, found, strict=True)]
    assert np.mean(same) >= 0.8
    for (_, one), (_, other) in ((a[0], b[0]) for a, b, s in zip(expected, found, same, strict=True) if s):
        assert one == pytest.approx(other, abs=0.01)


def test_a_decoder_of_an_earlier_version_is_refused(lively_bundle: Path) -> None:
    sessions = opened(lively_bundle, "h12")
    inputs = sessions.decoder().get_inputs()

    class Earlier:
        def get_inputs(self) -> list[object]:
            return [*inputs, type("Input", (), {"name": "parents"})()]

    sessions.decoders[None] = Earlier()
    sessions.device = Device("cuda")
    with pytest.raises(InvalidArtifactError, match="earlier version"):
        Batch(sessions, Mode(4))
