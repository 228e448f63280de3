"""One copy of the weights for all sessions of a device, with this machine's memory as the device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.serving.fakes import GUARD_S

from hmc.artifact import read_manifest
from hmc.artifact.bundle.external_data import GraphFile
from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.errors import FailedPreconditionError
from hmc.engine.runtime import sessions as module
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory.account import DeviceMemory, MemoryBudget
from hmc.engine.runtime.memory.weights import WeightStore, weights_on
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions

Open = Callable[[str], LevelSessions]
VARIANTS: tuple[Variant | None, ...] = (None, "greedy", "attention", "sampling")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> WeightStore:
    """What levels put their weights in, as on a device."""
    made = WeightStore(DeviceMemory(Device("cpu")))
    monkeypatch.setattr(module, "in_device_form", lambda _: True)
    monkeypatch.setattr(module, "weights_on", lambda _: made)
    return made


@pytest.fixture
def opened(lively_bundle: Path, store: WeightStore) -> Open:
    assert store.memory.reserved == 0

    def open_level(name: str) -> LevelSessions:
        return opened_in(lively_bundle, name)

    return open_level


def opened_in(bundle: Path, name: str) -> LevelSessions:
    manifest = read_manifest(bundle)
    return LevelSessions.open(bundle, manifest.architecture, manifest.level(name), Device("cpu"), 1)


def bytes_of(bundle: Path, *levels: str) -> int:
    """Bytes of one copy of the external weights of some levels."""
    manifest, found = read_manifest(bundle), {}
    for level in levels:
        for name in (name for name in manifest.level(level).files if name.endswith(".onnx")):
            for t in GraphFile((bundle / name).read_bytes()).stored():
                found[t.location, t.raw.offset, t.shape, t.element_type] = t.raw.length
    return sum(found.values())


def decoded(sessions: LevelSessions) -> Iterator[tuple[tuple[int, ...], float]]:
    engine = Engine(sessions, queue_size=100, max_rows=16)
    rng = np.random.default_rng(0)
    sources = [[*rng.integers(3, 60, size=9).tolist(), 0] for _ in range(6)]
    for options in (DecodeOptions(beam_size=1, max_length=20), DecodeOptions(max_length=20)):
        for future in [engine.submit(ids, options) for ids in sources]:
            best = future.result(timeout=GUARD_S).hypotheses[0]
            yield best.ids, best.score
    engine.close()


def test_all_graphs_of_nested_levels_have_one_copy(opened: Open, store: WeightStore, lively_bundle: Path) -> None:
    held = [opened("full")]
    assert store.memory.reserved == bytes_of(lively_bundle, "full")
    held.append(opened("h12"))
    both = bytes_of(lively_bundle, "full", "h12")
    assert store.memory.reserved == both < bytes_of(lively_bundle, "full") + bytes_of(lively_bundle, "h12")
    for variant in VARIANTS:
        held[0].decoder(variant)
        held[1].decoder(variant)
    assert store.memory.reserved == both
    assert sum(len(s.weights) for s in held) > len(held[0].weights | held[1].weights)  # some names in common
    held.pop()
    gc.collect()
    assert store.memory.reserved == bytes_of(lively_bundle, "full")
    held.clear()
    gc.collect()
    assert store.memory.reserved == 0


def test_translations_do_not_change(lively_bundle: Path, store: WeightStore, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = opened_in(lively_bundle, "full")
    assert store.memory.reserved > 0
    monkeypatch.setattr(module, "in_device_form", lambda _: False)  # the graphs are those for a CPU
    plain = LevelSessions(shared.arch, shared.level, shared.device, shared.opener, shared.encoder, shared.decoders)
    found = list(decoded(plain))
    expected = list(decoded(opened_in(lively_bundle, "full")))
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], atol=1e-5)  # products packed otherwise


def test_a_session_alone_keeps_its_weights(opened: Open, store: WeightStore) -> None:
    held = opened("full")
    session, names = held.decoder("greedy"), [i.name for i in held.decoder("greedy").get_inputs()]
    del held
    gc.collect()
    assert names
    assert store.memory.reserved > 0
    del session
    gc.collect()
    assert store.memory.reserved == 0


def test_levels_that_load_at_the_same_time_share_too(opened: Open, store: WeightStore, lively_bundle: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        held = list(pool.map(opened, ["full", "h12", "h5"] * 2))
    assert store.memory.reserved == bytes_of(lively_bundle, "full", "h12", "h5")
    assert len(held) == 6


def test_weights_that_do_not_fit_are_refused_before_any_is_there(
    opened: Open, store: WeightStore, lively_bundle: Path
) -> None:
    needed = bytes_of(lively_bundle, "full")
    store.memory.limit(MemoryBudget(needed - 1))
    message = rf"cpu has too little memory for weights of level full: needed {needed / 2**20:.1f} MiB"
    with pytest.raises(FailedPreconditionError, match=message):
        opened("full")
    assert store.memory.reserved == 0
    store.memory.limit(MemoryBudget(needed))
    sessions = opened("full")
    with pytest.raises(FailedPreconditionError, match="weights of level h12"):
        opened("h12")
    assert sum(sessions.weights.values()) == store.memory.reserved == needed


def test_each_device_has_one_store() -> None:
    assert weights_on(Device("cpu")) is weights_on(Device("cpu"))
